"""Starting, keys, schemas, commands, the client: what an operator meets."""

import copy
import io
import json
import logging
import os
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import sqlalchemy as sa
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from blindstep.cli import app
from blindstep.errors import InvalidArgument, SecretCopied
from blindstep.insight.hand_over_seal import check
from blindstep.serve import Client, Refused, keys, schema
from blindstep.serve.access import Access, LastAdmin
from blindstep.serve.database import Database, SchemaUnknown
from blindstep.serve.keys import Secrets
from blindstep.serve.observe import JsonLines
from blindstep.serve.service import Settings
from blindstep.serve.sessions import Sessions
from serving import SECRETS, Bench, spec


def test_a_key_file_is_made_once_and_for_its_owner_only(tmp_path):
    path = tmp_path / "secret" / "key"
    made = keys.from_file(path, make=True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert keys.from_file(path, make=True).name == made.name
    path.chmod(0o640)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        keys.from_file(path)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        keys.from_file(tmp_path / "none")
    for text in ("", "12", "zz" * 32, "11" * 33):
        with pytest.raises(InvalidArgument):
            keys.from_text(text)


def test_keys_cannot_be_copied_or_seen():
    with pytest.raises(SecretCopied):
        copy.copy(SECRETS)
    assert repr(SECRETS) == "Secrets(secret)"


def test_no_two_votes_are_sealed_under_the_same_nonce():
    address = keys.Address(1, 0, bytes(16), 0)
    sealed = {SECRETS.seal(address, 1.0)[:12] for _ in range(2_000)}
    assert len(sealed) == 2_000


def test_a_database_is_served_with_its_own_key_only(url):
    database = Database(url)
    database.migrate()
    database.check(SECRETS)
    database.check(SECRETS)
    with pytest.raises(InvalidArgument, match="does not belong"):
        database.check(Secrets(bytes(32)))
    database.close()


def test_the_files_of_a_database_are_for_their_owner_only(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/votes.db")
    database.migrate()
    with database.begin() as connection:
        connection.exec_driver_sql("SELECT 1")
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    database.close()
    assert {"votes.db", "votes.db-wal"} <= set(modes)
    assert set(modes.values()) == {0o600}


def test_an_unknown_schema_is_refused(url):
    database = Database(url)
    with pytest.raises(SchemaUnknown, match="none"):
        database.check(SECRETS)
    database.migrate()
    database.migrate()  # nothing to do
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    for refused in (database.migrate, lambda: database.check(SECRETS)):
        with pytest.raises(SchemaUnknown, match="9999"):
            refused()
    database.close()


def test_a_database_of_something_else_is_refused(url):
    database = Database(url)
    with database.begin() as connection:
        connection.execute(sa.text("CREATE TABLE other (x INTEGER)"))
    with pytest.raises(SchemaUnknown, match="not this service's"):
        database.migrate()
    database.close()


def test_migrations_make_the_tables_that_the_code_uses(url):
    database = Database(url)
    database.migrate()
    with database.read() as connection:
        found = sa.inspect(connection)
        tables = set(found.get_table_names()) - {"alembic_version"}
        assert tables == set(schema.metadata.tables)
        for name, table in schema.metadata.tables.items():
            columns = {column["name"]: column["nullable"] for column in found.get_columns(name)}
            assert columns == {column.name: column.nullable for column in table.columns}
            keyed = found.get_pk_constraint(name)["constrained_columns"]
            assert keyed == [column.name for column in table.primary_key]
    database.close()


def test_neither_tokens_nor_votes_nor_people_are_in_the_database(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/votes.db")
    database.migrate()
    database.check(SECRETS)
    bench = Bench(database)
    study, number = bench.create()
    token = Access(database, SECRETS).create("site", study, "a label")[1]
    bench.ask(study, "anna.karenina")
    bench.answer(number, 0, {("anna.karenina", 0): 0.123456789})
    database.close()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert study.encode() in content
    for secret in (
        token.encode(),
        b"anna.karenina",
        struct.pack("<d", 0.123456789),
        bytes(range(32)),
    ):
        assert secret not in content


def test_the_environment_holds_the_settings():
    chosen = Settings(database="sqlite:///x.db", origins=("https://a", "https://b"), body_bytes=7)
    assert Settings.from_environment(chosen.environment()) == chosen
    with pytest.raises(InvalidArgument, match="BLINDSTEP_BODY_BYTES"):
        Settings.from_environment({"BLINDSTEP_BODY_BYTES": "many"})
    assert Settings.from_environment({"BLINDSTEP_SECURE_COOKIES": "on"}).secure_cookies
    with pytest.raises(InvalidArgument, match="BLINDSTEP_SECURE_COOKIES"):
        Settings.from_environment({"BLINDSTEP_SECURE_COOKIES": "perhaps"})
    with pytest.raises(InvalidArgument, match="mysql"):
        Database("mysql://somewhere/x")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        Database("not an address")


def test_the_commands_make_tokens_migrate_and_restore(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return CliRunner().invoke(app, ["serve", *words])

    assert run("migrate").stdout == f"schema {schema.REVISION}\n"
    token = run("token", "--label", "x").stdout.strip()
    settings = Settings()
    database = Database(settings.database)
    access = Access(database, settings.secrets())
    assert access.has_admin()
    who = access.look_up(settings.secrets().token_name(token))
    assert who.scope == "admin"
    cookie = Sessions(database, settings.secrets()).open(who, who.id)
    assert run("sign-out").stdout == "Ended 1 sessions.\n"
    assert Sessions(database, settings.secrets()).holder(cookie) is None
    database.close()
    assert "No study goes on: none was open" in run("restored").stdout
    assert run("token", "--scope", "site").exit_code == 2
    os.chmod("blindstep.key", 0o644)
    assert run("migrate").exit_code == 2


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "blindstep.serve.service", None)
    said = CliRunner().invoke(app, ["serve"])
    assert said.exit_code == 2
    assert "pip install '.[serve]'" in said.stderr


@pytest.fixture
def access(url):
    """Tokens and sessions of an empty database."""
    database = Database(url)
    database.migrate()
    database.check(SECRETS)
    yield Access(database, SECRETS), Sessions(database, SECRETS)
    database.close()


def test_a_session_ends_with_its_token_and_cannot_be_forged(access):
    tokens, sessions = access
    tokens.create("admin", None, "")
    name, token = tokens.create("admin", None, "Anna's")
    who = tokens.look_up(SECRETS.token_name(token))
    cookie = sessions.open(who, name)
    assert (sessions.holder(cookie).id, sessions.holder(cookie).label) == (name, "Anna's")
    for place in (0, len(cookie) // 2, len(cookie) - 1):
        letter = "0" if cookie[place] != "0" else "1"
        assert sessions.holder(cookie[:place] + letter + cookie[place + 1 :]) is None
    assert sessions.open(who._replace(scope="site"), name) is None
    assert tokens.look_up(SECRETS.token_name(cookie)) is None  # a cookie is no token
    assert sessions.holder(token) is None
    tokens.revoke(name)
    assert sessions.holder(cookie) is None
    # Nor where a version that knows no sessions has revoked it.
    cookie = sessions.open(who, name)
    assert sessions.holder(cookie) is None


def test_signing_out_ends_a_session_and_no_other_one(access):
    tokens, sessions = access
    who = tokens.look_up(SECRETS.token_name(tokens.create("admin", None, "")[1]))
    one, two = sessions.open(who, who.id), sessions.open(who, who.id)
    sessions.close(one)
    assert sessions.holder(one) is None
    assert sessions.holder(two) == who
    assert sessions.close_all() == 1
    assert sessions.holder(two) is None


def test_a_session_ends_after_hours(access, monkeypatch):
    tokens, sessions = access
    who = tokens.look_up(SECRETS.token_name(tokens.create("admin", None, "")[1]))
    with_token, without = sessions.open(who, who.id), sessions.open(who)
    now = time.time()
    for hours, there in ((3.9, [True, True]), (4.1, [True, False]), (12.1, [False, False])):
        monkeypatch.setattr(time, "time", lambda hours=hours: now + 3600 * hours)
        found = [sessions.holder(each) is not None for each in (with_token, without)]
        assert found == there
    sessions.open(who)
    assert sessions.close_all() == 1  # those that had ended are deleted


def test_the_last_admin_token_is_not_revoked(access):
    tokens, _ = access
    first, second = (tokens.create("admin", None, "")[0] for _ in range(2))
    viewer = tokens.create("viewer", None, "")[0]
    assert tokens.revoke(first)
    assert not tokens.revoke(first)
    with pytest.raises(LastAdmin, match="make another one first"):
        tokens.revoke(second)
    assert tokens.has_admin()
    assert tokens.revoke(viewer)


def test_of_two_admins_who_revoke_each_other_one_is_refused(access):
    tokens, _ = access
    for _ in range(5):
        for each in tokens.all()[1:]:
            tokens.revoke(each.id)
        tokens.create("admin", None, "")
        while len(tokens.all()) < 2:
            tokens.create("admin", None, "")
        names, together, refused = [each.id for each in tokens.all()], threading.Barrier(2), []

        def revoke(name, together=together, refused=refused):
            together.wait(60)
            try:
                tokens.revoke(name)
            except LastAdmin:
                refused.append(name)

        both = [threading.Thread(target=revoke, args=(name,)) for name in names]
        for each in both:
            each.start()
        for each in both:
            each.join(60)
        assert len(refused) == len(tokens.all()) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"parameters": []},
        {"parameters": [{"name": "a b", "low": 0, "high": 1}]},
        {"parameters": [{"name": "a", "low": 1, "high": 1}]},
        {"parameters": [{"name": "a", "low": 0, "high": 1, "start": 2}]},
        {"parameters": [{"name": "a", "low": 0, "high": 1}] * 2},
        {"people": 15},
        {"people": 1_000, "people_per_step": 1_001},
        {"people": 10_000, "people_per_step": 9},
        {"window_seconds": 0.5},
        {"neighbours": "add"},
        {"epsilon": 0},
        {"delta": 0.5},
        {"answer": {"kind": "number"}},
        {"answer": {"kind": "vote", "low": 0}},
        {"answer": {"kind": "rating", "low": 0.5, "high": 3}},
        {"typo": 1},
    ],
)
def test_a_study_that_makes_no_sense_is_refused(changed):
    with pytest.raises(ValidationError):
        spec(**changed)


def test_answers_become_losses_from_0_to_1():
    vote, rating = spec().answer, spec(answer={"kind": "rating"}).answer
    assert [vote.loss(v) for v in (1, 0, 0.5, 2)] == [0.0, 1.0, None, None]
    assert [rating.loss(v) for v in (5, 3, 1, 0, 2.5)] == [0.0, 0.5, 1.0, None, None]
    time = spec(answer={"kind": "number", "low": 0, "high": 10, "better": "lower"}).answer
    assert [time.loss(v) for v in (0, 2.5, 10, 10.1)] == [0.0, 0.25, 1.0, None]


def test_a_log_line_holds_allowed_fields_only():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    log = logging.Logger("test")
    log.addHandler(handler)
    log.info("released %s", "secret", extra={"step": 3, "person": "anna"})
    line = json.loads(stream.getvalue())
    assert (line["event"], line["step"]) == ("released %s", 3)
    assert "anna" not in stream.getvalue()
    assert "secret" not in stream.getvalue()


@pytest.fixture
def moody():
    """A server that is busy twice, then answers; on another path it always refuses."""
    seen = []

    class Moody(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.path)
            status = 410 if self.path == "/v1/answers" else 503 if len(seen) < 3 else 200
            body = {"error": {"code": "late", "message": "too late."}} if status == 410 else {}
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Moody)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_client_tries_again_while_the_service_is_busy(moody):
    address, seen = moody
    with Client(address, "token") as client:
        assert client.ask("00", "anna") == {}
        assert len(seen) == 3
        with pytest.raises(Refused, match="too late") as refused:
            client.answer("token", 1)
    assert (refused.value.status, refused.value.code) == (410, "late")


