"""Where the server is. Run by hand: METALLIC_URL=http://127.0.0.1:8080 METALLIC_KEY=key METALLIC_MODEL=smollm2 pytest; not all of it passes yet."""

import os

import pytest

BASE = os.environ["METALLIC_URL"]
KEY = os.environ["METALLIC_KEY"]
MODEL = os.environ["METALLIC_MODEL"]


@pytest.fixture(scope="session")
def client():
    import openai

    return openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0, timeout=120)
