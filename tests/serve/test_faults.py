"""The service as processes: workers killed, the database stopped, the disk full.

Nothing acknowledged is lost, nothing counts twice, each release happens once, and the result is that of
an undisturbed run.
"""

import contextlib
import os
import random
import signal
import threading
import time
from sqlite3 import OperationalError

import pytest
import sqlalchemy as sa

from blindstep.serve import Client, Refused, schema
from blindstep.serve.database import Database, is_passing
from blindstep.serve.keys import from_file
from blindstep.serve.studies import Studies, change
from blindstep.serve.voting import Status
from postgres import postgres
from service_process import serving
from serving import SECRETS, SPEC, Bench, made_again, table_of

PEOPLE = 16 * 12


def value_of(person: int, part: int) -> int:
    """What a person says: a function of who and which question, so that a repeat is the same."""
    return (person * 2654435761 >> 7) + part & 1


class Crowd(threading.Thread):
    """People of one window, who keep trying until the service says that it has their answers."""

    def __init__(self, address, token, study, people):
        super().__init__(daemon=True)
        self.client = Client(address, token, patience=240, timeout=10)
        self.study, self.people = study, people
        self.acknowledged, self.failed = [], None

    def run(self):
        try:
            for person in self.people:
                self.visit(person)
        except Exception as error:
            self.failed = error
        finally:
            self.client.close()

    def visit(self, person):
        while (question := self.client.ask(self.study, f"person {person}"))["status"] == "paused":
            time.sleep(0.02)  # between two windows
        while question is not None:
            assert question["status"] == "asked"
            value = value_of(person, question["part"])
            taken = self.client.answer(question["token"], value)
            self.acknowledged.append((question["token"], value))
            question = taken["next"]


def end_window(admin, study, step):
    """End a window, and wait for its release, whatever happens to the service meanwhile."""
    with contextlib.suppress(Refused):  # the reply to the first try was lost: the next step is open
        admin.end_window(study, step)
    until = time.monotonic() + 300
    while admin.study(study)["steps_released"] < step:
        assert time.monotonic() < until
        time.sleep(0.05)


