"""The API over HTTP: who may do what, what refusals look like, what responses and logs never hold."""

import json
import logging
import random

import pytest
from fastapi.testclient import TestClient

from blindstep.serve.app import create_app
from blindstep.serve.observe import JsonLines
from serving import SPEC, fresh_settings

SECRET_PERSON, SECRET_VALUE = "anna.karenina@example.org", 0.8414709848


class Site:
    """An app with a study, and clients for each kind of token."""

    def __init__(self, client: TestClient, admin: str) -> None:
        self.client, self.admin = client, admin
        # Nobody is in the control group, whose two questions are the same at the start.
        self.study = self.post("/v1/studies", admin, SPEC | {"control": 0.0}).json()["id"]
        self.other = self.post("/v1/studies", admin, SPEC | {"name": "other"}).json()["id"]
        self.site = self.token("site", self.study)
        self.stranger = self.token("site", self.other)
        self.metrics = self.token("metrics", None)
        self.viewer = self.token("viewer", None)

    def token(self, scope, study):
        body = {"scope": scope, "study": study}
        return self.post("/v1/tokens", self.admin, body).json()["token"]

    def send(self, method, path, token=None, body=None):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.client.request(method, path, headers=headers, json=body)

    def post(self, path, token=None, body=None):
        return self.send("POST", path, token, body)

    def ask(self, person, study=None, token=None):
        path = f"/v1/studies/{study or self.study}/questions"
        return self.post(path, token or self.site, {"person": person})


@pytest.fixture
def site(tmp_path):
    app = create_app(fresh_settings(tmp_path))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Site(client, app.state.service.access.create("admin", None, "test")[1])


def test_a_person_is_asked_twice_and_then_never_again(site):
    first = site.ask("anna").json()
    assert (first["status"], first["part"], first["step"]) == ("asked", 1, 1)
    assert set(first["parameters"]) == {"red", "size"}
    assert site.ask("anna").json() == first
    taken = site.post("/v1/answers", body={"token": first["token"], "value": 1})
    second = taken.json()["next"]
    assert second["part"] == 2
    assert second["parameters"] != first["parameters"]
    assert site.ask("anna").json() == second
    again = site.post("/v1/answers", body={"token": first["token"], "value": 0})
    assert again.json() == taken.json()  # nobody is told that two answers differ
    assert site.post("/v1/answers", body={"token": second["token"], "value": 0}).json() == {
        "status": "accepted",
        "next": None,
    }
    done = site.ask("anna").json()
    released = site.send("GET", f"/v1/studies/{site.study}/parameters", site.site).json()
    assert (done["status"], done["token"]) == ("answered", None)
    assert done["parameters"] == released["parameters"]


def test_answers_in_bulk_are_taken_one_by_one(site):
    token = site.ask("anna").json()["token"]
    other = site.ask("ben").json()["token"]
    answers = [
        {"token": token, "value": 1},
        {"token": "nonsense", "value": 1},
        {"token": other, "value": 7},
        {"token": other, "value": 0},
    ]
    results = site.post("/v1/answers/bulk", site.site, {"answers": answers}).json()["results"]
    assert [each["status"] for each in results] == ["accepted", "refused", "refused", "accepted"]
    assert [each["error"]["code"] for each in results[1:3]] == ["unknown_question", "invalid"]


def test_a_late_answer_has_a_refusal_of_its_own(site):
    token = site.ask("anna").json()["token"]
    site.post(f"/v1/studies/{site.study}/close", site.admin, {})
    late = site.post("/v1/answers", body={"token": token, "value": 1})
    assert (late.status_code, late.json()["error"]["code"]) == (410, "over")
    assert site.ask("ben").json()["status"] == "over"


def test_released_parameters_may_be_cached(site):
    path = f"/v1/studies/{site.study}/parameters"
    first = site.send("GET", path, site.site)
    assert first.json() == {"steps_released": 0, "parameters": {"red": 0.0, "size": 3.0}}
    headers = {"Authorization": f"Bearer {site.site}", "If-None-Match": first.headers["etag"]}
    second = site.client.get(path, headers=headers)
    assert (second.status_code, second.content) == (304, b"")


def test_nobody_is_told_how_many_came(site):
    """Not even an admin: a study's state is the same whoever was asked and has answered."""
    path = f"/v1/studies/{site.study}"
    before = [site.send("GET", path, who).json() for who in (site.site, site.admin)]
    assert before[0] == before[1]
    token = site.ask("anna").json()["token"]
    site.post("/v1/answers", body={"token": token, "value": 1})
    assert [site.send("GET", path, who).json() for who in (site.site, site.admin)] == before


