"""A study's steps: the Optimizer's run bit for bit, one slot a person, each release once."""

import sqlite3
import threading

import numpy as np
import pytest
import sqlalchemy as sa

from blindstep.ledger.refusals import BudgetExceeded, LedgerDamaged, RecordsConsumed
from blindstep.serve import closing, schema
from blindstep.serve.accounts import LedgerPort, Run, open_ledger
from blindstep.serve.database import Database
from blindstep.serve.keys import Address, DamagedVote
from blindstep.serve.studies import NoSuchStudy, Studies, WrongState
from blindstep.serve.voting import Status
from serving import SECRETS, Bench, optimizer_of, tell, votes


def test_a_study_is_the_run_of_an_optimizer(bench, monkeypatch):
    study, number = bench.create()
    optimizer = optimizer_of(bench.studies, study, monkeypatch)
    design = bench.studies.design(number)
    while not optimizer.done:
        release = bench.studies.row(study)["release"]
        step = bench.studies.step(bench.studies.row(study))
        for place, point in enumerate(optimizer.ask().points):
            shown = step.show(*divmod(place, 2))
            assert list(shown.values()) == design.spec.clamp(point).tolist()
        answers = bench.run_step(study, number)
        tell(optimizer, study, release, answers, design.slots)
    result, ours = optimizer.result(), design.result(bench.studies.history(number))
    assert np.array_equal(result.means, ours.means)
    assert np.array_equal(result.history.gradient_norm, ours.history.gradient_norm)
    done, parameters = bench.studies.parameters(study)
    assert done == design.releases
    assert list(parameters.values()) == design.spec.clamp(result.params).tolist()
    assert bench.studies.account(bench.studies.row(study)["cohort"]).spent() == design.plan.mu


def test_votes_are_gone_after_their_release_and_people_are_not_asked_again(bench):
    study, number = bench.create()
    bench.run_step(study, number)
    assert bench.count(schema.votes) == 0
    assert bench.count(schema.asked) == 6
    (seat,) = bench.ask(study, "0-0")
    assert seat.status is Status.ANSWERED
    assert bench.answer(number, 0, {(0, 0): 1.0}) == [Status.LATE]
    assert bench.answer(number, 7, {(0, 0): 1.0}) == [Status.UNKNOWN]
    assert bench.answer(number, 1, {(0, 0): 1.0}) == [Status.UNKNOWN]  # nobody has that slot yet
    assert bench.count(schema.votes) == 0


def test_asking_again_gives_the_same_slot_and_then_the_second_question(bench):
    study, number = bench.create()
    first, other, again = bench.ask(study, "anna", "ben", "anna")
    assert first == again == bench.ask(study, "anna")[0]
    assert (first.slot, first.part, other.slot) == (0, 0, 1)
    bench.answer(number, 0, {(0, 0): 1.0})
    assert bench.ask(study, "anna")[0].part == 1
    bench.answer(number, 0, {(0, 1): 1.0})
    assert bench.ask(study, "anna")[0].status is Status.ANSWERED
    names = [f"more {i}" for i in range(8)]
    statuses = [seat.status for seat in bench.ask(study, *names)]
    assert statuses == [Status.ASKED] * 4 + [Status.FULL] * 4


def test_the_first_of_two_answers_is_kept(bench):
    study, number = bench.create()
    bench.ask(study, "anna")
    kept, other = ({(0, 0): value} for value in (0.25, 0.75))
    bench.serve(number, votes=[*votes(number, 0, kept), *votes(number, 0, other)])
    bench.answer(number, 0, other)
    bench.past_deadline(number)
    closing.freeze(bench.studies, number)
    with bench.database.read() as connection:
        row = bench.studies.row(study)
        assert closing._read_votes(bench.studies, connection, row)[0, 0] == 0.25
    assert row["answered"] == 1


