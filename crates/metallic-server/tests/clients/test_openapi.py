"""schemathesis against what `/openapi.json` promises: a bounded number of requests, the same in every run."""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from conftest import BASE, KEY

HEADERS = {"Authorization": f"Bearer {KEY}"}
schema = schemathesis.openapi.from_url(f"{BASE}/openapi.json", headers=HEADERS)

# Fields that say how long an answer may be, where it may be as long as the context otherwise.
LENGTHS = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
SHORT, LONGEST = 8, 1 << 31


def shorten(path, body):
    """Makes the answer short, unless its length is what is wrong with the request."""
    names = LENGTHS.get(path)
    if not names or not isinstance(body, dict):
        return
    for name in names:
        length = body.get(name)
        if isinstance(length, (int, float)) and SHORT < length <= LONGEST and length == int(length):
            body[name] = SHORT
    # Messages must say it.
    if path != "/v1/messages" and all(body.get(name) is None for name in names):
        body[names[0]] = SHORT


@schema.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_the_server_does_as_it_says(case):
    shorten(case.path, case.body)
    # Fields that exclude each other, and what depends on the model, are nothing that a schema says: such a request is refused.
    reply = case.call_and_validate(headers=HEADERS, timeout=60, excluded_checks=[positive_data_acceptance])
    if case.meta.generation.mode == GenerationMode.POSITIVE and reply.status_code != 200:
        assert reply.status_code in (400, 404), reply.text
        error = reply.json()["error"]
        # Then it is told which field is to blame.
        assert (error.get("param") or error["message"]).startswith("/") or reply.status_code == 404, error