def _endpoints(site):
    """Every endpoint of the API with the least scope that may use it."""
    study, token = site.study, site.ask("matrix").json()["token"]
    yield "POST", "/v1/studies", SPEC, "admin"
    yield "GET", "/v1/studies", None, "viewer"
    yield "GET", "/v1/audit", None, "viewer"
    yield "POST", "/v1/people/forget", {"person": "x"}, "admin"
    yield "GET", f"/v1/studies/{study}", None, "reader"
    yield "GET", f"/v1/studies/{study}/parameters", None, "site"
    yield "POST", f"/v1/studies/{study}/questions", {"person": "x"}, "site"
    yield "POST", f"/v1/studies/{study}/pause", {}, "admin"
    yield "POST", f"/v1/studies/{study}/resume", {}, "admin"
    yield "POST", f"/v1/studies/{study}/end-window", {}, "admin"
    yield "GET", f"/v1/studies/{study}/report", None, "viewer"
    yield "GET", "/v1/tokens", None, "admin"
    yield "POST", "/v1/tokens", {"scope": "metrics"}, "admin"
    yield "DELETE", "/v1/tokens/0123", None, "admin"
    yield "POST", "/v1/answers", {"token": token, "value": 1}, "question"
    yield "POST", "/v1/answers/bulk", {"answers": [{"token": token, "value": 1}]}, "question"
    yield "GET", "/metrics", None, "metrics"
    yield "POST", f"/v1/studies/{study}/close", {}, "admin"


def _refused(site, method, path, token, body):
    response = site.send(method, path, token, body)
    if path.endswith("/bulk") and response.status_code == 200:  # each answer is refused
        return response.json()["results"][0].get("error", {"code": 200})["code"]
    return response.status_code


def test_every_endpoint_refuses_whoever_may_not_use_it(site):
    may = {
        "admin": {"admin"},
        "viewer": {"admin", "viewer"},
        "reader": {"admin", "viewer", "site"},
        "site": {"admin", "site"},
        "metrics": {"admin", "metrics"},
        "question": {"admin", "site", None},
    }
    tokens = {
        None: None,
        "metrics": site.metrics,
        "stranger": site.stranger,
        "wrong": site.site[:-1] + "!",
        "site": site.site,
        "viewer": site.viewer,
        "admin": site.admin,
    }
    seen = 0
    for method, path, body, scope in _endpoints(site):
        for who, token in tokens.items():
            found = _refused(site, method, path, token, body)
            if who in may[scope]:
                assert found not in (401, 403, 500, "forbidden"), (method, path, who)
            else:
                expected = (401,) if who in (None, "wrong") else (403, "forbidden")
                assert found in expected, (method, path, who, found)
            seen += 1
    routes = site.client.get("/openapi.json").json()["paths"]
    assert seen == 7 * (sum(len(methods) for methods in routes.values()) + 1)  # and /metrics


def test_a_question_token_cannot_be_changed(site):
    token = site.ask("anna").json()["token"]
    for place in range(len(token)):
        letter = "A" if token[place] != "A" else "B"
        changed = token[:place] + letter + token[place + 1 :]
        response = site.post("/v1/answers", body={"token": changed, "value": 1})
        assert response.status_code == 401, place


def test_a_revoked_token_ends_and_a_new_one_begins(site):
    made = site.post("/v1/tokens", site.admin, {"scope": "site", "study": site.study}).json()
    assert site.ask("anna", token=made["token"]).status_code == 200
    assert site.send("DELETE", f"/v1/tokens/{made['id']}", site.admin).status_code == 204
    assert site.ask("anna", token=made["token"]).status_code == 401
    listed = site.send("GET", "/v1/tokens", site.admin).text
    assert made["token"] not in listed
    assert site.site not in listed


def test_the_body_and_the_rate_are_limited(site):
    response = site.post(f"/v1/studies/{site.study}/questions", site.site, {"person": "x" * 70_000})
    assert response.status_code == 413

    def endless():
        for _ in range(100):
            yield b" " * 10_000

    headers = {"Authorization": f"Bearer {site.site}", "Content-Type": "application/json"}
    path = f"/v1/studies/{site.study}/questions"
    assert site.client.post(path, headers=headers, content=endless()).status_code == 413
    site.client.app.state.service.rate._rate = 3.0
    site.client.app.state.service.rate._buckets.clear()
    statuses = [site.ask("anna").status_code for _ in range(30)]
    assert statuses.count(429) >= 20


def _mutated(chance, body):
    """A body with something wrong in it, or something else entirely."""
    odd = [
        None, True, -1, 1e308, "x" * 300, [], {}, [[]], {"a": {"b": []}}, SECRET_PERSON,
        SECRET_VALUE, "\ud800", "\x00", 10**30,
    ]  # fmt: skip
    if chance.random() < 0.2:
        return chance.choice(odd)
    body = json.loads(json.dumps(body))
    for _ in range(chance.randint(1, 3)):
        target = body
        while isinstance(target, dict | list) and target:
            keys = list(target) if isinstance(target, dict) else range(len(target))
            key = chance.choice(list(keys))
            if not isinstance(target[key], dict | list) or chance.random() < 0.5:
                what = chance.random()
                if what < 0.6:
                    target[key] = json.loads(json.dumps(chance.choice(odd)))
                elif isinstance(target, dict):
                    target[SECRET_PERSON] = target.pop(key)
                break
            target = target[key]
    return body


