"""The `anthropic` package against the server."""

import json

import anthropic
import jsonschema
import pytest

from conftest import ALIAS, BASE, BODY_BYTES, CONTEXT, KEY, MODEL

# The package has no argument for it any more.
GREEDY = {"extra_body": {"temperature": 0}}
HELLO = [{"role": "user", "content": "Say hello."}]
TOOL = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def claude():
    return anthropic.Anthropic(base_url=BASE, api_key=KEY, max_retries=0, timeout=120)


def ask(claude, **fields):
    return claude.messages.create(**{"model": MODEL, "max_tokens": 12, "messages": HELLO, **GREEDY, **fields})


def test_messages_answer_with_usage_and_reason(claude):
    answer = ask(claude, system="Be brief.", metadata={"user_id": "ada"})
    assert answer.type == "message" and answer.role == "assistant" and answer.id.startswith("msg_") and answer.model == MODEL
    assert answer.content[0].type == "text" and answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens") and answer.stop_sequence is None
    assert answer.usage.input_tokens > 0 and 0 < answer.usage.output_tokens <= 12
    assert ask(claude, max_tokens=1).stop_reason == "max_tokens"
    raw = claude.messages.with_raw_response.create(model=MODEL, max_tokens=1, messages=HELLO)
    assert raw.headers["request-id"] == raw.headers["x-request-id"] and raw.parse().content


def test_streams_are_the_same_message(claude):
    whole = ask(claude)
    with claude.messages.stream(model=MODEL, max_tokens=12, messages=HELLO, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    kinds = [event.type for event in ask(claude, stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1


def test_stop_sequences_are_told(claude):
    word = ask(claude).content[0].text.split()[1]
    cut = ask(claude, stop_sequences=[word])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", word)


def test_conversations_may_have_every_form(claude):
    text = lambda words: [{"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}]
    messages = [
        {"role": "user", "content": text("My name is Ada.")},
        {"role": "assistant", "content": text("Hello Ada.")},
        {"role": "user", "content": [*text("What is"), *text("my name?")]},
    ]
    assert ask(claude, messages=messages, system=text("Be brief.")).content
    answer = ask(claude)
    assert ask(claude, messages=[*HELLO, {"role": "assistant", "content": answer.content}, *HELLO]).content


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called(claude, stream):
    fields = dict(
        model=MODEL,
        max_tokens=60,
        messages=[{"role": "user", "content": "How is the weather in Paris?"}],
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        **GREEDY,
    )
    if stream:
        with claude.messages.stream(**fields) as events:
            answer = events.get_final_message()
    else:
        answer = claude.messages.create(**fields)
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert answer.stop_reason == "tool_use" and call.name == "get_weather"
    jsonschema.validate(call.input, TOOL["input_schema"])
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}
    messages = [*fields["messages"], {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert ask(claude, messages=messages, tools=[TOOL], tool_choice={"type": "none"}).content


def test_answers_keep_to_a_schema(claude):
    form = {"format": {"type": "json_schema", "schema": TOOL["input_schema"]}}
    answer = ask(claude, output_config=form, max_tokens=40)
    jsonschema.validate(json.loads(answer.content[0].text), TOOL["input_schema"])


def test_tokens_are_counted(claude):
    fields = dict(model=MODEL, messages=HELLO)
    counted = claude.messages.count_tokens(**fields).input_tokens
    usage = claude.messages.create(**fields, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens
    assert claude.messages.count_tokens(**fields, tools=[TOOL]).input_tokens > counted


def test_models_are_listed_as_this_api_has_them(claude):
    models = list(claude.models.list())
    assert {(model.id, model.type) for model in models} == {(MODEL, "model"), (ALIAS, "model")}
    assert models[0].display_name and models[0].created_at.year > 2000
    assert claude.models.retrieve(MODEL).id == MODEL
    with pytest.raises(anthropic.NotFoundError) as refused:
        claude.models.retrieve("nobody")
    assert refused.value.body["error"]["type"] == "not_found_error" and refused.value.request_id.startswith("req_")


async def test_the_asynchronous_client_gets_the_same(claude):
    async with anthropic.AsyncAnthropic(base_url=BASE, api_key=KEY, max_retries=0) as other:
        answer = await ask(other)
        assert answer.content[0].text == ask(claude).content[0].text


def test_errors_are_those_the_package_knows(claude):
    with pytest.raises(anthropic.NotFoundError) as refused:
        ask(claude, model="nobody")
    assert refused.value.body["error"]["type"] == "not_found_error" and refused.value.request_id.startswith("req_")
    for key in ({"api_key": "wrong"}, {"auth_token": "wrong"}):
        with pytest.raises(anthropic.AuthenticationError) as refused:
            ask(anthropic.Anthropic(base_url=BASE, max_retries=0, **key))
        assert refused.value.body["error"]["type"] == "authentication_error" and refused.value.request_id
    with pytest.raises(anthropic.APIStatusError) as refused:
        ask(claude, messages=[{"role": "user", "content": "x" * BODY_BYTES}])
    assert (refused.value.status_code, refused.value.body["error"]["type"]) == (413, "request_too_large")
    for name, value in {
        "no_such_field": 1,
        "temperature": 1.5,
        "max_tokens": 0,
        "messages": [],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        "service_tier": "priority",
        "speed": "fast",
        "inference_geo": "eu",
        "container": "c",
        "diagnostics": {"previous_message_id": "m"},
        "user_profile_id": "u",
        "messages/0/content": [{"role": "user", "content": "word " * 2 * CONTEXT}],
    }.items():
        with pytest.raises(anthropic.BadRequestError) as refused:
            ask(claude, extra_body={name.split("/")[0]: value})
        assert f"/{name.split('/')[0]}" in str(refused.value), name


def test_the_tool_runner_goes_on_without_threads(claude):
    calls = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: the city
        """
        calls.append(city)
        return "sunny"

    runner = claude.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=60,
        tools=[get_weather],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        messages=HELLO,
        max_iterations=3,
        **GREEDY,
    )
    answers = list(runner)
    # Each call's result went back, with the whole conversation before it: no thread is kept.
    assert len(answers) == 3 and all(answer.stop_reason in ("tool_use", "max_tokens") for answer in answers)
    assert 2 <= len(calls) <= 3
    assert answers[2].usage.input_tokens + (answers[2].usage.cache_read_input_tokens or 0) > 0
