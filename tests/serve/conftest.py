"""Studies in a fresh database, on SQLite and on a real PostgreSQL."""

import uuid

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from blindstep.serve.app import create_app
from blindstep.serve.database import Database
from postgres import postgres
from serving import SECRETS, Bench, fresh_settings


@pytest.fixture(scope="session")
def server():
    with postgres("fsync=off") as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """The address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/votes.db"
    return request.getfixturevalue("empty_postgres")


@pytest.fixture
def empty_postgres(server):
    """The address of an empty database in PostgreSQL."""
    name = f"t{uuid.uuid4().hex}"
    engine = sa.create_engine(
        server.url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    yield f"{server.url.rpartition('/')[0]}/{name}"
    with engine.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@pytest.fixture
def bench(url):
    """A database with its tables, and what tests do with it."""
    database = Database(url)
    database.migrate()
    database.check(SECRETS)
    made = Bench(database)
    yield made
    database.close()


@pytest.fixture
def client(tmp_path):
    """A service over HTTP with an admin's token; what nobody expects is raised in the test."""
    with TestClient(create_app(fresh_settings(tmp_path))) as opened:
        token = opened.app.state.service.access.create("admin", None, "test")[1]
        opened.headers["Authorization"] = f"Bearer {token}"
        yield opened
