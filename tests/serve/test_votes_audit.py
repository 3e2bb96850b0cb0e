"""The audit through HTTP: who sees all releases guesses a person's votes no better than mu allows."""

import random
import time

import numpy as np
import pytest

from blindstep.insight.audit_bounds import mu_from_guesses
from serving import SPEC

EPSILON = 8.0


def guess_votes(client, coins) -> tuple[int, int, float]:
    """A study with one person a step, whose votes a fair coin decides; (right, guesses, claimed mu).

    One person's votes are the two most different there are: up and down, or down and up. The adversary
    sees where the study went and knows along which direction the person was asked.
    """
    spec = SPEC | {"people": 16, "epsilon": EPSILON}
    study = client.post("/v1/studies", json=spec).json()["id"]
    studies = client.app.state.service.studies
    number = studies.number(study)
    design, right = studies.design(number), 0
    for step in range(design.releases):
        first = studies.step(studies.row(study))._query.points_of(0, 1)[0]
        direction = (first[0] - first[1]) / design.scales.axes
        question = client.post(f"/v1/studies/{study}/questions", json={"person": str(step)}).json()
        coin = coins.random() < 0.5
        for vote in (int(not coin), int(coin)):
            body = {"token": question["token"], "value": vote}
            question = client.post("/v1/answers", json=body).json()["next"]
        until = time.monotonic() + 30
        while studies.row(study)["release"] == step:
            assert time.monotonic() < until
            time.sleep(0.005)
        move = np.asarray(design.state(studies.snapshot(number, step + 1)[0]).path.move)
        right += bool(-move @ direction > 0) is coin
    return right, design.releases, design.plan.mu


def audit(client, number, seed) -> tuple[float, float]:
    """The lower bound on mu that so many studies prove, and the claim."""
    coins = random.Random(seed)
    found = [guess_votes(client, coins) for _ in range(number)]
    return mu_from_guesses(sum(f[0] for f in found), sum(f[1] for f in found)), found[0][2]


def test_votes_are_guessed_no_better_than_mu_allows(client):
    bound, claimed = audit(client, 6, seed=0)
    assert bound <= claimed


@pytest.mark.slow
def test_the_audit_through_http_is_near_the_claim_and_not_above(client):
    bound, claimed = audit(client, 60, seed=1)
    assert 0.75 * claimed < bound <= claimed
