"""Several processes on one run: process 0 keeps its files, and the others go on with its word only.

Here two threads stand for two processes. `drivers/test_two_processes.py` has real ones, and kills them.
"""

import json
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from blindstep.errors import BudgetExceeded, InvalidArgument, LedgerBusy, ProcessLost
from blindstep.ledger import fingerprints, storage
from blindstep.ledger.budget import Privacy
from blindstep.ledger.checkpoint import Checkpoint
from blindstep.ledger.ledger import Ledger, read_ledger
from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage
from blindstep.processes import jax_group
from blindstep.processes.jax_group import JaxGroup
from companies import Cluster, alone
from session_helpers import DATA, PLAN, Killed, begin, files, go_on, kill, loss, same, start, terms


@pytest.fixture
def cluster(monkeypatch):
    return Cluster(monkeypatch)


@pytest.fixture
def whole(monkeypatch, cluster):
    """The state at the end of an undisturbed run of one process."""
    with alone(monkeypatch):
        return go_on(begin()).state


def kinds(errors):
    return [(type(error), str(error)) for error in errors]


# -- words -----------------------------------------------------------------------------------------


def test_what_process_0_makes_is_everywhere_and_it_alone_makes_it(cluster):
    made = []

    def do(rank):
        return JaxGroup().led("plan", lambda: made.append(rank) or {"steps": 3})

    assert cluster.both(do) == [{"steps": 3}] * 2
    assert made == [0]


def test_all_raise_what_process_0_raises(cluster):
    def refuse():
        raise BudgetExceeded("nothing is left")

    errors = cluster.both(lambda rank: JaxGroup().led("open", refuse))
    assert kinds(errors) == [(BudgetExceeded, "nothing is left")] * 2


def test_of_an_error_that_is_not_ours_the_others_learn_that_it_was_there(cluster):
    """Its words may hold a record."""

    def fail():
        raise KeyError("Ada, born 1815")

    mine, other = cluster.both(lambda rank: JaxGroup().led("open", fail))
    assert isinstance(mine, KeyError)
    assert "start all processes again" in mine.__notes__[0]
    assert isinstance(other, ProcessLost)
    assert "process 0 has stopped (KeyError): start all processes again" in str(other)
    assert not any("Ada" in word for word in cluster.words.values())


def test_where_processes_meet_one_that_stopped_stops_all(cluster):
    def do(rank):
        with JaxGroup() as group:
            if rank == 1:
                raise InvalidArgument("no such file")
            group.gather("data", np.zeros(3))

    assert kinds(cluster.both(do)) == [(InvalidArgument, "no such file")] * 2


def test_a_word_about_another_step_does_not_count(cluster):
    """A process that waits for steps 4 to 5 does not go on because steps 2 to 3 were charged."""
    released = []

    def do(rank):
        step = "steps 2 to 3" if rank == 0 else "steps 4 to 5"
        JaxGroup().led(step, lambda: None)
        released.append(rank)

    _, error = cluster.both(do)
    assert "process 0 is at 'steps 2 to 3', and process 1 at 'steps 4 to 5'" in str(error)
    assert released == [0]


def test_no_word_is_heard_in_another_company(cluster):
    def do(rank):
        first, second = JaxGroup(), JaxGroup()
        for group in (second, first) if rank == 0 else (first, second):
            group.led("same", lambda group=group: 1 if group is first else 2)
        return first.led("after", lambda: "first"), second.led("after", lambda: "second")

    assert cluster.both(do) == [("first", "second")] * 2


def test_words_are_swept_away_when_all_have_heard_them(cluster):
    def do(rank):
        JaxGroup().led("one", lambda: 1)
        group = JaxGroup()
        group.led("two", lambda: 2)
        group.gather("meet", np.zeros(1))
        group.led("three", lambda: 3)

    cluster.both(do)
    assert {address.split("/")[1] for address in cluster.words} == {"0", "1"}
    assert {address.split("/")[1] for address in cluster.kept} == {"1"}


def test_without_process_0_nobody_goes_on(cluster):
    def do(rank):
        if rank == 0:
            cluster.lose()
            return None
        return JaxGroup().led("steps 0 to 2", lambda: None)

    gone = "process 1 does not reach process 0 any more, and does not go on without it: start all"
    with pytest.raises(ProcessLost, match=gone):
        raise cluster.both(do)[1]


def test_processes_that_are_not_connected_are_told_how(monkeypatch):
    monkeypatch.setattr(jax_group.jax, "process_count", lambda: 2)
    with pytest.raises(InvalidArgument, match=r"2 processes, .* call jax\.distributed\.initialize"):
        JaxGroup().led("open", lambda: None)


