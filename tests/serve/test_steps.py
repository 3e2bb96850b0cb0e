"""A study's steps: the Optimizer's run bit for bit, one slot a person, each release once."""

import threading

import numpy as np
import pytest
import sqlalchemy as sa

from blindstep.errors import BudgetExceeded, LedgerDamaged, RecordsConsumed
from blindstep.serve import closing, schema
from blindstep.serve.accounts import LedgerPort, open_ledger
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
        salt = bench.salts[study, release]
        tell(optimizer, study, design.attempt, release, salt, answers, design.slots)
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
    row = bench.studies.row(study)
    assert closing._read_votes(bench.studies, row)[0, 0] == 0.25
    assert row["answered"] == 1


@pytest.mark.parametrize("number", [0, 7, 2**31, 2**32 - 1])
def test_a_number_that_no_study_has_is_no_study(bench, number):
    """A token that somebody made up may hold any number of 32 bits."""
    with pytest.raises(NoSuchStudy):
        bench.studies.design(number)


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
    assert [closing.freeze(worker, number) for worker in workers] == [True, False, False]
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
    given = ("study", "attempt", 3, b"salt", "votes")
    changed = [("other",), ("study", "other"), ("study", "attempt", 4), (*given[:3], b"other")]
    changed += [(*given[:4], "other"), given]
    keys = {tuple(SECRETS.noise(*(c + given[len(c) :])).words().tolist()) for c in changed}
    assert len(keys) == len(changed)
    assert tuple(SECRETS.noise(*given).words().tolist()) in keys


def test_a_study_that_does_not_fit_into_its_cohort_is_refused(bench):
    bench.create(cohort="readers", budget_epsilon=1.2)
    with pytest.raises(BudgetExceeded):
        bench.create(cohort="readers")
    bench.create(cohort="others")
    assert bench.count(schema.studies) == 2


def test_a_charge_is_taken_once(bench):
    study, _ = bench.create()
    row = bench.studies.row(study)
    port = LedgerPort(row, SECRETS, b"salt")
    with pytest.raises(AssertionError, match="inside its transaction"):
        port.charge(0, 1, np.zeros(12))
    with bench.database.begin() as connection:
        port.ledger = open_ledger(connection, row["cohort"])
        port.charge(0, 1, np.zeros(12))
    with bench.database.begin() as connection:
        port.ledger = open_ledger(connection, row["cohort"])
        with pytest.raises(RecordsConsumed):
            port.charge(0, 1, np.zeros(12))


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
        due = [row["number"] for row in closing.StepCloser(bench.studies).look_at_all()[0]]
        assert (number in due) is early


def test_deadlines_lie_on_a_grid_where_time_is_to_tell_nothing(bench, monkeypatch):
    """Whenever a step is released, at the deadline or long after it, and however many answered."""
    monkeypatch.setattr(closing.time, "sleep", waited := [].append)
    study, number = bench.create(close="deadline", deadline_seconds=100)
    began, clock = bench.studies.row(study)["deadline"], bench.database.now
    for late, after in ((0.3, 1), (0.7, 2), (250.0, 5)):
        deadline = bench.studies.row(study)["deadline"]
        monkeypatch.setattr(bench.database, "now", lambda _, at=deadline + late: at)
        assert closing.freeze(bench.studies, number)
        assert closing.release(bench.studies, number)
        assert bench.studies.row(study)["deadline"] == began + 100 * after
    monkeypatch.setattr(bench.database, "now", clock)
    tick = 1 + 6 / 20_000
    assert waited.__self__ == pytest.approx([tick - 0.3, tick - 0.7, -250 % tick])


def test_who_was_asked_is_forgotten_when_a_study_is_over(bench):
    for finish in (bench.run, lambda study, _: bench.studies.close(study)):
        study, number = bench.create()
        bench.run_step(study, number)
        assert bench.count(schema.asked) == 6
        finish(study, number)
        assert bench.count(schema.asked) == bench.count(schema.votes) == 0
        assert bench.ask(study, "0-0")[0].status is Status.OVER


def test_a_step_that_another_worker_froze_is_left_to_it_for_a_while(bench, monkeypatch):
    study, number = bench.create()
    bench.past_deadline(number)
    assert closing.freeze(bench.studies, number)
    keeper, now = closing.StepCloser(bench.studies), [100.0]
    monkeypatch.setattr(closing.time, "monotonic", lambda: now[0])
    for now[0], released in ((100.0, 0), (102.9, 0), (103.1, 1)):
        for row in keeper.look_at_all()[0]:
            keeper._close(row)
        assert bench.studies.row(study)["release"] == released


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