def test_the_client_says_that_nobody_answers():
    with Client("http://127.0.0.1:9", patience=0.0) as client:
        with pytest.raises(Refused) as refused:
            client.parameters("00")
        assert refused.value.code == "unreachable"
    with pytest.raises(InvalidArgument):
        Client("127.0.0.1:8000")


def test_a_finished_study_can_be_handed_over(tmp_path):
    """People are the unit, and no vote, identifier or key is in the folder."""
    master = bytes(range(32)).hex()  # of SECRETS
    (tmp_path / "key").write_text(master)
    (tmp_path / "key").chmod(0o600)
    database = f"sqlite:///{tmp_path}/votes.db"
    bench = Bench(Database(database))
    bench.database.migrate()
    bench.database.check(SECRETS)
    study, number = bench.create()
    called = ["serve", "hand-over", study, "--to", str(tmp_path / "folder")]
    called += ["--database", database, "--key-file", str(tmp_path / "key")]
    unfinished = CliRunner().invoke(app, called)
    assert unfinished.exit_code == 2
    assert "last step" in unfinished.output
    bench.run(study, number)
    bench.database.close()
    said = CliRunner().invoke(app, called)
    assert said.exit_code == 0, said.output
    assert "Not answered yet" in said.output
    record = yaml.safe_load((tmp_path / "folder" / "registry.yaml").read_text())["deployment"]
    assert record["basic"]["name"] == "colours"
    assert "person" in record["privacy_loss"]["privacy_unit"]
    assert check(tmp_path / "folder").files >= 8
    content = b"".join(path.read_bytes() for path in (tmp_path / "folder").iterdir())
    assert master.encode() not in content
    assert bytes(range(32)) not in content
    assert SECRETS.person(study, "0-0").hex().encode() not in content
