"""What administrators did is written down; people are forgotten; keys and tokens are replaced."""

import time

import numpy as np
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from blindstep.cli import app
from blindstep.serve import administration, closing, keys, schema
from blindstep.serve.access import Access
from blindstep.serve.database import Database
from blindstep.serve.studies import WrongState
from blindstep.serve.voting import Status
from serving import SECRETS, SPEC


def test_whatever_an_administrator_changes_is_written_down_before_it_is_done(client):
    study = client.post("/v1/studies", json=SPEC).json()["id"]
    client.post(f"/v1/studies/{study}/pause")
    client.post(f"/v1/studies/{study}/pause")  # refused, and written down all the same
    made = client.post("/v1/tokens", json={"scope": "viewer", "label": "the auditor"}).json()
    client.delete(f"/v1/tokens/{made['id']}")
    client.post("/v1/people/forget", json={"person": "anna@example.org"})
    lines = client.get("/v1/audit").json()["lines"]
    assert [(line["action"], line["study"]) for line in lines[::-1]] == [
        ("create", None),
        ("pause", study),
        ("pause", study),
        ("make_token", None),
        ("revoke", None),
        ("forget", None),
    ]
    assert lines[1]["detail"] == made["id"]
    assert {line["label"] for line in lines} == {"test"}
    assert abs(lines[0]["at"] - time.time()) < 60
    assert "anna" not in str(lines)


def test_every_route_that_changes_something_for_an_administrator_is_in_the_log(client):
    """By construction: the same dependency lets them in and writes the line."""
    asked = {"questions", "answers", "bulk", "login", "logout"}
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in set(methods) - {"get"}:
            if asked & set(path.split("/")):
                continue
            before = len(client.get("/v1/audit").json()["lines"])
            client.request(method, path.format(study="0", name="0"), json={})
            after = len(client.get("/v1/audit").json()["lines"])
            assert after == before + 1, (method, path)


def test_a_viewer_sees_studies_and_the_log_and_changes_nothing(client):
    study = client.post("/v1/studies", json=SPEC).json()["id"]
    token = client.post("/v1/tokens", json={"scope": "viewer"}).json()["token"]
    client.headers["Authorization"] = f"Bearer {token}"
    for path in ("/v1/studies", f"/v1/studies/{study}", "/v1/audit"):
        assert client.get(path).status_code == 200, path
    for path in (f"/v1/studies/{study}/pause", "/v1/studies", "/v1/people/forget"):
        assert client.post(path, json={"person": "x"}).status_code == 403, path
    asked = client.post(f"/v1/studies/{study}/questions", json={"person": "anna"})
    assert asked.status_code == 403
    assert client.post("/login", data={"token": token}).status_code == 200
    assert client.get(f"/studies/{study}").status_code == 200
    assert client.get("/audit").status_code == 200
    assert client.post(f"/studies/{study}/pause").status_code == 403


def test_a_person_who_is_forgotten_counts_0_and_is_not_asked_again(bench):
    study, number = bench.create()
    bench.ask(study, "anna", "ben")
    bench.answer(number, 0, {(name, part): 1.0 for name in ("anna", "ben") for part in (0, 1)})
    assert administration.forget_person(bench.studies, "anna") == 1
    assert bench.count(schema.votes) == 2  # ben's
    bench.past_deadline(number)
    bench.freeze(number)
    with pytest.raises(WrongState, match="is being released"):
        administration.forget_person(bench.studies, "ben")
    counted = closing._read_votes(bench.studies, bench.studies.row(study))
    assert len(counted) == 1
    assert not np.isnan(counted).any()
    bench.release(number)
    assert bench.ask(study, "anna")[0].status is Status.ANSWERED


def test_a_study_that_was_paused_too_long_is_closed_with_all_it_held(bench):
    study, number = bench.create()
    other, _ = bench.create()
    bench.ask(study, "anna")
    bench.answer(number, 0, {("anna", 0): 1.0})
    bench.studies.pause(study)
    bench.studies.pause(other)
    assert administration.enforce_retention(bench.studies, 1.0, 1.0) == []
    chosen = schema.studies.c.number == number
    with bench.database.begin() as connection:
        ago = time.time() - 2 * 86_400
        connection.execute(sa.update(schema.studies).where(chosen).values(deadline=ago))
        old = {"at": ago, "who": "x", "action": "old", "study": None, "detail": ""}
        connection.execute(sa.insert(schema.audit), old)
        over = {"hash": b"x" * 32, "who": "x", "scope": "admin", "label": "", "until": ago}
        connection.execute(sa.insert(schema.sessions), over)
    assert administration.enforce_retention(bench.studies, 1.0, 1.0) == [study]
    assert bench.studies.row(study)["status"] == "closed"
    assert bench.studies.row(other)["status"] == "paused"
    assert bench.count(schema.votes) == bench.count(schema.asked) == 0
    assert bench.count(schema.sessions) == 0  # one that had ended
    assert [line["action"] for line in administration.lines(bench.database)] == ["close"]


def test_a_new_key_is_taken_when_no_study_is_open(bench):
    study, _ = bench.create()
    fresh = keys.Secrets(bytes(32))
    token = Access(bench.database, SECRETS).create("admin", None, "")[1]
    with pytest.raises(WrongState):
        administration.rotate_key(bench.database, fresh)
    bench.studies.close(study)
    administration.rotate_key(bench.database, fresh)
    bench.database.check(fresh)
    with pytest.raises(Exception, match="key"):
        bench.database.check(SECRETS)
    assert Access(bench.database, fresh).look_up(fresh.token_name(token)) is None
    assert bench.count(schema.tokens) == 0


def test_the_first_token_is_never_printed_where_nobody_reads_it(tmp_path, monkeypatch):
    from blindstep.cli.serve import _first_token

    monkeypatch.chdir(tmp_path)
    run = lambda *words: CliRunner().invoke(app, ["serve", *words])  # noqa: E731
    assert run("migrate").exit_code == 0
    secrets = keys.from_file("blindstep.key")
    database = Database("sqlite:///blindstep.db")
    access = Access(database, secrets)
    said = _first_token(access, "blindstep.key", None)
    file = tmp_path / "blindstep.key.admin"
    token = file.read_text().strip()
    assert token not in said
    assert str(file.name) in said
    assert file.stat().st_mode & 0o777 == 0o600
    assert access.look_up(secrets.token_name(token)).scope == "admin"
    assert run("forget", "anna").stdout.startswith("Deleted from the open windows of 0")
    assert "forget" in run("audit").stdout
    before = (tmp_path / "blindstep.key").read_text()
    file.unlink()
    assert run("rotate-key").exit_code == 0
    assert (tmp_path / "blindstep.key").read_text() != before
    given = tmp_path / "given"
    given.write_text("s" * 40 + "\n")
    database.close()
    other = Database("sqlite:///other.db")
    other.migrate()
    assert "given" in _first_token(Access(other, secrets), "k", str(given))
    assert Access(other, secrets).look_up(secrets.token_name("s" * 40)).scope == "admin"
    other.close()
