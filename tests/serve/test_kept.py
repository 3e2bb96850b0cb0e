"""What a worker keeps in memory, and that it lets go of what nobody needs."""

import gc
import re
import types
import weakref

import numpy as np
import pytest

from blindstep.serve import kept, programs, voting
from blindstep.serve.closing import StepCloser
from blindstep.serve.database import Database
from blindstep.serve.observe import metrics
from blindstep.serve.studies import Studies
from blindstep.serve.voting import Request, Status, Writer
from serving import SECRETS, SPEC, Bench


@pytest.fixture
def one_bench(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/votes.db")
    database.migrate()
    database.check(SECRETS)
    yield Bench(database)
    database.close()


def look(bench):
    """What a worker does four times a second."""
    StepCloser(bench.studies, 0.0)._look()
    gc.collect()


def in_memory(studies, number):
    return number in studies.kept._designs, number in studies.kept._steps


def test_a_finished_study_is_let_go_with_its_questions_and_its_program(one_bench, monkeypatch):
    """(In 0.2 all that a worker had ever served stayed: 1.4 GB with 1,000 studies.)"""
    bench, studies = one_bench, one_bench.studies
    (going, first), (done, second), (closed, third) = (
        bench.create(people=16 * people) for people in (6, 7, 8)
    )
    bench.run(done, second)
    bench.run_step(closed, third)
    studies.close(closed)
    bench.run_step(going, first)
    before = studies.parameters(done)
    held = [
        weakref.ref(each)
        for number in (second, third)
        for each in (studies.design(number), studies.design(number).program)
    ]
    held.append(weakref.ref(studies.step(studies.row(done))))
    look(bench)
    assert in_memory(studies, second) == (True, True)  # somebody has just asked
    monkeypatch.setattr(kept, "_USED", 0.0)
    look(bench)
    assert [in_memory(studies, number) for number in (first, second, third)] == [
        (True, True),
        (False, False),
        (False, False),
    ]
    assert [each() for each in held] == [None] * 5
    # Whoever asks later is told the same.
    assert studies.parameters(done) == before
    assert bench.ask(done, "anna")[0].status is Status.OVER
    assert studies.result(done).params is not None
    assert bench.ask(going, "anna")[0].status is Status.ASKED


def test_of_studies_that_do_not_run_the_last_few_are_kept(one_bench, monkeypatch):
    monkeypatch.setattr(kept, "_MOST_IDLE", 2)
    made = [one_bench.create() for _ in range(4)]
    for study, number in made:
        one_bench.studies.close(study)
        one_bench.studies.design(number)
    one_bench.studies.design(made[0][1])  # asked for again
    look(one_bench)
    found = [in_memory(one_bench.studies, number)[0] for _, number in made]
    assert found == [True, False, False, True]


def test_studies_with_the_same_plan_share_one_program(one_bench):
    """Each is compiled once: it takes seconds, and megabytes."""
    (_, first), (_, second) = one_bench.create(), one_bench.create()
    (_, other) = one_bench.create(people=16 * 50)
    one, two, three = (one_bench.studies.design(number) for number in (first, second, other))
    assert one.program is two.program
    assert one.program is not three.program
    one.compile(10)
    two.compile(10)
    assert one.program.sizes == {1024}


def test_what_was_compiled_goes_with_its_function():
    """(`equinox.filter_jit` keeps each function that it was ever given, and its program.)"""

    def twice(x, by):
        return by * x

    function = weakref.ref(twice)
    program = programs.compiled(twice)
    assert [program(np.ones(2), by).tolist() for by in (2.0, 3.0)] == [[2.0, 2.0], [3.0, 3.0]]
    assert program(np.ones(2, np.int32), 2).dtype != program(np.ones(2, np.int32), 2.0).dtype
    del twice, program
    gc.collect()
    assert function() is None


def test_points_of_all_studies_together_take_so_much_and_no_more(one_bench, monkeypatch):
    studies = one_bench.studies
    steps = [studies.step(studies.row(one_bench.create()[0])) for _ in range(3)]
    people = [SECRETS.person("0", str(n)) for n in range(200)]
    for step, many in zip(steps, (200, 60, 3), strict=True):
        step.make(people[:many])
    each = steps[0].size // 200
    shown = steps[0].show(people[0], 1)
    monkeypatch.setattr(kept, "_POINTS", 180 * each)
    studies.kept.let_go({number for number in studies.kept._designs if isinstance(number, int)})
    assert [step.size // each for step in steps] == [100, 60, 3]  # those who have most give
    assert steps[0].show(people[0], 1) == shown


def test_studies_are_listed_in_parts(client):
    made = [client.post("/v1/studies", json=SPEC).json()["id"] for _ in range(5)][::-1]
    found, path = [], "/v1/studies?most=2"
    while path is not None:
        part = client.get(path).json()
        assert len(part["studies"]) <= 2
        found += [study["id"] for study in part["studies"]]
        path = part["next"] and f"/v1/studies?most=2&before={part['next']}"
    assert found == made
    assert client.get(f"/v1/studies?before={'0' * 16}").status_code == 404
    token = client.headers["Authorization"].removeprefix("Bearer ")
    assert client.post("/login", data={"token": token}).status_code == 200
    assert client.get("/").text.count('class="card"') == 5
    older = client.get(f"/?before={made[1]}").text
    assert [study for study in made if study in older] == made[2:]


def test_metrics_show_how_many_came_and_read_each_release_once(one_bench, monkeypatch):
    """A study that nobody answers spends all the same: an alert can see it."""
    bench = one_bench
    study, number = bench.create(people=16 * 400, epsilon=20)
    bench.run_step(study, number, people=300)
    told = metrics(bench.studies).decode()
    (came,) = re.findall(rf'blindstep_came{{study="{study}"}} (\S+)', told)
    assert float(came) == pytest.approx(300 * 0.64 / 400, abs=0.15)  # 0.64 gave both answers
    with monkeypatch.context() as unread:
        unread.setattr(Studies, "account", lambda *_: 1 / 0)
        assert metrics(bench.studies).decode() == told
    bench.run_step(study, number, people=8)
    (came,) = re.findall(
        rf'blindstep_came{{study="{study}"}} (\S+)', metrics(bench.studies).decode()
    )
    assert float(came) < 0.2


def test_workers_that_wait_for_each_other_take_fewer_turns(one_bench, monkeypatch):
    """A writer gathers requests for as long as its last transaction took, so that more share the next.

    (For 3 ms always, 4 workers on SQLite spent 1.86 times the processor time of 1 on a request.)
    """
    writer, slept, now = Writer(one_bench.studies), [], [0.0]
    lasting = iter([0.001, 0.008, 0.5, 0.5])

    def serve(number, requests):
        now[0] += next(lasting)

    monkeypatch.setattr(writer, "_serve", serve)
    clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=slept.append)
    monkeypatch.setattr(voting, "time", clock)
    for many in (2, 2, 2, 1):
        writer._waiting = {1: [Request(1)] * many}
        writer._due.put(1)
        writer._due.put(None)
        writer._run()
    assert slept == pytest.approx([0.003, 0.008, 0.05])  # who comes alone waits for nobody
