"""LangChain's standard tests of chat models, over `ChatOpenAI`, and what its users do beyond them."""

import pydantic
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests

from conftest import ALIAS, BASE, KEY, MODEL

PARAMS = {"model": MODEL, "base_url": f"{BASE}/v1", "api_key": KEY, "temperature": 0, "max_tokens": 128}


class TestMetallic(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def chat_model_params(self):
        # A model as small as that repeats itself: calls where it may, and words without end.
        return {**PARAMS, "stream_usage": True, "frequency_penalty": 0.15, "model_kwargs": {"parallel_tool_calls": False}}

    @property
    def has_tool_choice(self):
        return True

    @property
    def supports_json_mode(self):
        return True

    @property
    def model_override_value(self):
        return ALIAS

    @pytest.mark.xfail(reason="the schema allows more arguments, and a model of 135M parameters makes one up")
    def test_tool_calling_with_no_arguments(self, model):
        super().test_tool_calling_with_no_arguments(model)

    @pytest.mark.xfail(reason="a model of 135M parameters writes JSON, but not with the fields that the question asks for")
    def test_json_mode(self, model):
        super().test_json_mode(model)

    @pytest.mark.xfail(reason="a model of 135M parameters calls no tool that it is not made to call")
    def test_agent_loop(self, model):
        super().test_agent_loop(model)


class City(pydantic.BaseModel):
    """A city"""

    name: str = pydantic.Field(max_length=16)
    people: int = pydantic.Field(ge=0, le=999)


@pytest.fixture(scope="module")
def model():
    return ChatOpenAI(**PARAMS)


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output_of_every_method(model, method):
    if method == "json_mode":
        # JSON of any shape: the model is not held to the fields.
        made = model.with_structured_output(None, method=method).invoke("Describe a city as JSON.")
        assert isinstance(made, dict)
        return
    chain = model.with_structured_output(City, method=method)
    assert isinstance(chain.invoke("Describe Paris."), City)
    assert all(isinstance(made, City) for made in chain.batch(["Describe Rome.", "Describe Oslo."]))
    with_raw = model.with_structured_output(City, method=method, include_raw=True).invoke("Describe Paris.")
    assert with_raw["parsed"] == chain.invoke("Describe Paris.") and with_raw["parsing_error"] is None


async def test_bound_tools_are_called_streamed_and_answered(model):
    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"Sunny in {city}."

    bound = model.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False)
    question = "How is the weather in Oslo?"
    answer = bound.invoke(question)
    (call,) = answer.tool_calls
    assert call["name"] == "weather" and set(call["args"]) == {"city"} and not answer.invalid_tool_calls
    gathered = None
    async for chunk in bound.astream(question):
        gathered = chunk if gathered is None else gathered + chunk
    assert [(c["name"], c["args"]) for c in gathered.tool_calls] == [(call["name"], call["args"])]
    result = weather.invoke(call)
    assert model.invoke([("user", question), answer, result]).content


def test_streams_and_batches_say_what_one_call_says(model):
    once = model.invoke("Say hello.")
    assert "".join(chunk.content for chunk in model.stream("Say hello.")) == once.content
    assert [answer.content for answer in model.batch(["Say hello."] * 3)] == [once.content] * 3
    assert once.response_metadata["model_name"] == MODEL and once.usage_metadata["output_tokens"] > 0
    assert model.bind(stop=[once.content.split()[1]]).invoke("Say hello.").content == once.content.split(once.content.split()[1])[0]


def test_the_other_api_gives_the_same_text(model):
    other = ChatOpenAI(**PARAMS, use_responses_api=True)
    assert other.invoke("Say hello.").text == model.invoke("Say hello.").text
    assert "".join(chunk.text for chunk in other.stream("Say hello.")) == model.invoke("Say hello.").text


def test_embeddings(model):
    embeddings = OpenAIEmbeddings(model=MODEL, base_url=PARAMS["base_url"], api_key=KEY, check_embedding_ctx_length=False)
    one, other = embeddings.embed_documents(["The cat sat.", "A dog barked."])
    assert len(one) == len(other) and one != other
