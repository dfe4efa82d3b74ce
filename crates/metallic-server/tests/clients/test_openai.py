"""The `openai` package against the server."""

import base64
import json
import struct

import httpx
import jsonschema
import openai
import pytest

from conftest import BASE, KEY, MODEL

HELLO = [{"role": "user", "content": "Say hello."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def ask(client, **fields):
    fields = {"model": MODEL, "messages": HELLO, "max_tokens": 16, "temperature": 0, **fields}
    return client.chat.completions.create(**fields)


def test_chat_answers_with_usage_and_reason(client):
    answer = ask(client)
    assert answer.object == "chat.completion" and answer.model
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens > 0 and 0 < answer.usage.completion_tokens <= 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert ask(client, max_tokens=1).choices[0].finish_reason == "length"


def test_streams_are_the_same_answer_with_usage_at_the_end(client):
    whole = ask(client, seed=3)
    chunks = list(ask(client, seed=3, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1])
    assert chunks[-1].choices == []
    counted = lambda usage: (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    assert counted(chunks[-1].usage) == counted(whole.usage)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_that_is_left_does_not_hold_the_next_up(client):
    with ask(client, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    assert ask(client).choices[0].message.content


def test_several_choices_seeds_and_stops(client):
    answer = ask(client, n=3, temperature=1.0, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    again = ask(client, n=3, temperature=1.0, seed=5)
    texts = lambda a: [choice.message.content for choice in a.choices]
    assert texts(again) == texts(answer)
    text = ask(client, max_tokens=24).choices[0].message.content
    word = text.split()[1]
    cut = ask(client, max_tokens=24, stop=[word]).choices[0]
    assert cut.finish_reason == "stop" and cut.message.content == text.split(word)[0]


def test_logprobs_come_with_bytes(client):
    answer = ask(client, logprobs=True, top_logprobs=3, max_tokens=4)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
        assert bytes(token.bytes).decode(errors="replace") == token.token


def test_bias_and_penalties_change_the_answer(client):
    token = ask(client, max_tokens=1, logprobs=True).choices[0].logprobs.content[0].token
    reply = httpx.post(f"{BASE}/tokenize", json={"model": MODEL, "content": token, "add_special": False}, headers={"Authorization": f"Bearer {KEY}"})
    (first,) = reply.json()["tokens"]
    banned = ask(client, max_tokens=1, logprobs=True, logit_bias={str(first): -100}).choices[0].logprobs.content[0].token
    assert banned != token
    messages = [{"role": "user", "content": "Repeat the word no many times: no no no no"}]
    plain = ask(client, messages=messages, max_tokens=48).choices[0].message.content
    varied = ask(client, messages=messages, max_tokens=48, frequency_penalty=2.0).choices[0].message.content
    assert plain != varied


@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_are_asked_for_are_called(client, stream):
    answer = ask(
        client,
        messages=[{"role": "user", "content": "How is the weather in Paris for 3 days?"}],
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=80,
        stream=stream,
    )
    if stream:
        names, arguments, reason, ids = [], "", None, []
        for chunk in answer:
            choice = chunk.choices[0]
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or []:
                names += [call.function.name] if call.function.name else []
                ids += [call.id] if call.id else []
                arguments += call.function.arguments or ""
        assert names == ["get_weather"] and len(ids) == 1
    else:
        (call,) = answer.choices[0].message.tool_calls
        reason, arguments = answer.choices[0].finish_reason, call.function.arguments
        assert call.type == "function" and call.id and call.function.name == "get_weather"
    assert reason == "tool_calls"
    jsonschema.validate(json.loads(arguments), WEATHER["function"]["parameters"])


def test_results_of_tools_go_back_into_the_conversation(client):
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris","days":1}'}}
    messages = [
        {"role": "system", "content": "Answer shortly."},
        {"role": "user", "content": "How is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 24 degrees."},
    ]
    answer = ask(client, messages=messages, tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls


def test_answers_keep_to_a_schema(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    messages = [{"role": "user", "content": "Describe a person as JSON."}]
    for seed in range(3):
        answer = ask(client, messages=messages, response_format=form, max_tokens=120, temperature=1.0, seed=seed)
        assert answer.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(answer.choices[0].message.content), PERSON)


def test_answers_are_parsed_into_models(client):
    import pydantic

    class Step(pydantic.BaseModel):
        title: str = pydantic.Field(max_length=20)
        minutes: int = pydantic.Field(ge=0, le=99)

    answer = client.chat.completions.parse(
        model=MODEL, messages=HELLO, response_format=Step, max_tokens=60, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Step)


def test_embeddings_are_vectors_of_length_one(client):
    texts = ["The cat sat.", "A dog barked."]
    floats = client.embeddings.create(model=MODEL, input=texts, encoding_format="float").data
    assert [item.index for item in floats] == [0, 1]
    assert abs(sum(x * x for x in floats[0].embedding) - 1) < 1e-3
    # The package asks for base64 by itself where nothing is said.
    coded = client.embeddings.create(model=MODEL, input=texts).data
    assert all(abs(a - b) < 1e-6 for a, b in zip(coded[1].embedding, floats[1].embedding))
    raw = client.embeddings.with_raw_response.create(model=MODEL, input="x", encoding_format="base64")
    text = json.loads(raw.text)["data"][0]["embedding"]
    assert len(struct.unpack(f"<{len(base64.b64decode(text)) // 4}f", base64.b64decode(text))) == len(coded[0].embedding)


def test_models_are_listed(client):
    models = client.models.list().data
    assert MODEL in [model.id for model in models]
    assert client.models.retrieve(MODEL).id == MODEL


def test_completions_continue_text(client):
    answer = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=2, echo=False)
    assert answer.choices[0].text and answer.usage.completion_tokens == 8
    assert len(answer.choices[0].logprobs.tokens) == 8
    chunks = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == answer.choices[0].text


def test_responses_are_text_tools_and_events(client):
    answer = client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=16, temperature=0)
    assert answer.output_text and answer.status in ("completed", "incomplete")
    assert answer.usage.output_tokens <= 16
    events = list(client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=16, temperature=0, stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == answer.output_text
    assert [e.sequence_number for e in events] == list(range(len(events)))
    tool = {"type": "function", **WEATHER["function"], "strict": True}
    called = client.responses.create(
        model=MODEL, input="Weather in Paris, 2 days?", tools=[tool], tool_choice="required", max_output_tokens=80, temperature=0
    )
    (call,) = [item for item in called.output if item.type == "function_call"]
    jsonschema.validate(json.loads(call.arguments), WEATHER["function"]["parameters"])
    form = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    formed = client.responses.create(model=MODEL, input="A person.", text=form, max_output_tokens=120, temperature=0)
    jsonschema.validate(json.loads(formed.output_text), PERSON)


def test_errors_are_those_the_package_knows(client):
    with pytest.raises(openai.NotFoundError):
        ask(client, model="nobody")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{BASE}/v1", api_key="wrong", max_retries=0).models.list()
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, temperature=9)
    assert "temperature" in refused.value.body["param"]
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, extra_body={"no_such_field": 1})
    assert "no_such_field" in str(refused.value)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, messages=[{"role": "user", "content": "word " * 20000}])
    assert "context" in str(refused.value) or "tokens" in str(refused.value)
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "unevaluatedProperties": {"type": "string"}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
    assert "unevaluatedProperties" in str(refused.value)
    assert KEY not in str(refused.value)


async def together(count):
    client = openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
    import asyncio

    ask = lambda i: client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": f"Count to {i}."}], max_tokens=8, temperature=0
    )
    return [answer.choices[0].message.content for answer in await asyncio.gather(*map(ask, range(count)))]


def test_many_at_once_get_what_each_gets_alone(client):
    import asyncio

    crowd = asyncio.run(together(12))
    alone = [
        ask(client, messages=[{"role": "user", "content": f"Count to {i}."}], max_tokens=8).choices[0].message.content
        for i in range(12)
    ]
    assert crowd == alone
