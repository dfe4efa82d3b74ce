"""The `openai` package against `/v1/chat/completions`: text, and what can be asked of it."""

import asyncio
import time

import openai
import pytest

from conftest import BASE, HELLO, KEY, MODEL, ask, tokens_of


def text_of(answer):
    return answer.choices[0].message.content


def counted(usage):
    return (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)


def test_chat_answers_with_usage_and_reason(client):
    before = int(time.time())
    answer = ask(client)
    assert answer.object == "chat.completion" and answer.model == MODEL and answer.id.startswith("chatcmpl-")
    assert before <= answer.created <= time.time() and answer.system_fingerprint.startswith("metallic-")
    assert answer.service_tier == "default"
    choice = answer.choices[0]
    assert choice.index == 0 and choice.logprobs is None
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.message.refusal is None and choice.message.tool_calls is None
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens > 0 and 0 < answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 0 <= answer.usage.prompt_tokens_details.cached_tokens < answer.usage.prompt_tokens
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    assert ask(client).id != answer.id


def test_answers_end_where_they_are_told_to(client):
    for name in ("max_tokens", "max_completion_tokens"):
        fields = {"max_tokens": None, name: 3}
        cut = ask(client, **fields)
        assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 3)
    text = text_of(ask(client, max_tokens=24))
    word = text.split()[1]
    for stop in (word, [word], ["never to be said", word]):
        cut = ask(client, max_tokens=24, stop=stop).choices[0]
        assert cut.finish_reason == "stop" and cut.message.content == text.split(word)[0]
    chunks = list(ask(client, max_tokens=24, stop=[word], stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text.split(word)[0]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_streams_are_the_same_answer_with_usage_at_the_end(client):
    whole = ask(client, seed=3)
    chunks = list(ask(client, seed=3, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text_of(whole)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1])
    assert chunks[-1].choices == []
    assert counted(chunks[-1].usage) == counted(whole.usage)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    for of in (lambda c: c.id, lambda c: c.created, lambda c: c.model, lambda c: c.object, lambda c: c.system_fingerprint):
        assert len(set(map(of, chunks))) == 1
    assert chunks[0].object == "chat.completion.chunk" and chunks[0].id.startswith("chatcmpl-")
    assert all(chunk.usage is None and chunk.choices for chunk in ask(client, stream=True))


def test_a_stream_that_is_left_does_not_hold_the_next_up(client):
    with ask(client, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    assert text_of(ask(client))


def test_the_stream_helper_gathers_what_create_gives(client):
    # The helper takes no answer that was cut for its length.
    fields = dict(model=MODEL, messages=HELLO, max_tokens=200, temperature=0)
    with client.chat.completions.stream(**fields, logprobs=True, stream_options={"include_usage": True}) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    whole = ask(client, max_tokens=200, logprobs=True)
    assert text_of(final) == text_of(whole) and final.usage.total_tokens == whole.usage.total_tokens
    assert "".join(event.delta for event in events if event.type == "content.delta") == text_of(whole)
    (done,) = [event for event in events if event.type == "content.done"]
    assert done.content == text_of(whole)
    assert [t.token for t in final.choices[0].logprobs.content] == [t.token for t in whole.choices[0].logprobs.content]


def test_several_choices_and_seeds(client):
    fields = dict(n=3, temperature=1.0, seed=5)
    answer = ask(client, **fields)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2] and len(set(texts)) > 1
    assert [choice.message.content for choice in ask(client, **fields).choices] == texts
    assert [choice.message.content for choice in ask(client, **{**fields, "seed": 6}).choices] != texts
    streamed = ["", "", ""]
    for chunk in ask(client, **fields, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_logprobs_come_with_bytes(client):
    answer = ask(client, logprobs=True, top_logprobs=3, max_tokens=4)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        logprobs = [top.logprob for top in token.top_logprobs]
        assert logprobs == sorted(logprobs, reverse=True)
        # The best one is what a temperature of nothing takes.
        assert (token.token, token.logprob) == (token.top_logprobs[0].token, token.top_logprobs[0].logprob)
        assert bytes(token.bytes).decode(errors="replace") == token.token
    assert "".join(token.token for token in tokens) == text_of(answer)
    plain = ask(client, logprobs=True, max_tokens=4).choices[0].logprobs.content
    assert [t.logprob for t in plain] == [t.logprob for t in tokens] and not any(t.top_logprobs for t in plain)
    streamed = []
    for chunk in ask(client, logprobs=True, top_logprobs=3, max_tokens=4, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [(t.token, t.logprob) for t in streamed] == [(t.token, t.logprob) for t in tokens]


def test_bias_and_penalties_change_the_answer(client, http):
    first = lambda **fields: ask(client, max_tokens=1, logprobs=True, **fields).choices[0].logprobs.content[0].token
    token = first()
    (banned,) = tokens_of(http, token)
    assert first(logit_bias={str(banned): -100}) != token
    (wanted,) = tokens_of(http, "cat")
    assert text_of(ask(client, max_tokens=3, logit_bias={str(wanted): 100})) == "catcatcat"
    messages = [{"role": "user", "content": "Repeat the word no many times: no no no no"}]
    plain = text_of(ask(client, messages=messages, max_tokens=32))
    for penalty in ("frequency_penalty", "presence_penalty"):
        assert text_of(ask(client, messages=messages, max_tokens=32, **{penalty: 2.0})) != plain


def test_conversations_may_have_every_role_and_form(client):
    parts = [{"type": "text", "text": "What is my name?"}, {"type": "text", "text": "Answer shortly."}]
    messages = [
        {"role": "developer", "content": "You are kind."},
        {"role": "user", "content": "My name is Ada.", "name": "ada"},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello Ada."}]},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None, "refusal": "I would rather not."},
        {"role": "user", "content": parts},
    ]
    assert text_of(ask(client, messages=messages))
    with_system = [{"role": "system", "content": "You are kind."}, *messages[1:]]
    assert text_of(ask(client, messages=with_system)) == text_of(ask(client, messages=messages))


def test_an_answer_goes_back_as_the_package_has_it(client):
    answer = ask(client)
    for said in (answer.choices[0].message, answer.choices[0].message.model_dump()):
        assert text_of(ask(client, messages=[*HELLO, said, {"role": "user", "content": "Again."}]))


def test_what_changes_no_answer_is_taken(client):
    fields = dict(
        user="ada",
        metadata={"of": "tests"},
        safety_identifier="a1",
        prompt_cache_key="k",
        prompt_cache_options={"mode": "implicit"},
        service_tier="auto",
        store=False,
        parallel_tool_calls=True,
        modalities=["text"],
        verbosity="medium",
        reasoning_effort="none",
        response_format={"type": "text"},
        n=1,
        top_p=1,
        frequency_penalty=0,
        presence_penalty=0,
        logprobs=False,
        stop=[],
        logit_bias={},
        tools=[],
    )
    assert text_of(ask(client, **fields)) == text_of(ask(client))


def test_raw_responses_have_headers_and_the_same_answer(client):
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=12, temperature=0)
    assert raw.status_code == 200 and raw.headers["content-type"] == "application/json"
    assert raw.headers["x-request-id"].startswith("req_")
    assert text_of(raw.parse()) == text_of(ask(client))
    streaming = client.chat.completions.with_streaming_response
    with streaming.create(model=MODEL, messages=HELLO, max_tokens=4, stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"


async def test_the_asynchronous_client_gets_the_same(client, async_client):
    assert text_of(await ask(async_client)) == text_of(ask(client))
    stream = await ask(async_client, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == text_of(ask(client))


async def test_many_at_once_get_what_each_gets_alone(client, async_client):
    fields = [dict(messages=[{"role": "user", "content": f"Count to {i}."}], max_tokens=8) for i in range(12)]
    crowd = await asyncio.gather(*(ask(async_client, **field) for field in fields))
    assert list(map(text_of, crowd)) == [text_of(ask(client, **field)) for field in fields]


def test_a_client_without_retries_is_its_own_and_one_with_them_comes_back():
    """The package reads the key, the address and what to wait for by itself."""
    client = openai.OpenAI(base_url=f"{BASE}/v1/", api_key=KEY, max_retries=2, timeout=60, organization="o", project="p")
    assert text_of(ask(client, max_tokens=1))
    with pytest.raises(openai.APITimeoutError):
        ask(client.with_options(timeout=0.05, max_retries=0), max_tokens=500, extra_body={"ignore_eos": True})
    assert text_of(ask(client, max_tokens=1))
