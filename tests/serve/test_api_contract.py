"""Schemathesis: what the API's own description allows, and much that it does not, gets no 500."""

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from blindstep.serve.app import create_app
from serving import fresh_settings


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """The API as it describes itself, with an admin token."""
    app = create_app(fresh_settings(tmp_path_factory.mktemp("contract")))
    with TestClient(app):  # its threads run as long as this
        schema = schemathesis.openapi.from_asgi("/openapi.json", app)
        yield schema, app.state.service.access.create("admin", None, "contract")[1]


def check(operation, mode, token):
    """Send what schemathesis makes of one operation, with the token and without."""
    documented = {404, 405, *(int(code) for code in operation.responses.status_codes)}

    # The same requests in every run: schemathesis draws from its own caches as well, and with another
    # seed each time hypothesis would now and then find that out and call the test flaky.
    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def answered(case):
        for headers in ({"Authorization": f"Bearer {token}"}, {}):
            response = case.call(headers=headers)
            case.validate_response(response, checks=(not_a_server_error,))
            assert response.status_code in documented

    answered()


# The run-time type checker draws the item of a list that it looks at, also while hypothesis draws.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_whatever_is_sent_the_api_answers_as_it_is_described(described, mode):
    schema, token = described
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 17
    for operation in operations:
        # What takes nothing cannot be sent anything wrong.
        takes = operation.body or operation.path_parameters
        if mode is GenerationMode.POSITIVE or takes:
            check(operation, mode, token)
