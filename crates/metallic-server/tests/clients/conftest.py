"""Where the server is, and what the suites ask it for. `cargo xtask clients` starts one and runs them."""

import os

import httpx
import openai
import pytest

BASE = os.environ["METALLIC_URL"]
KEY = os.environ["METALLIC_KEY"]
MODEL = os.environ["METALLIC_MODEL"]
# Another name of the same model.
ALIAS = os.environ["METALLIC_ALIAS"]
# What the server was started with.
CONTEXT, BODY_BYTES, REQUESTS = 4096, 1 << 20, 24

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
CLOCK = {
    "type": "function",
    "function": {"name": "get_time", "description": "The time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
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


@pytest.fixture(scope="session")
def client():
    return openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0, timeout=120)


@pytest.fixture
async def async_client():
    async with openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def http():
    """Requests as they go over the wire."""
    with httpx.Client(base_url=BASE, headers={"Authorization": f"Bearer {KEY}"}, timeout=120) as client:
        yield client


def ask(client, **fields):
    """A short answer, always the same, unless the fields say otherwise."""
    fields = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0, **fields}
    return client.chat.completions.create(**fields)


def tokens_of(http, text):
    """The tokens of a text, of which special ones may be a part."""
    reply = http.post("/tokenize", json={"model": MODEL, "content": text, "add_special": False})
    return reply.json()["tokens"]
