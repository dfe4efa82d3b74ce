"""The `anthropic` package against the server."""

import anthropic
import jsonschema
import pytest

from conftest import BASE, KEY, MODEL

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


def test_messages_answer_with_usage_and_reason(claude):
    answer = claude.messages.create(model=MODEL, max_tokens=16, messages=HELLO, system="Be brief.", **GREEDY)
    assert answer.type == "message" and answer.role == "assistant"
    assert answer.content[0].type == "text" and answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens <= 16


def test_streams_are_the_same_message(claude):
    fields = dict(model=MODEL, max_tokens=16, messages=HELLO, **GREEDY)
    whole = claude.messages.create(**fields)
    with claude.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_stop_sequences_are_told(claude):
    fields = dict(model=MODEL, max_tokens=24, messages=HELLO, **GREEDY)
    word = claude.messages.create(**fields).content[0].text.split()[1]
    cut = claude.messages.create(**fields, stop_sequences=[word])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", word)


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called(claude, stream):
    fields = dict(
        model=MODEL,
        max_tokens=80,
        messages=[{"role": "user", "content": "How is the weather in Paris?"}],
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "get_weather"},
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
    told = claude.messages.create(
        model=MODEL,
        max_tokens=8,
        tools=[TOOL],
        messages=[
            *fields["messages"],
            {"role": "assistant", "content": [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}]},
        ],
    )
    assert told.content


def test_tokens_are_counted(claude):
    fields = dict(model=MODEL, messages=HELLO)
    counted = claude.messages.count_tokens(**fields).input_tokens
    assert counted == claude.messages.create(**fields, max_tokens=1).usage.input_tokens


def test_errors_are_those_the_package_knows(claude):
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="nobody", max_tokens=1, messages=HELLO)
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=BASE, api_key="wrong", max_retries=0).messages.create(
            model=MODEL, max_tokens=1, messages=HELLO
        )
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.messages.create(model=MODEL, max_tokens=1, messages=HELLO, extra_body={"no_such_field": 1})
    assert "no_such_field" in str(refused.value)
