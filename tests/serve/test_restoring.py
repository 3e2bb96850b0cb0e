"""Back-ups: nothing shares noise, nobody counts twice, and what may have been lost is paid for."""

import base64
import shutil

import pytest
import sqlalchemy as sa

from blindstep.errors import BudgetExceeded, InvalidArgument
from blindstep.serve import schema
from blindstep.serve.accounts import votes_name
from blindstep.serve.database import Database
from blindstep.serve.keys import Address
from blindstep.serve.studies import Studies
from serving import SECRETS, Bench


def say_restored(bench, **lost):
    """What the operator says; workers that start after it read everything anew."""
    going_on = Studies(bench.database, SECRETS).restored(lost)
    bench.studies = Studies(bench.database, SECRETS)
    return going_on


def units(bench, cohort, mu):
    """How many whole studies a cohort has paid for."""
    return pytest.approx((bench.studies.account(cohort).spent() / mu) ** 2)


@pytest.mark.parametrize("released", [0, 1])
def test_a_restored_copy_is_charged_again_or_closed(bench, released):
    """Also where the copy is older than the first release, whose charge was lost with it."""
    study, number = bench.create(cohort="readers", budget_epsilon=1.6)
    for _ in range(released):
        bench.run_step(study, number)
    mu = bench.studies.design(number).plan.mu
    assert say_restored(bench) == [study]
    assert bench.studies.account("readers").spent() == mu  # as if all of it had been released
    bench.run_step(study, number)
    assert units(bench, "readers", mu) == 2
    assert say_restored(bench) == []  # a third time is more than the budget
    assert bench.studies.row(study)["status"] == "closed"


def test_a_copy_that_is_restored_twice_is_said_twice(bench):
    study, number = bench.create()
    cohort, mu = bench.studies.row(study)["cohort"], bench.studies.design(number).plan.mu
    attempts = {bench.studies.row(study)["attempt"]}
    for _ in range(2):
        assert say_restored(bench) == [study]
        attempts.add(bench.studies.row(study)["attempt"])
    bench.run_step(study, number)
    assert units(bench, cohort, mu) == 3
    assert len(attempts) == 3


def test_restored_studies_are_let_in_one_after_the_other(bench):
    """Two studies of one unit in a budget of about three: one of them can be paid for a second time."""
    first, number = bench.create(cohort="readers", budget_epsilon=1.9)
    bench.create(cohort="readers")
    mu = bench.studies.design(number).plan.mu
    assert 3 <= (bench.studies.account("readers").budget / mu) ** 2 < 4
    assert say_restored(bench) == [first]
    bench.run(first, number)
    assert units(bench, "readers", mu) == 3
    assert say_restored(bench) == []


def test_studies_that_are_not_in_the_copy_are_paid_for_when_they_are_named(bench):
    study, number = bench.create(cohort="readers", budget_epsilon=1.2)
    mu = bench.studies.design(number).plan.mu
    bench.studies.close(study)
    with pytest.raises(InvalidArgument, match="spelling"):
        say_restored(bench, reader=mu)
    assert say_restored(bench, readers=5 * mu) == []
    assert units(bench, "readers", mu) == 25  # more than the budget: it was spent all the same
    with pytest.raises(BudgetExceeded):
        bench.create(cohort="readers", epsilon=0.01)


@pytest.fixture
def twins(tmp_path):
    """A study after one step, and a copy of its database."""
    paths = [tmp_path / name for name in ("votes.db", "copy.db")]
    first = Bench(Database(f"sqlite:///{paths[0]}"))
    first.database.migrate()
    study, number = first.create()
    first.run_step(study, number)
    with first.database.begin() as connection:
        connection.exec_driver_sql("SELECT 1")
    first.database.close()
    shutil.copy(*paths)
    made = [Bench(Database(f"sqlite:///{path}")) for path in paths]
    yield study, number, *made
    for each in made:
        each.database.close()


@pytest.mark.parametrize("said", [True, False])
def test_the_same_votes_have_other_noise_in_a_copy(twins, said):
    """Else two equal releases would show for certain that nobody changed their mind. Said or not."""
    study, number, lost, copy = twins
    if said:
        assert say_restored(copy) == [study]
    told = []
    for each in (lost, copy):
        each.run_step(study, number)
        told.append(each.studies.history(number)[1]["release"])
    assert told[0] != told[1]
    mu = copy.studies.design(number).plan.mu
    assert units(copy, copy.studies.row(study)["cohort"], mu) == (2 if said else 1)


def test_a_frozen_step_is_the_same_release_in_a_copy(twins, tmp_path):
    """What was frozen can no longer change: the same votes and the same salt give the same release."""
    study, number, first, _ = twins
    first.ask(study, "anna")
    first.past_deadline(number)
    assert first.freeze(number)
    first.database.close()
    shutil.copy(tmp_path / "votes.db", tmp_path / "later.db")
    copy = Bench(Database(f"sqlite:///{tmp_path}/later.db"))
    told = []
    for each in (first, copy):
        assert each.release(number)
        told.append(each.studies.history(number)[1])
    assert told[0] == told[1]
    copy.database.close()


def test_a_question_of_before_is_no_question_after(bench):
    """Else an open page would let a person answer twice."""
    _, number = bench.create()
    address = Address(number, 0, bytes(16), 0)
    old = bench.studies.design(number).attempt
    signed = SECRETS.read_question(SECRETS.question(address, old))
    assert signed.address == address
    assert SECRETS.genuine(signed, old)
    say_restored(bench)
    assert not SECRETS.genuine(signed, bench.studies.design(number).attempt)


def test_a_token_does_not_tell_whose_it_is():
    seen = set()
    for person in range(64):
        token = SECRETS.question(Address(1, 0, bytes(15) + bytes([person]), 0), "attempt")
        content = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        seen.update(enumerate(content))
    assert len(seen) > 0.9 * 41 * 256 * (
        1 - (1 - 1 / 256) ** 64
    )  # every byte looks drawn at random


def test_neither_votes_nor_noise_can_be_made_again_from_what_is_kept(bench):
    """The salt is gone with the votes; without it their name in the ledger cannot be guessed."""
    study, number = bench.create()
    votes = bench.table(study, bench.run_step(study, number))
    assert bench.studies.row(study)["salt"] is None
    with bench.database.read() as connection:
        lines = connection.execute(sa.select(schema.ledger.c.line)).scalars().all()
    kept = "".join(lines) + str(dict(bench.studies.row(study)))
    assert bench.salts[study, 0].hex() not in kept
    named, guessed = (
        votes_name(SECRETS, study, 0, salt, votes.ravel()) for salt in (bench.salts[study, 0], b"")
    )
    assert named in kept
    assert guessed not in kept
