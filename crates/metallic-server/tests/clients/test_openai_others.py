"""The `openai` package against the other endpoints, and the errors that it knows."""

import base64
import json
import struct

import openai
import pytest

from conftest import ALIAS, BASE, BODY_BYTES, CONTEXT, KEY, MODEL, REQUESTS, ask


def test_embeddings_are_vectors_of_length_one(client):
    texts = ["The cat sat.", "A dog barked."]
    answer = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    floats = answer.data
    assert answer.object == "list" and answer.model == MODEL and answer.usage.total_tokens == answer.usage.prompt_tokens > 0
    assert [(item.object, item.index) for item in floats] == [("embedding", 0), ("embedding", 1)]
    assert all(abs(sum(x * x for x in item.embedding) - 1) < 1e-3 for item in floats)
    # The package asks for base64 by itself where nothing is said.
    coded = client.embeddings.create(model=MODEL, input=texts).data
    assert all(abs(a - b) < 1e-6 for a, b in zip(coded[1].embedding, floats[1].embedding, strict=True))
    raw = client.embeddings.with_raw_response.create(model=MODEL, input="x", encoding_format="base64")
    text = json.loads(raw.text)["data"][0]["embedding"]
    width = len(floats[0].embedding)
    assert len(struct.unpack(f"<{width}f", base64.b64decode(text))) == width
    assert client.embeddings.create(model=MODEL, input="x", dimensions=width).data
    for wrong in (dict(input=""), dict(input=[]), dict(input="x", dimensions=3), dict(input="word " * 2 * CONTEXT)):
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model=MODEL, **wrong)


def test_models_are_listed(client):
    models = {model.id: model for model in client.models.list()}
    assert set(models) == {MODEL, ALIAS}
    assert models[MODEL].object == "model" and models[MODEL].created > 0 and models[MODEL].owned_by
    assert client.models.retrieve(ALIAS).id == ALIAS
    assert ask(client, model=ALIAS).choices[0].message.content == ask(client).choices[0].message.content
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_completions_continue_text(client):
    fields = dict(model=MODEL, prompt="Once upon a time", max_tokens=8, temperature=0)
    answer = client.completions.create(**fields, logprobs=2)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-") and answer.usage.completion_tokens == 8
    assert answer.choices[0].text and answer.choices[0].finish_reason == "length"
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == 8
    chunks = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == answer.choices[0].text
    assert chunks[-1].usage.total_tokens == answer.usage.total_tokens
    echoed = client.completions.create(**{**fields, "max_tokens": 0}, echo=True, logprobs=0).choices[0]
    assert echoed.text == fields["prompt"] and echoed.logprobs.token_logprobs[0] is None
    several = client.completions.create(**{**fields, "prompt": ["One, two,", "Red, green,"]}, n=2).choices
    assert [choice.index for choice in several] == [0, 1, 2, 3]
    assert several[0].text == several[1].text != several[2].text == several[3].text


def test_errors_of_requests_are_those_the_package_knows(client):
    for name, value in {
        "temperature": 9,
        "no_such_field": 1,
        "messages": [],
        "n": 0,
        "max_tokens": "many",
        "stop": [1],
        "store": True,
        "stream_options": {"include_usage": True},
        "top_logprobs": 2,
        "logit_bias": {"x": 1},
        "service_tier": "flex",
        "reasoning_effort": "high",
        "verbosity": "low",
        "prediction": {"type": "content", "content": "x"},
        "audio": {"voice": "v", "format": "wav"},
        "moderation": {"model": "m"},
        "prompt_cache_options": {"mode": "explicit"},
        "messages/0/content": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}],
    }.items():
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, extra_body={name.split("/")[0]: value})
        error = refused.value
        assert error.param.startswith(f"/{name}") and error.type == "invalid_request_error" and error.code, name
        assert error.request_id.startswith("req_") and KEY not in str(error)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, messages=[{"role": "user", "content": "word " * 2 * CONTEXT}])
    assert refused.value.code == "context_length_exceeded" and str(CONTEXT) in str(refused.value)


def test_who_has_no_key_or_asks_for_nothing_that_is_there_is_told_so(client):
    for key in ("wrong", KEY + "x", KEY[:-1]):
        stranger = openai.OpenAI(base_url=f"{BASE}/v1", api_key=key, max_retries=0)
        with pytest.raises(openai.AuthenticationError) as refused:
            stranger.models.list()
        assert refused.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            ask(stranger, stream=True)
    with pytest.raises(openai.NotFoundError) as refused:
        ask(client, model="nobody")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "/model")
    for absent in (client.files.list, client.vector_stores.list, lambda: client.moderations.create(input="x")):
        with pytest.raises(openai.NotFoundError):
            absent()


def test_bodies_that_are_too_large_are_refused(client):
    with pytest.raises(openai.APIStatusError) as refused:
        ask(client, messages=[{"role": "user", "content": "x" * BODY_BYTES}])
    assert (refused.value.status_code, refused.value.code) == (413, "body_too_large")


async def test_who_comes_too_many_is_told_when_to_come_back(async_client):
    fields = dict(stream=True, max_tokens=2000, extra_body={"ignore_eos": True})
    streams = [await ask(async_client, **fields) for _ in range(REQUESTS)]
    try:
        with pytest.raises(openai.RateLimitError) as refused:
            await ask(async_client)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert (refused.value.type, refused.value.code) == ("rate_limit_error", "rate_limit_exceeded")
        # What only reads goes on.
        assert await async_client.models.retrieve(MODEL)
    finally:
        for stream in streams:
            await stream.close()
    # With room again, a client that comes back by itself is answered.
    assert await ask(async_client.with_options(max_retries=3))