def test_a_long_wait_is_told_and_goes_on(cluster, monkeypatch):
    monkeypatch.setattr(jax_group, "_WAIT_MS", 1)
    monkeypatch.setattr(jax_group, "_QUIET_WAITS", 2)
    told = threading.Event()

    def slowly():
        assert told.wait(60)
        return 5

    def warn(text):
        assert "process 1 has waited for process 0" in text
        told.set()

    monkeypatch.setattr(jax_group, "warn", warn)
    assert cluster.both(lambda rank: JaxGroup().led("open", slowly)) == [5, 5]


# -- shares ----------------------------------------------------------------------------------------


def test_shares_keep_every_bit(cluster):
    given = [
        np.array([-0.0, np.nan, 1e-310]),
        np.array(True),
        np.zeros((0, 2)),
        np.arange(5, dtype=np.uint8),
        np.asfortranarray(np.arange(6.0, dtype=np.float32).reshape(2, 3)),
    ]

    def do(rank):
        like = given if rank == 0 else [np.ones_like(array) for array in given]
        return JaxGroup().share("state", like)

    for shared in cluster.both(do):
        for one, two in zip(shared, given, strict=True):
            assert (one.shape, one.dtype, one.tobytes()) == (two.shape, two.dtype, two.tobytes())


def test_each_thing_that_must_be_alike_is_named(cluster):
    errors = cluster.both(
        lambda rank: JaxGroup().require_alike({"plan": "p", "params": str(rank), "data": str(rank)})
    )
    text = "process 1 does not have the params of process 0: give all processes the same."
    assert kinds(errors) == [(InvalidArgument, f"{text} Nothing was released.")] * 2


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("plan", {"plan": "q"}),
        ("people or rows", {"unit": "one person"}),
        ("seed", {"seed": 8}),
        ("checkpoint, ledger or budget", {"storage": Storage("elsewhere")}),
        ("checkpoint, ledger or budget", {"storage": Storage("run", "people.jsonl")}),
        ("checkpoint, ledger or budget", {"storage": Storage("run", budget=Privacy(mu=2.0))}),
        *((name, {"known": name}) for name in ("params", "loss", "data")),
    ],
)
def test_processes_that_were_given_something_else_are_refused(cluster, name, other):
    known = fingerprints.of_run(loss, np.zeros(2), DATA)
    same = {"known": known, "plan": "p", "unit": "one record", "storage": Storage("run"), "seed": 7}
    if "known" in other:
        other = {"known": replace(known, **{other["known"]: "a" * 64})}
    errors = cluster.both(
        lambda rank: storage.agree(JaxGroup(), **(same if rank == 0 else same | other))
    )
    assert len(set(kinds(errors))) == 1
    with pytest.raises(InvalidArgument, match=f"process 1 does not have the {name} of process 0"):
        raise errors[1]


def test_the_environment_is_that_of_all_processes(cluster):
    """Hosts may differ. A run is repeated where each of them is what it was."""

    def found(second):
        known = fingerprints.of_run(loss, np.zeros(2), DATA)
        environments = ["a" * 64, second * 64]

        def do(rank):
            own = replace(known, environment=environments[rank])
            return storage.agree(JaxGroup(), own, "p", "one record", Storage(), None).environment

        one, two = cluster.both(do)
        cluster.words.clear()
        assert one == two
        return one

    assert found("b") == found("b") != found("c")


# -- runs ------------------------------------------------------------------------------------------


def test_two_processes_release_what_one_does_and_only_what_was_charged(cluster, whole, tmp_path):
    """Each of them finds every release in the ledger before it makes it."""
    path, seen = tmp_path / "run" / "ledger.jsonl", []

    def do(rank):
        session = begin(tmp_path / "run")

        def charged():
            (run,) = read_ledger(path).runs.values()
            seen.append(run.next_step >= session.position + 3)

        with session:
            return go_on(session, seen=charged).state

    assert all(same(state, whole) for state in cluster.both(do))
    assert seen == [True] * 12


def test_process_0_alone_touches_the_disk_and_says_no_secret(cluster, tmp_path, monkeypatch):
    touched, made = set(), []

    def noted(kind, name):
        real = getattr(kind, name)

        def call(*arguments, **named):
            touched.add(jax_group.jax.process_index())
            return real(*arguments, **named)

        monkeypatch.setattr(kind, name, call)

    noted(Ledger, "open")
    noted(Session, "_open")
    noted(Checkpoint, "save")

    def do(rank):
        with begin(tmp_path / "run", seed=None) as session:
            made.append(session.keys.noise.words())
            go_on(session)
            return session.saves

    assert cluster.both(do) == [True, False]
    assert touched == {0}
    assert np.array_equal(*made)
    secret = [*map(str, made[0]), made[0].tobytes().hex(), fingerprints.of_data(DATA)]
    said = json.dumps(list(cluster.words.values()))
    assert not any(word in said for word in secret)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("saving", [True, False])
