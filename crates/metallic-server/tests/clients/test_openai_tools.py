"""The `openai` package against `/v1/chat/completions`: calls of tools, and answers that have a form."""

import json

import jsonschema
import openai
import pydantic
import pytest

from conftest import CLOCK, HELLO, MODEL, PERSON, WEATHER, ask, tokens_of

QUESTION = [{"role": "user", "content": "How is the weather in Paris for 3 days?"}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, CLOCK)}


def gather(chunks):
    """The calls that the chunks of a stream tell of, and why it ended."""
    calls, reason = [], None
    for chunk in chunks:
        choice = chunk.choices[0]
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or []:
            if call.index == len(calls):
                # A call begins with all but its arguments, and nothing of that comes again.
                assert call.id and call.type == "function" and call.function.name and call.function.arguments == ""
                calls.append([call.id, call.function.name, ""])
            else:
                assert not call.id and not call.function.name
                calls[call.index][2] += call.function.arguments
    return [tuple(call) for call in calls], reason


def whole(answer):
    choice = answer.choices[0]
    assert all(call.type == "function" for call in choice.message.tool_calls)
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    return calls, choice.finish_reason


def asked(client, stream, **fields):
    answer = ask(client, messages=QUESTION, **{"max_tokens": 80, **fields}, stream=stream)
    return gather(answer) if stream else whole(answer)


def check(calls):
    for id, name, arguments in calls:
        assert id.startswith("call_")
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    assert len({id for id, _, _ in calls}) == len(calls)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_tools_that_are_asked_for_are_called(client, stream, choice):
    calls, reason = asked(client, stream, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False)
    ((_, name, _),) = calls
    assert (name, reason) == ("get_weather", "tool_calls")
    check(calls)


@pytest.mark.parametrize("stream", [False, True])
def test_several_tools_are_called_in_one_answer(client, http, stream):
    # The answer must not end by itself, so that it goes on with another call.
    (end,) = tokens_of(http, "<|im_end|>")
    fields = dict(tools=[WEATHER, CLOCK], tool_choice="required", logit_bias={str(end): -100}, max_tokens=160)
    calls, reason = asked(client, stream, **fields)
    assert len(calls) > 1 and reason == "length"
    check(calls[:-1])
    single, reason = asked(client, stream, **fields, parallel_tool_calls=False)
    assert [call[1:] for call in single] == [calls[0][1:]] and reason == "tool_calls"


def test_streamed_calls_are_those_that_come_whole(client):
    fields = dict(tools=[WEATHER, CLOCK], tool_choice="required", temperature=1.0, seed=11, parallel_tool_calls=False)
    (a,), (b,) = asked(client, False, **fields)[0], asked(client, True, **fields)[0]
    assert a[1:] == b[1:]


def test_an_answer_may_be_text_although_there_are_tools(client):
    for choice in ("none", "auto"):
        answer = ask(client, tools=[WEATHER], tool_choice=choice).choices[0]
        # A model as small as that calls none by itself here.
        assert answer.message.content and answer.message.tool_calls is None
        assert answer.finish_reason in ("stop", "length")


def test_results_of_tools_go_back_into_the_conversation(client):
    fields = dict(tools=[WEATHER], tool_choice=NAMED, max_tokens=80, parallel_tool_calls=False)
    said = ask(client, messages=QUESTION, **fields).choices[0].message
    assert said.content is None
    results = [{"role": "tool", "tool_call_id": call.id, "content": "Sunny."} for call in said.tool_calls]
    for message in (said, said.model_dump(), said.model_dump(exclude_none=True)):
        answer = ask(client, messages=[*QUESTION, message, *results], tools=[WEATHER], tool_choice="none")
        assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls
    parts = [{**result, "content": [{"type": "text", "text": "Sunny."}]} for result in results]
    assert ask(client, messages=[*QUESTION, said, *parts]).choices[0].message.content


def test_only_tools_that_are_allowed_are_called(client):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    fields = dict(tools=[WEATHER, CLOCK], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    calls, _ = asked(client, False, **fields, parallel_tool_calls=False)
    assert [call[1] for call in calls] == ["get_time"]


class Step(pydantic.BaseModel):
    title: str = pydantic.Field(max_length=20)
    minutes: int = pydantic.Field(ge=0, le=99)


def test_tools_made_of_models_are_parsed(client):
    fields = dict(model=MODEL, messages=HELLO, tools=[openai.pydantic_function_tool(Step)], tool_choice="required")
    fields.update(max_tokens=60, temperature=0, parallel_tool_calls=False)
    parsed = client.chat.completions.parse(**fields).choices[0].message
    assert isinstance(parsed.tool_calls[0].function.parsed_arguments, Step)
    with client.chat.completions.stream(**fields) as stream:
        kinds = {event.type for event in stream}
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    assert call.function.parsed_arguments == parsed.tool_calls[0].function.parsed_arguments
    # The package sends back all that it has made of the call.
    result = {"role": "tool", "tool_call_id": parsed.tool_calls[0].id, "content": "Done."}
    assert ask(client, messages=[*HELLO, parsed, result]).choices[0].message.content


def test_answers_keep_to_a_schema(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    fields = dict(messages=[{"role": "user", "content": "Describe a person as JSON."}], response_format=form, max_tokens=90)
    for seed in range(2):
        answer = ask(client, **fields, temperature=1.0, seed=seed)
        assert answer.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(answer.choices[0].message.content), PERSON)
        chunks = ask(client, **fields, temperature=1.0, seed=seed, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.choices[0].message.content


def test_answers_are_json_objects_even_where_they_are_cut(client):
    form = {"type": "json_object"}
    for most in (8, 40):
        answer = ask(client, messages=[{"role": "user", "content": "Describe a cat as JSON."}], response_format=form, max_tokens=most)
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_answers_are_parsed_into_models(client):
    fields = dict(model=MODEL, messages=HELLO, response_format=Step, max_tokens=60, temperature=0)
    message = client.chat.completions.parse(**fields).choices[0].message
    assert isinstance(message.parsed, Step)
    with client.chat.completions.stream(**fields) as stream:
        assert [event.parsed for event in stream if event.type == "content.done"] == [message.parsed]
    # The package sends it back with all that it has made of it.
    again = [*HELLO, message, {"role": "user", "content": "Another."}]
    assert ask(client, messages=again).choices[0].message.content


def test_calls_and_forms_that_cannot_be_are_refused_by_name(client):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "unevaluatedProperties": {"type": "string"}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    wrong = [
        (dict(response_format=form), "/response_format/json_schema/schema/unevaluatedProperties"),
        (dict(tools=[tool], tool_choice="required"), "/tools"),
        (dict(tool_choice="required"), "/tool_choice"),
        (dict(tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "g"}}), "/tool_choice"),
        (dict(tools=[{"type": "custom", "custom": {"name": "c"}}]), "/tools/0/type"),
        (dict(functions=[WEATHER["function"]]), "/functions"),
    ]
    for fields, param in wrong:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as refused:
                ask(client, **fields, stream=stream)
            assert refused.value.param.startswith(param), refused.value
