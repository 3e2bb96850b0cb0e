"""What is said is true as written: the numbers of each sentence, by Monte Carlo and closed form."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import reference
from blindstep.errors import InvalidArgument
from blindstep.ledger.budget import Privacy
from blindstep.planning.noise import calibrated
from blindstep.planning.statement import (
    compose_statements,
    delta_sentence,
    gaussian_sentence,
    statement,
)
from blindstep.private import accounting
from blindstep.private.mechanisms import Independent
from blindstep.private.schedule import Schedule
from gates import make_terms

NUMBER = r"([0-9.]+(?:e[+-]?[0-9]+)?)"


def numbers_in(pattern, text):
    found = re.search(pattern.replace("#", NUMBER), text)
    assert found, text
    return [float(number) for number in found.groups()]


# -- sentences -------------------------------------------------------------------------------------


@given(st.floats(1e-3, 20.0), st.floats(1e-12, 0.1))
def test_what_is_printed_holds_too(mu, delta):
    """Printed numbers are rounded up: mu, zCDP, epsilon, delta and the probability."""
    (said,) = numbers_in(r"is #-Gaussian", gaussian_sentence(mu))
    (drawn, zcdp) = numbers_in(r"one of N\(#, 1\). That is #-zCDP", gaussian_sentence(mu))
    assert mu <= said == drawn <= mu * (1 + 2e-5)
    assert mu**2 / 2 <= zcdp <= mu**2 / 2 * (1 + 2e-5)
    epsilon = accounting.epsilon(mu, delta)
    exceeds = accounting.exceeds(mu, epsilon)
    text = delta_sentence(epsilon, delta, exceeds)
    (first, second) = numbers_in(r"It is \(#, #\)-DP", text)
    (exponent, added) = numbers_in(r"e\^# times its probability plus #\. ", text)
    (likely,) = numbers_in(r"is up to #\.$", text)
    assert epsilon <= first == exponent <= epsilon * (1 + 2e-5)
    assert delta <= second == added <= delta * (1 + 2e-5)
    assert exceeds <= likely <= exceeds * 1.11
    if first > 0:
        assert reference.gaussian_delta(mu, first) <= added * (1 + 1e-10)


def test_the_two_sentences_about_epsilon_by_monte_carlo():
    """Events {x > c} of N(mu, 1) against N(0, 1), which are the worst ones, and large losses."""
    mu, number = 0.8, 10**6
    epsilon = accounting.epsilon(mu, 0.01)
    x = np.random.default_rng(0).normal(size=number)
    text = delta_sentence(epsilon, 0.01, accounting.exceeds(mu, epsilon))
    (factor, added) = numbers_in(r"e\^# times its probability plus #\. ", text)
    thresholds = np.linspace(-1, 4, 51)
    with_one = np.mean(x[:, None] + mu > thresholds, axis=0)
    with_other = np.mean(x[:, None] > thresholds, axis=0)
    gain = with_one - math.exp(factor) * with_other
    error = 5 * math.sqrt((1 + math.exp(2 * factor)) * 0.1 / number)
    assert gain.max() < added + error
    assert gain.max() > 0.8 * added  # and no smaller number would be true
    (likely,) = numbers_in(r"is up to #\.$", text)
    seen = np.mean(mu * (x + mu) - mu**2 / 2 > epsilon)
    assert likely / 3 < seen < likely + 5 * math.sqrt(likely / number)
    assert seen > 2 * added  # delta is not that probability


def test_a_statement_has_the_numbers_of_its_terms():
    terms = make_terms("blt", 4, size=5, records=20, blocks=7, noise_std=2.0)
    said = statement(terms, 1e-6, seeded=False)
    assert (said.mu, said.slack, said.delta) == (terms.mu(), terms.slack(), 1e-6)
    assert said.epsilon == accounting.epsilon(terms.mu(), 1e-6, terms.slack())
    assert said.exceeds == accounting.exceeds(said.mu, said.epsilon) > 1e-6
    text = str(said)
    assert "Protected: one record" in text
    assert "norm at most 1 in a gradient and 0.5 in a difference" in text
    assert f"at most {terms.schedule.passes} releases" in text
    assert "exact: sums and discrete Gaussian noise are whole multiples" in text
    assert "its secrecy is computational" in text
    assert "seed" not in text
    (slack,) = numbers_in(r"total variation of #\.", text)
    assert said.slack <= slack <= 2 * said.slack
    assert json.loads(json.dumps(said.to_dict()))["mu"] == said.mu
    assert len(said.sentences()) == 7


def test_a_seeded_run_says_so_and_one_pass_is_one_release():
    said = statement(make_terms("independent", 1, blocks=2, noise_std=2.0), 1e-5, seeded=True)
    assert "NOT private against anyone who knows or can guess the seed" in said.sentences()[-1]
    assert "answers in at most 1 release." in str(said)
    assert "difference" not in str(said)


@pytest.mark.parametrize("rows", [2, 10])
def test_several_records_of_a_person_have_the_group_guarantee(rows):
    terms = make_terms("independent", 1, blocks=2, noise_std=2.0)
    one = statement(terms, 1e-5, seeded=True)
    many = one.for_rows(rows)
    assert many.mu == rows * one.mu
    assert many.epsilon == accounting.epsilon(rows * one.mu, 1e-5, one.slack) > one.epsilon
    assert many.exceeds == accounting.exceeds(many.mu, many.epsilon)
    assert many.unit == f"{rows} records of one person together"
    assert f"Protected: {rows} records of one person together, replaced by any other" in str(many)
    # All else is said as before: delta, what is enforced, and that there was a seed.
    kept = ("delta", "released", "enforced", "arithmetic", "slack", "seeded")
    assert all(getattr(many, name) == getattr(one, name) for name in kept)
    labels = dataclasses.replace(one, unit="one record (the labels are public)").for_rows(rows)
    assert labels.unit == f"{rows} records of one person together (the labels are public)"


def test_the_group_guarantee_holds_for_the_best_attack():
    """k records that all push one way move a release k times as far; no smaller mu would be true."""
    one = statement(make_terms("independent", 1, blocks=2, noise_std=2.0), 1e-3, seeded=False)
    x = np.random.default_rng(0).normal(size=10**6)
    for rows in (1, 2, 3):
        said = one.for_rows(rows)
        moved = np.mean(x + rows * one.mu > rows * one.mu / 2), np.mean(x > rows * one.mu / 2)
        assert moved[0] <= math.exp(said.epsilon) * moved[1] + said.delta
        gap = stats.norm.ppf(moved[0]) - stats.norm.ppf(moved[1])
        assert gap == pytest.approx(said.mu, abs=0.01)


def test_a_statement_about_people_covers_all_their_rows():
    terms = make_terms("independent", 1, blocks=2, noise_std=2.0)
    person = statement(terms, 1e-5, seeded=False, unit="one person (all rows)")
    assert "Protected: one person (all rows), replaced" in str(person)
    assert person.for_rows(50) == person
    one = statement(terms, 1e-5, seeded=False)
    assert one.for_rows(1) == one
    with pytest.raises(InvalidArgument, match="rows must be a whole number"):
        one.for_rows(0)
    # Three of somebody's records are not one: from here on nobody knows whose k are meant.
    with pytest.raises(
        InvalidArgument, match="about 3 records of one person together: ask the run"
    ):
        one.for_rows(3).for_rows(2)


def test_statements_about_the_same_records_add_up():
    one = statement(make_terms("independent", 1, blocks=2, noise_std=2.0), 1e-5, seeded=False)
    two = statement(make_terms("tree", 4, blocks=2, noise_std=3.0), 1e-5, seeded=True)
    assert compose_statements([one]) is one
    both = compose_statements([one, two])
    assert both.mu == math.hypot(one.mu, two.mu)
    assert both.slack == one.slack + two.slack
    assert both.epsilon == accounting.epsilon(both.mu, 1e-5, both.slack)
    assert both.exceeds == accounting.exceeds(both.mu, both.epsilon)
    assert both.seeded
    assert both.released == one.released
    assert [line[:10] for line in both.enforced] == ["in part 1,", "in part 2,"]
    assert ", ".join(two.enforced) in both.enforced[1]
    # Three at once, or one after the other: the same numbers, and every part is listed.
    other = dataclasses.replace(two, released="something else")
    once, nested = compose_statements([one, two, other]), compose_statements([both, other])
    assert nested.mu == pytest.approx(once.mu, rel=1e-15)
    assert nested.enforced == once.enforced
    assert len(once.enforced) == 3
    assert nested.released == once.released == f"{one.released}; something else"
    # Who took part is private where it is so in all of them, in whatever order they come.
    window = dataclasses.replace(one, windows=True)
    assert compose_statements([window, window]).windows
    for parts in ([window, two], [two, window]):
        assert "The number of records is public" in str(compose_statements(parts))
    person = dataclasses.replace(two, unit="one person (all rows)")
    with pytest.raises(InvalidArgument, match="different units do not add up"):
        compose_statements([one, person])


# -- secret batches, and which change is hidden ----------------------------------------------------


def secret_statement(secrecy, neighbours="replace"):
    schedule = Schedule(4000, 500, 500, 1, 16, secrecy=secrecy)
    terms = calibrated(schedule, Independent(1), 3, 1.0, 1.0, 0.2, neighbours)
    return statement(terms, 1e-5, seeded=False)


def test_secrecies_of_parts_add_up():
    parts = [secret_statement(1e-10), secret_statement(3e-10)]
    both = compose_statements(parts)
    assert both.secrecy == sum(part.secrecy for part in parts)
    assert both.epsilon == accounting.epsilon(both.mu, 1e-5, both.slack, both.secrecy)
    assert both.exceeds >= accounting.exceeds(both.mu, both.epsilon)
    (said,) = numbers_in(r"an additive #, which is in delta already", str(both))
    assert both.secrecy <= said <= 1.1 * both.secrecy
    several = parts[0].for_rows(3)
    assert several.secrecy > 3 * parts[0].secrecy
    assert several.mu == pytest.approx(3 * parts[0].mu)
    assert several.epsilon == accounting.epsilon(several.mu, 1e-5, several.slack, several.secrecy)


def test_neighbours_are_named_and_not_mixed():
    out, replaced = secret_statement(1e-10, "zero-out"), secret_statement(1e-10)
    assert "left out or added (zero-out neighbours" in str(out)
    assert "replaced by any other" in str(replaced)
    assert "zero-out" not in str(replaced)
    assert (out.to_dict()["neighbours"], out.mu) == (
        "zero-out",
        pytest.approx(replaced.mu, rel=1e-2),
    )
    with pytest.raises(InvalidArgument, match="different units do not add up"):
        compose_statements([out, replaced])
    with pytest.raises(InvalidArgument, match="must be one of replace, zero-out"):
        Privacy(mu=1.0, neighbours="add")