def run_disturbed(served, disturb, threads=6, people=PEOPLE):
    """A whole study with `disturb(done)` going on beside it; gives its id and what was acknowledged."""
    admin = served.client(patience=240)
    made = admin.create(**(SPEC | {"people": people}))
    study, steps = made["id"], made["steps"]
    token = admin.new_token("site", study)["token"]
    done, acknowledged = threading.Event(), []
    beside = threading.Thread(target=disturb, args=(done,), daemon=True)
    beside.start()
    for step in range(steps):
        own = range(step * people // steps, (step + 1) * people // steps)
        crowds = [Crowd(served.address, token, study, own[at::threads]) for at in range(threads)]
        for crowd in crowds:
            crowd.start()
        for crowd in crowds:
            crowd.join(300)
            assert not crowd.is_alive()
            assert crowd.failed is None, crowd.failed
            acknowledged += crowd.acknowledged
        end_window(admin, study, step + 1)
    done.set()
    beside.join(60)
    assert admin.study(study)["status"] == "finished"
    admin.close()
    return study, acknowledged


def check_undisturbed(url, key, study, acknowledged):
    """Each release once, each charge once, and all the same as from the same answers undisturbed."""
    database = Database(url)
    studies = Studies(database, key)
    number = studies.number(study)
    design = studies.design(number)
    answers: dict[int, dict] = {release: {} for release in range(design.releases)}
    for token, value in acknowledged:
        address = key.read_question(token).address
        where = (address.person, address.part)
        assert where not in answers[address.release]  # nobody shares a question
        answers[address.release][where] = 1.0 - value
    salts, state = kept_salts(database, number), None
    assert len(studies.history(number)) == design.releases
    for release in range(design.releases):
        # The noise depends on all votes: the same release means none lost, and none counted twice.
        votes = table_of(answers[release], lambda person, at=release: design.role(person, at))
        history = studies.history(number)
        made = made_again(design, key, release, salts[release], state, votes, history[:release])
        state = studies.snapshot(number, release + 1)[0]
        assert (made.state, made.outcome) == (state, history[release])
    account = studies.account(studies.row(study)["cohort"])
    assert account.spent() == design.plan.mu
    assert account.runs[study].next_step == design.releases
    with database.read() as connection:
        left = connection.execute(sa.select(sa.func.count()).select_from(schema.votes))
        assert left.scalar_one() == 0
    database.close()


# The service forgets the salts of its noise: to compare bits, the database is made to keep them.
_KEEP = """CREATE TABLE kept
(study INTEGER, release INTEGER, salt BYTEA, PRIMARY KEY (study, release))"""
_KEEP_SQLITE = """CREATE TRIGGER keep AFTER UPDATE ON studies WHEN NEW.salt IS NOT NULL BEGIN
INSERT OR IGNORE INTO kept VALUES (NEW.number, NEW.release, NEW.salt); END"""
_KEEP_POSTGRES = """CREATE FUNCTION keep() RETURNS trigger AS $$ BEGIN
IF NEW.salt IS NOT NULL THEN
INSERT INTO kept VALUES (NEW.number, NEW.release, NEW.salt) ON CONFLICT DO NOTHING; END IF;
RETURN NEW; END $$ LANGUAGE plpgsql"""
_ON_UPDATE = "CREATE TRIGGER keep AFTER UPDATE ON studies FOR EACH ROW EXECUTE FUNCTION keep()"


def keep_salts(url):
    database = Database(url)
    sqlite = database.kind == "sqlite"
    with database.begin() as connection:
        for each in (_KEEP, *([_KEEP_SQLITE] if sqlite else [_KEEP_POSTGRES, _ON_UPDATE])):
            connection.exec_driver_sql(each)
    database.close()


def kept_salts(database, number):
    with database.read() as connection:
        found = connection.execute(
            sa.text(f"SELECT release, salt FROM kept WHERE study = {number}")
        )
        return {release: bytes(salt) for release, salt in found}


def key_of(served):
    return from_file(served.folder / "blindstep.key")


def kill_workers(served, kills, chance):
    """Kill a random worker so many times, at random moments; gives the function that does it."""
    killed = []

    def disturb(done):
        while len(killed) < kills and not done.is_set():
            time.sleep(chance.uniform(0.05, 0.6))
            workers = served.workers()
            if workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed.append(1)

    return disturb, killed


@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"])
def test_killed_workers_lose_nothing(kind, tmp_path, request):
    url = f"sqlite:///{tmp_path}/blindstep.db"
    if kind == "postgresql":
        url = request.getfixturevalue("empty_postgres")
    with serving(tmp_path, database=url, workers=2) as served:
        keep_salts(url)
        disturb, killed = kill_workers(served, 2, random.Random(0))
        study, said = run_disturbed(served, disturb)
        assert killed
        check_undisturbed(url, key_of(served), study, said)


@pytest.mark.slow
def test_a_hundred_kills(tmp_path, empty_postgres):
    """Study after study until 100 workers were killed under load."""
    total = 0
    with serving(tmp_path, database=empty_postgres, workers=2) as served:
        keep_salts(empty_postgres)
        while total < 100:
            disturb, killed = kill_workers(served, 100 - total, random.Random(total))
            study, said = run_disturbed(served, disturb)
            check_undisturbed(empty_postgres, key_of(served), study, said)
            total += len(killed)


@pytest.mark.slow
def test_a_database_that_stops_and_starts_loses_nothing(tmp_path):
    with postgres() as server, serving(tmp_path, database=server.url, workers=1) as served:
        keep_salts(server.url)

        def disturb(done):
            for _ in range(3):
                if done.wait(1.0):
                    return
                server.stop()
                time.sleep(0.5)
                server.start()

        study, said = run_disturbed(served, disturb)
        check_undisturbed(server.url, key_of(served), study, said)
        assert "a batch failed" in served.log()


def test_a_host_that_stops_inside_a_transaction_stops_no_other_one(empty_postgres):
    """Its locks are taken from it, it cannot commit, and a healthy host goes on. (In 0.2: refused.)"""
    healthy, stopped = (Bench(Database(empty_postgres)) for _ in range(2))
    healthy.database.migrate()
    study, number = healthy.create()
    inside, served = threading.Event(), threading.Event()
    failed = []

    def stops():
        try:
            with stopped.database.begin() as connection:
                stopped.database.locked(connection, number)
                change(connection, number, deadline=0.0)
                inside.set()
                assert served.wait(60)
        except Exception as error:
            failed.append(error)

    host = threading.Thread(target=stops)
    host.start()
    assert inside.wait(60)
    seats = healthy.ask(study, "anna")
    served.set()
    host.join(60)
    assert [seat.status for seat in seats] == [Status.ASKED]
    assert is_passing(failed[0])
    assert healthy.studies.row(study)["deadline"] > 0.0
    for each in (healthy, stopped):
        each.database.close()


def test_a_full_disk_refuses_and_then_goes_on(tmp_path):
    """SQLite that may not grow says what it says on a full disk; with room it goes on."""
    room = []
    bench = Bench(Database(f"sqlite:///{tmp_path}/votes.db"))
    sa.event.listen(
        bench.database.engine,
        "checkout",
        lambda connection, *_: [
            connection.execute(f"PRAGMA max_page_count={pages}") for pages in room
        ],
    )
    bench.database.migrate()
    bench.database.check(SECRETS)
    study, number = bench.create(people=16 * 400)
    with bench.database.read() as connection:
        room.append(connection.exec_driver_sql("PRAGMA page_count").scalar_one() + 3)
    answers = {}

    def fill():
        for person in range(400):
            bench.ask(study, f"0-{person}")
            assert bench.answer(number, 0, {(f"0-{person}", 0): 1.0}) == [Status.ACCEPTED]
            answers[f"0-{person}", 0] = 1.0

    with pytest.raises(OperationalError, match="full"):
        fill()
    assert len(answers) <= bench.count(schema.asked) <= len(answers) + 1
    assert len(answers) == bench.count(schema.votes)
    room[:] = [10**6]
    bench.close_step(number)
    votes = bench.table(study, answers)
    design = bench.studies.design(number)
    made = made_again(design, SECRETS, 0, bench.salts[study, 0], None, votes)
    assert made.state == bench.studies.snapshot(number, 1)[0]
    bench.database.close()
