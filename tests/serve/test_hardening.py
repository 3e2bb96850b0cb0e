"""What a sceptic tried: one bad study, request or moment must not take the rest along."""

import socket
import threading
import time

import pytest
from typer.testing import CliRunner

from blindstep.cli import app as commands
from blindstep.serve import design, voting
from blindstep.serve.studies import Studies
from serving import SECRETS, SPEC, spec


def made(client, **changed):
    return client.post("/v1/studies", json=SPEC | changed)


def ask(client, study, person):
    return client.post(f"/v1/studies/{study}/questions", json={"person": person})


@pytest.mark.parametrize("changed", [{"epsilon": 1e-4}, {"epsilon": 1e-9}, {"delta": 5e-324}])
def test_a_study_at_the_end_of_numbers_is_made_or_refused_and_others_go_on(client, changed):
    assert made(client, **changed).status_code in (201, 422)
    listed = client.get("/v1/studies")
    assert listed.status_code == 200
    study = made(client).json()["id"]
    assert ask(client, study, "anna").json()["status"] == "asked"


def test_an_error_after_the_transaction_is_one_refusal(client, monkeypatch):
    study = made(client).json()["id"]
    with monkeypatch.context() as broken:
        broken.setattr(voting, "_shown", lambda *_: 1 / 0)
        assert ask(client, study, "anna").status_code == 503
    assert ask(client, study, "anna").json()["status"] == "asked"


def test_what_nobody_expected_is_a_500_without_its_text(client, monkeypatch, caplog):
    def fails(*_):
        raise RuntimeError("the secret of anna")

    monkeypatch.setattr(Studies, "all", fails)
    response = client.get("/v1/studies")  # would raise here if the server around were told
    assert response.status_code == 500
    assert "anna" not in response.text + caplog.text


def test_many_answers_at_once_are_many_requests(client):
    service = client.app.state.service
    service.anonymous._rate = service.rate._rate = 50.0
    body = {"answers": [{"token": "none", "value": 1}] * 200}
    for _ in ("with a token", "without"):
        assert client.post("/v1/answers/bulk", json=body).status_code == 200
        assert client.post("/v1/answers/bulk", json=body).status_code == 429
        client.headers.pop("Authorization", None)


def test_wrong_tokens_cannot_be_tried_for_ever(client):
    client.app.state.service.mistaken._rate = 0.5
    assert client.get("/v1/studies").status_code == 200
    statuses = [
        client.get("/v1/studies", headers={"Authorization": f"Bearer {n}"}).status_code
        for n in range(12)
    ]
    assert set(statuses) == {401, 429}
    assert statuses[0] == 401
    assert client.get("/v1/studies").status_code == 200  # who is known is not kept out


def test_only_bulk_answers_may_be_long_and_forms_are_short(client):
    assert client.post("/studies/ab/bulk", content=b"x" * 100_000).status_code == 413
    many = "&".join(f"a{n}=1" for n in range(100))
    assert client.post("/login", content=many).status_code == 422


@pytest.mark.parametrize("name", ["\x00", "a\nb", "\x1f"])
def test_control_characters_are_refused_wherever_they_would_be_stored(client, name):
    assert made(client, name=name).status_code == 422
    assert made(client, cohort=name).status_code == 422
    token = {"scope": "admin", "label": name}
    assert client.post("/v1/tokens", json=token).status_code == 422
    token = {"scope": "site", "study": name}
    assert client.post("/v1/tokens", json=token).status_code == 422
    assert client.delete("/v1/tokens/%00").status_code == 422


def test_studies_that_are_made_at_once_in_one_cohort_are_all_made(bench):
    given, studies = spec(cohort="readers", budget_epsilon=50), []
    workers = [Studies(bench.database, SECRETS) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda worker=worker: studies.append(worker.create(given)))
        for worker in workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(studies)) == 4
    assert set(bench.studies.account("readers").runs) == set(studies)