def _malformed(site, number, seed):
    """Send so many malformed requests; give all that came back, and check each."""
    chance, said = random.Random(seed), []
    token = site.ask("somebody").json()["token"]
    requests = [
        ("POST", f"/v1/studies/{site.study}/questions", {"person": "x"}),
        ("POST", "/v1/answers", {"token": token, "value": 1}),
        ("POST", "/v1/answers/bulk", {"answers": [{"token": token, "value": 1}]}),
        ("POST", "/v1/studies", SPEC),
        ("POST", "/v1/tokens", {"scope": "site", "study": site.study, "label": "x"}),
        ("GET", f"/v1/studies/{site.study}/parameters", None),
    ]
    tokens = [site.admin, site.site, "wrong", None]
    for _ in range(number):
        method, path, body = chance.choice(requests)
        if chance.random() < 0.1:
            at = chance.randrange(len(path))
            path = path[:at] + chance.choice(["%00", "/", "é", "..", "%", "?", "{"]) + path[at:]
        headers = {"Content-Type": chance.choice(["application/json"] * 8 + ["text/plain", "x"])}
        if (who := chance.choice(tokens)) is not None:
            headers["Authorization"] = chance.choice(["Bearer "] * 9 + ["Basic ", ""]) + who
        content = json.dumps(_mutated(chance, body)).encode()
        if chance.random() < 0.15:
            spoiled = bytearray(content)
            spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
            content = bytes(spoiled)
        response = site.client.request(method, path, headers=headers, content=content)
        assert response.status_code < 500, (method, path, content)
        assert response.status_code < 400 or "error" in response.json()
        # An admin who has named a study or a token is told its name.
        if response.status_code >= 400 or path not in ("/v1/studies", "/v1/tokens"):
            said.append(response.text)
    return "\n".join(said)


def _silent(site, caplog, number, seed):
    site.client.app.state.service.access.patience = 0.0
    caplog.handler.setFormatter(JsonLines())
    caplog.set_level(logging.DEBUG, "blindstep.serve")
    said = _malformed(site, number, seed)
    for secret in (SECRET_PERSON, str(SECRET_VALUE), site.admin, site.site):
        assert secret not in said
        assert secret not in caplog.text
    assert '"event"' in caplog.text


def test_malformed_requests_are_refused_and_repeat_nothing(site, caplog):
    _silent(site, caplog, 1_000, seed=0)


def test_a_field_that_is_not_known_is_answered_with_a_name_of_ours(site):
    for typo, meant in (
        ("poeple", "Did you mean 'people'"),
        (SECRET_PERSON, "/docs has the names"),
    ):
        said = site.post("/v1/studies", site.admin, SPEC | {typo: 20}).json()["error"]["message"]
        assert meant in said
        assert typo not in said


@pytest.mark.slow
def test_ten_thousand_malformed_requests(site, caplog):
    _silent(site, caplog, 10_000, seed=1)


def test_logs_name_routes_and_nothing_that_was_sent(site, caplog):
    caplog.handler.setFormatter(JsonLines())
    caplog.set_level(logging.DEBUG, "blindstep.serve")
    token = site.ask(SECRET_PERSON).json()["token"]
    site.post("/v1/answers", body={"token": token, "value": SECRET_VALUE})
    site.client.app.state.service.writer._studies = None  # now everything fails
    assert site.ask(SECRET_PERSON).status_code == 503
    lines = [json.loads(line) for line in caplog.text.splitlines()]
    assert {"/v1/answers", "/v1/studies/{study}/questions"} <= {line.get("route") for line in lines}
    for secret in (SECRET_PERSON, str(SECRET_VALUE), token, site.site, site.study):
        assert secret not in caplog.text


def test_metrics_are_the_same_whether_or_not_somebody_answers(site):
    """All but latencies: a count of requests would tell, without noise, that one more answer came."""

    def told():
        text = site.send("GET", "/metrics", site.metrics).text
        assert SECRET_PERSON not in text
        assert f'blindstep_mu_spent{{study="{site.study}"}} 0.0' in text
        assert 'blindstep_people_seconds{quantile="0.99"} ' in text
        # These requests themselves are in the group "health".
        passed = ("blindstep_people_seconds{", 'group="health"')
        return [line for line in text.splitlines() if not any(part in line for part in passed)]

    question = site.ask("somebody else").json()
    before = told()
    for token, status in ((question["token"], 200), ("none", 401)):
        assert site.post("/v1/answers", body={"token": token, "value": 1}).status_code == status
    site.ask(SECRET_PERSON)
    assert site.send("GET", f"/v1/studies/{site.study}/parameters", site.site).status_code == 200
    assert site.client.get("/static/blindstep.js").status_code == 200
    site.client.options("/v1/answers")  # what a browser sends before a vote
    assert told() == before


def test_health_says_whether_the_process_and_the_database_answer(site, tmp_path):
    assert site.client.get("/healthz").status_code == 200
    assert site.client.get("/readyz").status_code == 200
    with site.client.app.state.service.database.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    site.client.app.state.service.lookout.look()
    assert site.client.get("/readyz").status_code == 503
    assert site.client.get("/healthz").status_code == 200