@pytest.mark.parametrize("blocks", [0, 1, 4])
def test_a_process_that_ends_anywhere_costs_nothing(cluster, whole, tmp_path, rank, saving, blocks):
    def first(own):
        with begin(tmp_path / "run", saving=saving) as session:
            go_on(session, blocks)
            if own == rank:
                go_on(session, 1, seen=kill)  # after its charge, before its release
            go_on(session)
            return session.state

    def second(own):
        with begin(tmp_path / "run") as session:
            opened = session.position, {name: a.tolist() for name, a in session.saved.items()}
            return opened, go_on(session).state

    ended = cluster.both(first)
    assert isinstance(ended[rank], Killed)
    # Without process 0 nobody goes on; without another one process 0 can, where data are not spread.
    assert isinstance(ended[1], ProcessLost) if rank == 0 else same(ended[0], whole)
    cluster.words.clear()
    cluster.kept.clear()
    (opened, state), (other, its_state) = cluster.both(second)
    assert opened == other
    assert opened[1] == ({"norms": [1.0, 1.0]} if opened[0] else {})
    assert opened[0] >= (3 * blocks if saving else 0)
    assert same(state, whole)
    assert same(its_state, whole)
    (run,) = read_ledger(tmp_path / "run" / "ledger.jsonl").runs.values()
    assert len(run.attempts) == 1
    assert len(run.charges) == 2


def test_a_refusal_in_the_middle_is_one_of_all(cluster, tmp_path, monkeypatch):
    real = Ledger.begin

    def full(ledger, run, first, *rest, **named):
        if first == 6:
            raise BudgetExceeded("somebody else has spent it")
        real(ledger, run, first, *rest, **named)

    monkeypatch.setattr(Ledger, "begin", full)
    reached = {}

    def do(rank):
        with begin(tmp_path / "run") as session:
            for block in range(6):
                reached[rank] = block
                go_on(session, 1)

    assert kinds(cluster.both(do)) == [(BudgetExceeded, "somebody else has spent it")] * 2
    assert reached == {0: 2, 1: 2}


def test_a_ledger_in_use_is_refused_in_all(cluster, tmp_path):
    (tmp_path / "run").mkdir()
    with Ledger.open(tmp_path / "run" / "ledger.jsonl", cohort="run"):
        before = files(tmp_path / "run")
        errors = cluster.both(lambda rank: begin(tmp_path / "run"))
        assert [type(error) for error in errors] == [LedgerBusy] * 2
        assert str(errors[0]) == str(errors[1])
        assert files(tmp_path / "run") == before


def test_without_storage_processes_share_keys_and_must_have_the_same_data(cluster):
    """The same noise on other records would give away how they differ."""
    one, two = cluster.both(lambda rank: begin(seed=None).keys)
    assert np.array_equal(one.noise.words(), two.noise.words())
    assert one.public == two.public
    cluster.words.clear()
    cluster.kept.clear()
    errors = cluster.both(lambda rank: begin(data=DATA + rank))
    with pytest.raises(InvalidArgument, match="process 1 does not have the data of process 0"):
        raise errors[1]


def test_answers_from_outside_must_be_the_same_in_all(cluster, tmp_path):
    def do(rank):
        known = lambda: fingerprints.of_questions("survey", np.zeros(2))  # noqa: E731
        with Session(terms(), PLAN, start(), Storage(tmp_path / "run"), known, seed=7) as session:
            session.gate.through(kill, answers=np.array([1.0, float(rank)]))

    errors = cluster.both(do)
    with pytest.raises(InvalidArgument, match="process 1 does not have the answers of process 0"):
        raise errors[0]
    assert kinds(errors)[0] == kinds(errors)[1]
    (run,) = read_ledger(tmp_path / "run" / "ledger.jsonl").runs.values()
    assert run.next_step == 0


# -- a name that JAX keeps to itself ---------------------------------------------------------------


@pytest.mark.parametrize("moved", ["module", "name"])
def test_where_jax_has_moved_its_store_the_run_says_so(monkeypatch, moved):
    if moved == "module":
        monkeypatch.setitem(sys.modules, "jax._src.distributed", None)
    else:
        monkeypatch.delattr("jax._src.distributed.global_state")
    with pytest.raises(InvalidArgument, match="does not have the key-value store"):
        jax_group._store()


def test_processes_that_were_not_connected_are_told_what_to_call():
    with pytest.raises(InvalidArgument, match=r"call jax\.distributed\.initialize first"):
        jax_group._store()