def test_points_of_many_people_are_kept_in_little_memory(bench, monkeypatch):
    monkeypatch.setattr(design, "_KEPT_BYTES", 40 * (16 * 2 + 256))
    study, _ = bench.create()
    step = bench.studies.step(bench.studies.row(study))
    people = [SECRETS.person(study, str(n)) for n in range(100)]
    first = [step.show(person, 1) for person in people]
    assert len(step._kept) == 40
    step.make(people)  # more than are kept
    assert [step.show(person, 1) for person in people] == first
    assert len(step._kept) == 40


@pytest.mark.parametrize(
    ("database", "word"),
    [
        ("sqlite:////nowhere/at/all.db", "cannot be used"),
        ("sqlite:///no-database", "cannot be used"),
        ("postgresql://nobody@127.0.0.1:1/none", "cannot be used"),
        ("postgresql://host:port/name", "cannot be read"),
        ("mysql://host/name", "kind 'mysql'"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line(tmp_path, monkeypatch, database, word):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no-database").write_text("a letter, " * 1000)
    said = CliRunner().invoke(commands, ["serve", "migrate", "--database", database])
    assert said.exit_code == 2
    assert word in said.stderr
    assert len(said.stderr.strip().splitlines()) == 1


def test_a_port_that_is_taken_is_said_before_a_token_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = CliRunner().invoke(commands, ["serve", "--port", str(taken.getsockname()[1])])
    assert said.exit_code == 2
    assert "give another --port" in said.stderr
    assert not (tmp_path / "blindstep.db").exists()


def test_what_was_lost_is_named_by_cohort_and_mu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(commands, ["serve", "restored", "--lost", "readers"])
    assert said.exit_code == 2
    assert "COHORT=MU" in said.stderr


PAGES = [("GET", "/"), ("GET", "/new"), ("GET", "/studies/ab"), ("GET", "/studies/ab/report")]
FORMS = [("POST", "/new"), ("POST", "/studies/ab/token"), ("POST", "/studies/ab/pause")]


@pytest.mark.parametrize(("method", "path"), PAGES + FORMS)
def test_pages_send_anyone_who_is_not_signed_in_to_the_sign_in_page(client, method, path):
    """An API token in a header opens no page."""
    response = client.request(method, path, follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (303, "/login")


def test_an_admin_makes_pauses_and_closes_a_study_in_forms(client):
    token = client.app.state.service.access.create("admin", None, "")[1]
    assert client.post("/login", data={"token": token + "x"}).status_code == 401
    assert client.post("/login", data={"token": token}).status_code == 200  # the list of studies
    assert client.post("/new", data={"name": "colours"}).status_code == 422
    fields = {"name": "colours", "parameters": "red -1 1\nsize 0, 10, 3"}
    page = client.post(
        "/new", data=fields | {"people": "96", "epsilon": "1", "despite_noise": "on"}
    )
    assert page.text.count("<svg") == 2
    assert 'aria-label="size over 0 of 16 steps: now 3"' in page.text
    study = page.url.path
    assert ask(client, study.rpartition("/")[2], "anna").json()["status"] == "asked"
    assert "No step is released yet." in client.get(study).text
    client.post(f"{study}/end-window")
    until = time.monotonic() + 30
    while "of 16 steps heard:" not in (page := client.get(study)).text:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert "paused" in client.post(f"{study}/pause").text
    assert client.post(f"{study}/pause").status_code == 409
    elsewhere = client.post(f"{study}/close", headers={"Origin": "https://elsewhere.example"})
    assert elsewhere.status_code == 403
    assert "closed" in client.post(f"{study}/close").text
    kept = client.cookies.get("blindstep_session")
    assert client.post("/logout").url.path == client.get("/").url.path == "/login"
    client.cookies.set("blindstep_session", kept)  # a copy of the cookie opens nothing either
    assert client.get("/").url.path == "/login"


def test_the_last_admin_token_is_refused_in_one_line(client):
    (last,) = client.get("/v1/tokens").json()["tokens"]
    refused = client.delete(f"/v1/tokens/{last['id']}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "last_admin")
    assert client.post("/v1/tokens", json={"scope": "admin"}).status_code == 201
    assert client.delete(f"/v1/tokens/{last['id']}").status_code == 204