def test_one_answer_sent_ten_times_in_parallel_counts_once(bench):
    study, number = bench.create()
    bench.ask(study, "anna")
    together, statuses = threading.Barrier(10), []

    def send(value):
        together.wait()
        statuses.extend(bench.answer(number, 0, {(0, 0): value}))

    threads = [threading.Thread(target=send, args=(i / 10,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [Status.ACCEPTED] * 10
    assert bench.count(schema.votes) == bench.studies.row(study)["answered"] == 1


def test_one_person_in_many_workers_at_once_gets_one_slot(bench):
    study, _ = bench.create()
    workers = [Bench(bench.database) for _ in range(4)]
    together, seats = threading.Barrier(8), []

    def ask(worker, name):
        together.wait()
        seats.extend((name, seat.slot) for seat in worker.ask(study, name))

    names = ["anna", "ben"] * 4
    pairs = zip(workers * 2, names, strict=True)
    threads = [threading.Thread(target=ask, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seats) == 8
    assert len(set(seats)) == 2
    assert bench.count(schema.asked) == bench.studies.row(study)["taken"] == 2


def test_of_two_workers_that_close_a_step_one_wins(bench):
    study, number = bench.create()
    bench.ask(study, "anna")
    bench.answer(number, 0, {(0, 0): 1.0, (0, 1): 0.0})
    bench.past_deadline(number)
    workers = [Studies(bench.database, SECRETS) for _ in range(3)]
    for worker in workers:
        worker.design(number).compile()
    assert all(closing.freeze(worker, number) for worker in workers)
    together, won = threading.Barrier(3), []

    def close(worker):
        together.wait()
        won.append(closing.release(worker, number))

    threads = [threading.Thread(target=close, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False, False, True]
    row = bench.studies.row(study)
    assert (row["release"], row["frozen"], row["taken"]) == (1, 0, 0)
    assert bench.count(schema.releases) == 1
    assert not closing.release(bench.studies, number)


def test_a_release_that_is_rolled_back_comes_out_the_same(bench, monkeypatch):
    """Whatever fails inside the transaction: nothing of it stays, and the next try is identical."""
    study, number = bench.create()
    bench.ask(study, "anna")
    bench.answer(number, 0, {(0, 0): 1.0, (0, 1): 0.0})
    bench.past_deadline(number)
    closing.freeze(bench.studies, number)
    design, seen = bench.studies.design(number), []
    release = type(design).release

    def watched(*given):
        seen.append(release(*given))
        return seen[-1]

    monkeypatch.setattr(type(design), "release", watched)
    design.compile()
    seen.clear()

    def fails(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(closing, "delete_votes", fails)
        with pytest.raises(RuntimeError):
            closing.release(bench.studies, number)
    account = bench.studies.account(bench.studies.row(study)["cohort"])
    assert account.spent() == 0.0
    assert bench.count(schema.releases) == 0
    assert bench.count(schema.votes) == 2
    assert bench.answer(number, 0, {(1, 0): 1.0}) == [Status.LATE]
    assert closing.release(bench.studies, number)
    assert seen[0] == seen[1]


def test_other_votes_get_other_noise(bench):
    names = [SECRETS.noise("study", 0, 3, votes).words().tolist() for votes in ("a", "a", "b")]
    assert names[0] == names[1] != names[2]
    assert SECRETS.noise("study", 0, 4, "a").words().tolist() != names[0]
    assert SECRETS.noise("study", 1, 3, "a").words().tolist() != names[0]


def test_a_study_that_does_not_fit_into_its_cohort_is_refused(bench):
    bench.create(cohort="readers", budget_epsilon=1.2)
    with pytest.raises(BudgetExceeded):
        bench.create(cohort="readers")
    bench.create(cohort="others")
    assert bench.count(schema.studies) == 2


def test_a_charge_is_taken_once(bench):
    study, number = bench.create()
    row, plan = bench.studies.row(study), bench.studies.design(number).plan
    run, answers = Run(study, row["cohort"], 0, plan), np.zeros(12)
    with bench.database.begin() as connection:
        LedgerPort(open_ledger(connection, row["cohort"]), run, SECRETS).charge(0, 1, answers)
    with pytest.raises(RecordsConsumed), bench.database.begin() as connection:
        LedgerPort(open_ledger(connection, row["cohort"]), run, SECRETS).charge(0, 1, answers)


def test_a_line_of_the_ledger_that_was_changed_is_found(bench):
    study, _ = bench.create()
    cohort = bench.studies.row(study)["cohort"]
    with bench.database.begin() as connection:
        changed = sa.func.replace(schema.ledger.c.line, '"passes":1', '"passes":2')
        connection.execute(sa.update(schema.ledger).values(line=changed))
    with pytest.raises(LedgerDamaged):
        bench.studies.account(cohort)


def test_pausing_holds_the_deadline_and_closing_deletes_the_votes(bench):
    study, number = bench.create()
    bench.ask(study, "anna")
    bench.studies.pause(study)
    assert bench.ask(study, "ben")[0].status is Status.PAUSED
    assert bench.ask(study, "anna")[0].status is Status.ASKED
    assert bench.answer(number, 0, {(0, 0): 1.0}) == [Status.ACCEPTED]
    bench.past_deadline(number)
    assert not closing.freeze(bench.studies, number)
    with pytest.raises(WrongState):
        bench.studies.pause(study)
    bench.studies.resume(study)
    assert not closing.freeze(bench.studies, number)  # it has as long as it had
    bench.studies.close(study)
    assert bench.count(schema.votes) == 0
    assert bench.ask(study, "ben")[0].status is Status.OVER
    assert bench.answer(number, 0, {(0, 1): 1.0}) == [Status.OVER]
    with pytest.raises(WrongState):
        bench.studies.resume(study)
    with pytest.raises(NoSuchStudy):
        bench.studies.pause("00")


def test_a_step_closes_early_only_where_that_was_asked_for(bench):
    for close, early in (("full", True), ("deadline", False)):
        study, number = bench.create(close=close)
        assert not closing.freeze(bench.studies, number)
        bench.ask(study, *map(str, range(6)))
        bench.answer(number, 0, {(s, p): 1.0 for s in range(6) for p in (0, 1)})
        assert closing.freeze(bench.studies, number) is early
        assert (number in closing.Keeper(bench.studies).look_at_all()[0]) is early


def test_a_clock_that_jumps_closes_a_step_once_and_loses_nothing(bench, monkeypatch):
    study, number = bench.create()
    bench.ask(study, "anna")
    bench.answer(number, 0, {(0, 0): 1.0, (0, 1): 0.0})
    clock = bench.database.now
    for jump in (-1e6, 1e6, -1e6):
        monkeypatch.setattr(bench.database, "now", lambda c, by=jump: clock(c) + by)
        if closing.freeze(bench.studies, number):
            closing.release(bench.studies, number)
    assert bench.studies.row(study)["release"] == 1
    assert bench.studies.history(number)[0]["answered"] == 2


@pytest.mark.parametrize("released", [0, 1])
def test_a_restored_copy_is_charged_again_or_closed(bench, released):
    """Also where the copy is older than the first release, whose charge was lost with it."""
    study, number = bench.create(cohort="readers", budget_epsilon=1.6)
    for _ in range(released):
        bench.run_step(study, number)
    mu = bench.studies.design(number).plan.mu
    assert bench.studies.restored() == [study]
    assert bench.studies.account("readers").spent() == mu  # as if all of it had been released
    bench.run_step(study, number)
    assert bench.studies.account("readers").spent() == pytest.approx(mu * 2**0.5)
    bench.run_step(study, number)
    assert bench.studies.restored() == []  # a third time is more than the budget
    assert bench.studies.row(study)["status"] == "closed"


def test_the_back_up_drill(tmp_path):
    """Copy, go on, lose it, restore, say so: other votes then get other noise, and all is paid."""
    paths = [tmp_path / name for name in ("votes.db", "copy.db")]
    benches = [Bench(Database(f"sqlite:///{path}")) for path in paths]
    first = benches[0]
    first.database.migrate()
    study, number = first.create()
    first.run_step(study, number)
    source, copy = (sqlite3.connect(path) for path in paths)
    source.backup(copy)
    source.close()
    copy.close()
    first.run_step(study, number)  # released, and then the disk is lost
    restored = benches[1]
    assert restored.studies.row(study)["release"] == 1
    assert restored.studies.restored() == [study]
    restored.run_step(study, number)  # the very same votes, under another attempt
    lost, made = (each.studies.history(number)[1]["told"][0] for each in benches)
    assert lost != made
    plan = restored.studies.design(number).plan
    spent = restored.studies.account(restored.studies.row(study)["cohort"]).spent()
    assert spent == pytest.approx(plan.mu * 2**0.5)
    for each in benches:
        each.database.close()


def test_a_vote_under_another_key_stops_the_release(bench):
    address = Address(1, 2, 3, 1)
    sealed = SECRETS.seal(address, 0.5)
    assert SECRETS.unseal(address, sealed) == 0.5
    assert sealed != SECRETS.seal(address, 0.5)  # the same vote never looks the same
    for wrong in (address._replace(slot=4), address._replace(part=0)):
        with pytest.raises(DamagedVote):
            SECRETS.unseal(wrong, sealed)
    for place in range(len(sealed)):
        spoiled = bytearray(sealed)
        spoiled[place] ^= 1
        with pytest.raises(DamagedVote):
            SECRETS.unseal(address, bytes(spoiled))
    study, number = bench.create()
    bench.ask(study, "anna")
    bench.answer(number, 0, {(0, 0): 1.0})
    with bench.database.begin() as connection:
        connection.execute(sa.update(schema.votes).values(sealed=bytes(28)))
    bench.past_deadline(number)
    closing.freeze(bench.studies, number)
    with pytest.raises(DamagedVote):
        closing.release(bench.studies, number)
    assert bench.studies.row(study)["release"] == 0
