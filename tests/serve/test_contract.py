"""Schemathesis: what the API's own description allows, and much that it does not, gets no 500."""

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from serving import fresh_settings

from blindstep.serve.app import create_app

schema = schemathesis.pytest.from_fixture("described")


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    app = create_app(fresh_settings(tmp_path_factory.mktemp("contract")))
    with TestClient(app):  # its threads run as long as this
        made = schemathesis.openapi.from_asgi("/openapi.json", app)
        made.token = app.state.service.access.create("admin", None, "contract")[1]
        yield made


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_nothing_that_is_described_makes_the_api_fail(case, described):
    headers = {"Authorization": f"Bearer {described.token}"}
    response = case.call(headers=headers)
    case.validate_response(response, checks=(not_a_server_error,))
    assert response.status_code in {int(code) for code in case.operation.responses if code.isdigit()} | {404, 405}  # noqa: E501
