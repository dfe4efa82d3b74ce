"""schemathesis against what `/openapi.json` promises."""

import schemathesis
from hypothesis import HealthCheck, settings

from conftest import BASE, KEY

schema = schemathesis.openapi.from_url(f"{BASE}/openapi.json", headers={"Authorization": f"Bearer {KEY}"})


@schema.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_server_does_as_it_says(case):
    case.call_and_validate(headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
