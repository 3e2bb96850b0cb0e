"""What secret batches cost in a ledger: secrecies add up, are taken off delta, and name neighbours."""

import math

import pytest

import blindstep as bs
from blindstep.errors import BudgetExceeded, LedgerMismatch
from blindstep.insight.tables import spending_numbers
from blindstep.ledger.account import Account
from blindstep.private.accounting import compose, epsilon
from ledger_kinds import kinds_of_ledger
from storage_helpers import identity

BUDGET = bs.Privacy(epsilon=1.0, delta=1e-6)
people = kinds_of_ledger


def register(people, run, budget=BUDGET, **more):
    """A run of one step in a pass is registered and begun, as a whole."""
    with people.open(budget=budget) as ledger:
        ledger.register(identity(run, steps_per_pass=1, **more))
        ledger.begin(run, 0, more["passes"])
    return people.read()


def test_secrecies_add_up_and_are_taken_off_delta(people):
    mu = 0.3 * BUDGET.mu
    register(people, "first", mu_per_pass=mu, passes=3, secrecy_per_pass=2e-8)
    account = register(people, "second", mu_per_pass=mu, passes=2, secrecy_per_pass=1e-8)
    assert account.secrecy() == pytest.approx(8e-8)
    assert account.secrecy("first") == pytest.approx(6e-8)
    spent = compose([mu] * 5)
    assert account.spent() == spent
    assert account.epsilon(1e-6) == epsilon(spent, 1e-6, secrecy=account.secrecy())
    assert account.epsilon(1e-6) > epsilon(spent, 1e-6)
    # Of the budget, what is left is what meets epsilon at what is left of delta.
    left = account.remaining()
    whole = compose([spent, left])
    assert epsilon(whole, 1e-6, secrecy=account.secrecy()) == pytest.approx(1.0, rel=1e-6)
    assert whole < BUDGET.mu * (1 - 1e-4)


def test_a_run_whose_secrecy_breaks_the_budget_is_refused(people):
    """Its mu alone would fit, and so would its secrecy beside a little less mu."""
    whole = {"mu_per_pass": BUDGET.mu, "passes": 1}
    with people.open(budget=BUDGET) as ledger:
        before = people.stored()
        for secrecy in (1e-10, 3e-7):
            with pytest.raises(BudgetExceeded, match=r"and .* of delta"):
                ledger.register(identity(steps_per_pass=1, secrecy_per_pass=secrecy, **whole))
        assert people.stored() == before
    fits = BUDGET.mu_beside_room
    account = register(
        people, "first", mu_per_pass=fits, passes=1, secrecy_per_pass=2 * BUDGET.room
    )
    assert account.epsilon(1e-6) <= 1.0
    # A pass more than was registered, under a second key: its secrecy counts as well.
    with people.open() as ledger, pytest.raises(BudgetExceeded):
        ledger.register(identity("more", mu_per_pass=1e-3, passes=1, secrecy_per_pass=1e-9))


def test_a_budget_in_mu_is_about_mu_and_a_quarter_of_delta(people):
    budget = bs.Privacy(mu=0.5, delta=1e-6)
    whole = {"mu_per_pass": 0.5, "passes": 1}
    with people.open(budget=budget) as ledger, pytest.raises(BudgetExceeded):
        ledger.register(identity(steps_per_pass=1, secrecy_per_pass=2.6e-7, **whole))
    account = register(people, "first", budget, secrecy_per_pass=2.4e-7, **whole)
    assert account.remaining() == 0.0
    assert math.isfinite(account.epsilon(1e-6))


def test_a_budget_is_about_its_neighbours(people):
    budget = bs.Privacy(epsilon=1.0, delta=1e-6, neighbours="zero-out")
    with people.open(budget=budget) as ledger:
        before = people.stored()
        with pytest.raises(LedgerMismatch, match="twice that for 'zero-out'"):
            ledger.register(identity(mu_per_pass=1e-3))
        assert people.stored() == before
        ledger.register(identity(mu_per_pass=1e-3, neighbours="zero-out"))
    with pytest.raises(LedgerMismatch, match="twice that for 'zero-out'"):
        people.open(budget=bs.Privacy(epsilon=0.5, delta=1e-6))


@pytest.mark.parametrize("both", [("replace", "zero-out"), ("zero-out", "replace")])
def test_runs_about_different_neighbours_are_not_added_up(people, both):
    with people.open() as ledger:
        ledger.register(identity(neighbours=both[0]))
        before = people.stored()
        with pytest.raises(LedgerMismatch, match=r"twice the mu of leaving a record out"):
            ledger.register(identity("second", neighbours=both[1]))
        assert people.stored() == before
    (run,) = spending_numbers(people.read())["runs"]
    assert run["neighbours"] == both[0]
    assert ("(zero-out)" in people.read().unit) is (both[0] == "zero-out")


def test_what_a_budget_was_made_from_is_read_again(people):
    people.open(budget=BUDGET).close()
    assert people.read().made_from == BUDGET
    before = people.stored()
    people.open(budget=BUDGET).close()
    assert people.stored() == before
    people.open(budget=bs.Privacy(mu=0.1)).close()
    assert people.read().made_from == bs.Privacy(mu=0.1)


def test_a_budget_that_is_not_what_its_epsilon_gives_is_refused():
    account = Account(cohort="people")
    entry = {"kind": "budget", "at": "", "mu": BUDGET.mu, "delta": 1e-6, "neighbours": "replace"}
    account.apply({**entry, "epsilon": 1.0})
    with pytest.raises(ValueError, match="not that of its epsilon"):
        account.apply({**entry, "epsilon": 2.0})
    account.apply({"kind": "budget", "at": "", "mu": 0.01})  # as version 0.2 wrote it
    assert (account.budget, account.made_from) == (0.01, None)
    assert account.limit(1e-3) == 0.01
