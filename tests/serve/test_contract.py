"""Schemathesis: whatever the API's own description allows, and much that it does not, gets no 500."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance
from serving import SPEC

from blindstep.serve.app import create_app
from blindstep.serve.config import Settings
from blindstep.serve.database import Database

schema = schemathesis.pytest.from_fixture("described")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("contract")


@pytest.fixture(scope="module")
def described(folder):
    key = folder / "key"
    key.write_text("33" * 32)
    key.chmod(0o600)
    given = Settings(
        database=f"sqlite:///{folder}/votes.db", key_file=str(key), anonymous_per_second=1e6
    )
    database = Database(given.database)
    database.migrate()
    database.close()
    app = create_app(given)
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@schema.parametrize()
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_nothing_that_the_api_describes_makes_it_fail(case):
    case.call_and_validate(checks=(not_a_server_error, status_code_conformance))
