"""What goes over the wire, beneath every package: headers, methods, fields that are null, errors as JSON."""

import json
import typing

import anthropic.types.message_create_params
import openai.types.chat.completion_create_params
import openai.types.completion_create_params
import openai.types.embedding_create_params
import openai.types.responses.response_create_params
import pytest

from conftest import HELLO, KEY, MODEL

CHAT = "/v1/chat/completions"
# A short request of each endpoint, and the fields that the packages have for it.
REQUESTS = {
    CHAT: (
        {"model": MODEL, "messages": HELLO, "max_tokens": 1},
        openai.types.chat.completion_create_params.CompletionCreateParamsNonStreaming,
    ),
    "/v1/completions": (
        {"model": MODEL, "prompt": "Hello", "max_tokens": 1},
        openai.types.completion_create_params.CompletionCreateParamsNonStreaming,
    ),
    "/v1/embeddings": (
        {"model": MODEL, "input": "Hello"},
        openai.types.embedding_create_params.EmbeddingCreateParams,
    ),
    "/v1/responses": (
        {"model": MODEL, "input": "Hello", "max_output_tokens": 1},
        openai.types.responses.response_create_params.ResponseCreateParamsNonStreaming,
    ),
    "/v1/messages": (
        {"model": MODEL, "messages": HELLO, "max_tokens": 1},
        anthropic.types.message_create_params.MessageCreateParamsNonStreaming,
    ),
}


def is_error(reply, status, path=CHAT):
    """Whether it is an error in the shape of the API that the path belongs to."""
    assert reply.status_code == status and reply.headers["content-type"] == "application/json", reply.text
    error = reply.json()["error"]
    assert error["message"] and error["type"] and reply.headers["x-request-id"].startswith("req_")
    if path.startswith("/v1/messages"):
        assert reply.json()["type"] == "error" and reply.json()["request_id"] == reply.headers["request-id"]
    else:
        assert set(error) == {"message", "type", "param", "code"}
    return error


def test_null_is_as_good_as_nothing_for_every_field_that_the_packages_have(http):
    for path, (body, fields) in REQUESTS.items():
        # This one is sent as a header.
        names = set(typing.get_type_hints(fields)) - set(body) - {"workspace_id"}
        reply = http.post(path, json={**body, **dict.fromkeys(names)})
        assert reply.status_code == 200, f"{path}: {reply.text}"


def test_fields_that_are_not_known_are_refused_everywhere_even_if_null(http):
    for path, (body, _) in REQUESTS.items():
        for value in (None, 1, {}):
            error = is_error(http.post(path, json={**body, "unheard_of": value}), 400, path)
            assert "/unheard_of" in error["message"]


def test_fields_that_are_needed_are_missed_by_name(http):
    for path, (body, _) in REQUESTS.items():
        for name in set(body) - {"max_tokens", "max_output_tokens"}:
            for less in ({**body, name: None}, {key: value for key, value in body.items() if key != name}):
                error = is_error(http.post(path, json=less), 400, path)
                assert f"/{name}" in error["message"]


@pytest.mark.parametrize("path", REQUESTS)
def test_bodies_that_are_no_json_are_refused(http, path):
    kind = {"Content-Type": "application/json"}
    for content in (b"", b"{", b"[]", b'"x"', b"null", b'{"model": "\xff"}', b"[" * 5000):
        is_error(http.post(path, content=content, headers=kind), 400, path)
    for wrong in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data; boundary=x"}):
        is_error(http.post(path, content=b"{}", headers=wrong), 415, path)
    for kind in ("application/json; charset=utf-8", "Application/JSON"):
        is_error(http.post(path, content=b"{}", headers={"Content-Type": kind}), 400, path)


def test_paths_and_methods_that_are_not_there_are_told_in_json(http):
    for path in ("/v1/nothing", "/v2/chat/completions", "/v1/chat/completions/x", "/v1/messages/x", "/chat/completions"):
        is_error(http.get(path), 404, path)
        is_error(http.post(path, json={}), 404, path)
    for path in REQUESTS:
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS"):
            reply = http.request(method, path)
            is_error(reply, 405, path)
            assert "POST" in reply.headers["allow"]
    is_error(http.post("/v1/models", json={}), 405)
    assert http.head("/v1/models").status_code == 200 and not http.head("/v1/models").content
    assert http.head(CHAT).status_code == 405


def test_keys_are_asked_for_in_the_shape_of_each_api(http):
    for path, (body, _) in REQUESTS.items():
        for header in ("", f"Basic {KEY}", "Bearer", f"Bearer {KEY}x"):
            reply = http.post(path, json=body, headers={"Authorization": header})
            is_error(reply, 401, path)
            assert reply.headers["www-authenticate"] == "Bearer"
        assert http.post(path, json=body, headers={"Authorization": "", "x-api-key": KEY}).status_code == 200
    for path in ("/health", "/ready", "/openapi.json", "/"):
        assert http.get(path, headers={"Authorization": ""}).status_code == 200


def events(http, path, body):
    """The lines of a stream, which is of the right kind."""
    with http.stream("POST", path, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200 and reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert reply.headers["cache-control"] == "no-cache" and reply.headers["x-request-id"].startswith("req_")
        return [line for line in reply.iter_lines() if line]


def test_streams_are_events_in_the_way_of_each_api(http):
    for path in (CHAT, "/v1/completions"):
        lines = events(http, path, REQUESTS[path][0])
        assert lines[-1] == "data: [DONE]" and all(line.startswith("data: {") for line in lines[:-1])
        assert all("usage" not in json.loads(line[6:]) for line in lines[:-1])
    for path in ("/v1/responses", "/v1/messages"):
        lines = events(http, path, REQUESTS[path][0])
        for name, data in zip(lines[::2], lines[1::2], strict=True):
            assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


def test_a_stream_that_cannot_begin_is_an_error_with_its_status(http):
    for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages"):
        body = REQUESTS[path][0]
        is_error(http.post(path, json={**body, "stream": True, "model": "nobody"}), 404, path)
        is_error(http.post(path, json={**body, "stream": True, "temperature": 9}), 400, path)


def test_whole_answers_have_all_that_the_api_promises(http):
    answer = http.post(CHAT, json=REQUESTS[CHAT][0]).json()
    assert {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier"} <= set(answer)
    (choice,) = answer["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
    assert {"role", "content", "refusal", "annotations"} == set(choice["message"])
    assert {"prompt_tokens_details", "completion_tokens_details"} < set(answer["usage"])
