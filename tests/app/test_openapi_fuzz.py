"""What schemathesis makes of the OpenAPI document: requests that fit it and requests that don't, to a server process.

Every answer has a status, a media type and a body that the document tells of, and none is the server's own failure.
"""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from app.main import create_app
from app.settings import Settings
from pushforward.wire import codecs
from tests.app.serving import serving

pytestmark = pytest.mark.slow

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]


@schemathesis.serializer(*(c.media_type for c in codecs().values() if c.media_type != "application/json"))
def as_bytes(ctx, value):
    """The document says of binary bodies no more than that they are bytes, so all of these are malformed."""
    return value if isinstance(value, bytes) else json.dumps(value).encode()


X = [[[0.1, 0.2, 0.3, 0.4]] * 3] * 2
FITTING = {
    "model": "stacked-rnn",
    "inputs": {"x": X},
    "tangents": {"x": X},
    "cotangents": {"y": X},
    "of": "y[-1]",
    "wrt": ["x"],
    "timeout_s": 60,  # So that nothing is late, which the document allows and the checks don't.
}


def fit(case):
    """Let a request be about the model that is there: half of them in all that fits its document, else in its name."""
    body = dict(case.body)
    if case.meta.generation.mode is schemathesis.GenerationMode.POSITIVE:
        mine = FITTING | ({"wrt": "x[0]"} if "of" in body else {})
        case.body = body | {name: value for name, value in mine.items() if name in body}
    elif body.get("model") and isinstance(body["model"], str):
        case.body = body | {"model": FITTING["model"]}


@pytest.fixture(scope="module")
def server():
    with serving(models="stacked-rnn", compiled_programs=0, warm="false") as server:
        yield server


api = schemathesis.openapi.from_dict(create_app(Settings()).openapi())


@api.parametrize()
@settings(max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_documented(case, server):
    if isinstance(case.body, dict):
        fit(case)
    case.call_and_validate(server.url, checks=CHECKS, timeout=60)
