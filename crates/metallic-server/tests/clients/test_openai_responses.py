"""The `openai` package against `/v1/responses`."""

import json

import jsonschema
import openai
import pydantic
import pytest

from conftest import MODEL, PERSON, WEATHER

TOOL = {"type": "function", **WEATHER["function"], "strict": True}


def respond(client, **fields):
    return client.responses.create(**{"model": MODEL, "input": "Say hello.", "max_output_tokens": 12, "temperature": 0, **fields})


def test_responses_are_text_with_usage(client):
    answer = respond(client, instructions="Be brief.", metadata={"of": "tests"}, user="ada")
    assert answer.object == "response" and answer.id.startswith("resp_") and answer.model == MODEL and answer.created_at > 0
    (message,) = answer.output
    assert (message.type, message.role) == ("message", "assistant") and message.id.startswith("msg_")
    assert message.content[0].type == "output_text" and answer.output_text
    assert answer.usage.input_tokens > 0 and 0 < answer.usage.output_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.metadata == {"of": "tests"} and answer.instructions == "Be brief." and answer.error is None
    cut = respond(client, max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_events_tell_the_same_response(client):
    whole = respond(client)
    events = list(respond(client, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    assert kinds[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert kinds[-1] == f"response.{whole.status}"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].response.status == "in_progress" and events[-1].response.output_text == whole.output_text
    # The helper takes no response that was cut for its length.
    whole = respond(client, max_output_tokens=200)
    assert whole.status == "completed"
    with client.responses.stream(model=MODEL, input="Say hello.", max_output_tokens=200, temperature=0) as stream:
        assert "".join(e.delta for e in stream if e.type == "response.output_text.delta") == whole.output_text
        assert stream.get_final_response().output_text == whole.output_text


def test_a_response_builds_on_another_and_is_forgotten_when_asked_to(client):
    first = respond(client, input="My name is Ada.")
    second = respond(client, input="And yours?", previous_response_id=first.id)
    assert second.previous_response_id == first.id and second.usage.input_tokens > first.usage.total_tokens
    said = [{"role": "user", "content": "My name is Ada."}, *first.output, {"role": "user", "content": "And yours?"}]
    assert respond(client, input=said).output_text == second.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        respond(client, previous_response_id=first.id)
    assert refused.value.code == "previous_response_not_found"
    # What the second builds on is kept with it.
    assert respond(client, input="Go on.", previous_response_id=second.id).output_text
    unkept = respond(client, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_tools_are_called_and_their_results_taken(client):
    question = [{"role": "user", "content": "Weather in Paris, 2 days?"}]
    fields = dict(tools=[TOOL], tool_choice="required", max_output_tokens=80, parallel_tool_calls=False)
    called = respond(client, input=question, **fields)
    (call,) = [item for item in called.output if item.type == "function_call"]
    assert call.name == "get_weather" and call.call_id.startswith("call_") and called.status == "completed"
    jsonschema.validate(json.loads(call.arguments), WEATHER["function"]["parameters"])
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    fields = dict(tools=[TOOL], tool_choice="none")
    whole = respond(client, input=[*question, *called.output, result], **fields)
    assert whole.output_text == respond(client, input=[result], previous_response_id=called.id, **fields).output_text


def test_calls_are_streamed(client):
    fields = dict(input="Weather in Paris, 2 days?", tools=[TOOL], tool_choice={"type": "function", "name": "get_weather"})
    events = list(respond(client, **fields, max_output_tokens=80, parallel_tool_calls=False, stream=True))
    arguments = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    (item,) = [item for item in events[-1].response.output if item.type == "function_call"]
    assert arguments == done.arguments == item.arguments and json.loads(arguments)["city"]


def test_answers_have_a_form(client):
    form = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    formed = respond(client, input="A person.", text=form, max_output_tokens=90)
    jsonschema.validate(json.loads(formed.output_text), PERSON)
    loose = respond(client, input="A cat as JSON.", text={"format": {"type": "json_object"}}, max_output_tokens=40)
    assert isinstance(json.loads(loose.output_text), dict)

    class Cat(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)

    parsed = client.responses.parse(model=MODEL, input="A cat.", text_format=Cat, max_output_tokens=40, temperature=0)
    assert isinstance(parsed.output_parsed, Cat)


def test_logprobs_are_included_where_they_are_asked_for(client):
    answer = respond(client, include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=4)
    logprobs = answer.output[0].content[0].logprobs
    assert "".join(entry.token for entry in logprobs) == answer.output_text
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs)


def test_what_is_not_there_is_refused_by_name(client):
    for name, value in {
        "background": True,
        "conversation": "conv_1",
        "max_tool_calls": 1,
        "truncation": "auto",
        "prompt": {"id": "p"},
        "include": ["file_search_call.results"],
        "tools": [{"type": "web_search"}],
        "reasoning": {"effort": "high"},
        "text": {"verbosity": "low"},
        "service_tier": "flex",
        "temperature": 9,
        "context_management": [{"type": "compaction"}],
        "moderation": {"model": "m"},
    }.items():
        with pytest.raises(openai.BadRequestError) as refused:
            respond(client, **{name: value})
        assert refused.value.param.startswith(f"/{name}"), refused.value


async def test_the_asynchronous_client_gets_the_same(client, async_client):
    whole = respond(client)
    assert (await respond(async_client)).output_text == whole.output_text
    deltas = [e.delta async for e in await respond(async_client, stream=True) if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text


def test_what_a_response_was_made_of_is_listed_and_counted(client):
    first = client.responses.create(model=MODEL, input="Say one.", max_output_tokens=4)
    second = client.responses.create(model=MODEL, input="Say two.", max_output_tokens=4, previous_response_id=first.id)
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.content[0].text for item in items] == ["Say one.", first.output_text, "Say two."]
    counted = client.responses.input_tokens.count(model=MODEL, input="Say one.")
    assert counted.input_tokens == first.usage.input_tokens
