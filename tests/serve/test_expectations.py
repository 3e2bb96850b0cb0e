"""What a study can expect, what is refused, and what follows from a page's traffic."""

import pytest
from pydantic import ValidationError

from blindstep.serve import closing
from blindstep.serve.forecast import NoiseWins, _table, forecast, require_hope
from blindstep.serve.spec import StudySpec
from serving import SPEC


def test_the_forecast_is_the_table_and_what_lies_between():
    table = _table()
    for world in ("ranking", "bowl"):
        for at, epsilon in enumerate(table["epsilons"]):
            for row, dim in enumerate(table["dims"]):
                for column, people in enumerate(table["people"]):
                    found = getattr(forecast(dim, people, epsilon), world)
                    assert found == pytest.approx(max(0, table[world][at][row][column]))
    one, two = forecast(6, 10_000, 1.0), forecast(6, 30_000, 1.0)
    between = forecast(6, 17_320, 1.0)
    assert min(one.bowl, two.bowl) <= between.bowl <= max(one.bowl, two.bowl)
    assert forecast(6, 10**7, 1.0) == forecast(6, table["people"][-1], 1.0)


def test_what_is_refused_says_what_would_help_and_that_helps(client):
    with pytest.raises(NoiseWins, match="noise would win: studies of 20 parameters and 300 people"):
        require_hope(20, 300, 0.3)
    refused = {**SPEC, "epsilon": 0.3, "despite_noise": False}
    answer = client.post("/v1/studies", json=refused)
    assert answer.status_code == 422
    said = answer.json()["error"]["message"]
    people = int(said.partition("do better: ")[2].partition(" people")[0].replace(",", ""))
    assert people > SPEC["people"]
    require_hope(2, people, 0.3)
    assert client.post("/v1/studies", json=refused | {"people": people}).status_code == 201
    assert client.post("/v1/studies", json=refused | {"despite_noise": True}).status_code == 201
    assert client.get("/v1/studies").json()["studies"][0]["forecast"]["ranking"] < 0.1


def test_people_and_windows_follow_from_traffic():
    given = {name: value for name, value in SPEC.items() if name != "people"}
    traffic = {"visitors_per_day": 800, "response_rate": 0.2, "days": 32}
    found = StudySpec.model_validate(given | {"traffic": traffic})
    assert (found.people, found.window_seconds) == (5120, 2 * 86_400.0)
    assert StudySpec.model_validate_json(found.model_dump_json()) == found
    with pytest.raises(ValidationError):
        StudySpec.model_validate(given | {"traffic": traffic | {"days": 0.01}})


def test_shown_points_stay_as_near_as_is_asked(client):
    asked = SPEC | {"most_change": 0.05, "control": 0.0}
    study = client.post("/v1/studies", json=asked).json()["id"]
    for person in range(40):
        path = f"/v1/studies/{study}/questions"
        shown = client.post(path, json={"person": str(person)}).json()["parameters"]
        assert abs(shown["red"]) <= 0.05 * 2 + 1e-9
        assert abs(shown["size"] - 3) <= 0.05 * 10 + 1e-9


# -- which of the two is better --------------------------------------------------------------------


def test_a_comparison_is_one_question_about_two_options(client):
    asked = SPEC | {"answer": {"kind": "comparison"}, "control": 0.0}
    study = client.post("/v1/studies", json=asked).json()
    path = f"/v1/studies/{study['id']}/questions"
    question = client.post(path, json={"person": "anna"}).json()
    assert (question["status"], question["part"]) == ("asked", 1)
    assert question["parameters"] == study["parameters"]  # for the rest of the page
    left, right = question["options"]
    assert left.keys() == right.keys() == study["parameters"].keys()
    assert left["red"] == pytest.approx(-right["red"])  # on either side of the start, which is 0
    answer = {"token": question["token"]}
    for wrong in (0, 0.5, 2):
        assert client.post("/v1/answers", json=answer | {"value": wrong}).status_code == 422
    taken = client.post("/v1/answers", json=answer | {"value": 1}).json()
    assert taken == {"status": "accepted", "next": None}
    assert client.post(path, json={"person": "anna"}).json()["status"] == "answered"


def test_a_comparison_counts_as_two_votes_that_differ(client):
    """What the gate gets of "the second is better" are the losses 1 and 0; a person counts no more."""
    asked = SPEC | {"answer": {"kind": "comparison"}}
    study = client.post("/v1/studies", json=asked).json()["id"]
    for person, value in (("anna", 1), ("ben", -1)):
        path = f"/v1/studies/{study}/questions"
        token = client.post(path, json={"person": person}).json()["token"]
        client.post("/v1/answers", json={"token": token, "value": value})
    studies = client.app.state.service.studies
    counted = closing._read_votes(studies, studies.row(study))
    assert sorted(counted[:, 2:].tolist()) == [[0.0, 1.0], [1.0, 0.0]]
    votes = client.post("/v1/studies", json=SPEC).json()["id"]
    assert studies.design(study).plan.terms == studies.design(votes).plan.terms


def test_the_page_about_the_api_names_every_route_and_asks_no_other_host(client):
    page = client.get("/docs").text
    for path in client.get("/openapi.json").json()["paths"]:
        assert path in page, path
    assert "most_change" in page
    assert "http" not in page.replace("Authorization: Bearer", "").partition("<main")[0]
