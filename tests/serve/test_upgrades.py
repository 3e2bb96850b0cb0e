"""Upgrades under load, and one study or host in trouble beside others that are not."""

import asyncio
import os
import signal
import threading
import time

import psutil
import pytest
import sqlalchemy as sa
from benchmarks import serve_load
from test_forgetting import old  # noqa: F401

from blindstep.errors import LedgerDamaged
from blindstep.serve import schema, voting
from blindstep.serve.access import Access
from blindstep.serve.closing import StepCloser
from blindstep.serve.database import Database, SchemaUnknown
from blindstep.serve.lookout import Lookout
from blindstep.serve.voting import Request, Status, Writer
from service_process import serving
from serving import SECRETS, SPEC, Bench

NEWER = "ALTER TABLE studies ADD COLUMN later VARCHAR(9)"


def upgrade_to(database, revision, oldest):
    """What a later version's migration would do: it adds, and says who can go on."""
    with database.begin() as connection:
        connection.exec_driver_sql(NEWER)
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
        connection.exec_driver_sql(
            f"UPDATE settings SET value = '{revision} {oldest}' WHERE name = 'serves_from'"
        )


def test_a_later_schema_that_only_adds_is_served_and_another_one_is_not(bench):
    study, _ = bench.create()
    upgrade_to(bench.database, "9998", schema.SERVES_FROM)
    bench.database.check(SECRETS)
    assert bench.database.belongs_to(SECRETS) == ""
    assert bench.ask(study, "anna")[0].status is Status.ASKED
    with bench.database.begin() as connection:  # somebody else's, who says nothing of us
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaUnknown):
        bench.database.check(SECRETS)
    assert "schema" in bench.database.belongs_to(SECRETS)


def test_a_service_under_load_goes_on_while_its_tables_are_changed(bench):
    """No request fails; the change waits for nobody for long, and nobody for it."""
    _, number = bench.create()
    writer, ended = Writer(bench.studies, lanes=2), threading.Event()
    writer.start()
    seats = []

    async def people():
        while not ended.is_set():
            some = [Request(number, people=[os.urandom(16)]) for _ in range(8)]
            replies = await asyncio.gather(*(writer.submit(each) for each in some))
            seats.extend(seat.status for reply in replies for seat, _ in reply.seats)

    load = threading.Thread(target=lambda: asyncio.run(people()))
    load.start()
    until = time.monotonic() + 60
    while not seats:
        assert time.monotonic() < until
        time.sleep(0.01)
    upgrade_to(bench.database, "9998", schema.SERVES_FROM)
    before = len(seats)
    while len(seats) == before:
        assert time.monotonic() < until
        time.sleep(0.01)
    ended.set()
    load.join(60)
    writer.end()
    assert set(seats) == {Status.ASKED}
    assert bench.count(schema.asked) == len(seats)


_VOTE = """INSERT INTO votes (study, release, slot, part, sealed)
VALUES (:study, 1, :slot, 0, :sealed)"""


def test_tables_of_0_2_are_changed_whole_while_votes_come_in(old):  # noqa: F811
    """A vote of 0.2 is stored before the change or refused by the new tables: none is lost."""
    with old.read() as connection:
        number = connection.execute(
            sa.text("SELECT number FROM studies WHERE name = 'open'")
        ).scalar_one()
    stored, refused, began = [], threading.Event(), threading.Event()

    def votes():
        slot = 10_000
        while not refused.is_set():
            slot += 1
            try:
                with old.begin() as connection:
                    connection.execute(
                        sa.text(_VOTE),
                        {"study": number, "slot": slot, "sealed": bytes(28)},
                    )
            except sa.exc.DatabaseError:
                refused.set()
            else:
                stored.append(slot)
                began.set()

    load = threading.Thread(target=votes)
    load.start()
    try:
        assert began.wait(60)
        old.migrate()
        assert refused.wait(60)
    finally:
        refused.set()
        load.join(60)
    old.check(SECRETS)
    assert old.revision() == schema.REVISION
    bench = Bench(old)
    assert bench.count(schema.votes) == 0  # of open studies, which end with the change
    study, _ = bench.create()
    assert bench.ask(study, "anna")[0].status is Status.ASKED


def test_a_study_whose_lock_is_held_keeps_no_other_one_waiting(bench):
    """One writer for all studies, as there was, would wait."""
    (_, stuck), (_, other) = bench.create(), bench.create()
    holds, served = threading.Event(), threading.Event()
    if bench.database.kind == "sqlite":  # has one lock for all: what a study computes is stuck
        whole = voting._replies

        def replies(requests, reply, step):
            if reply.row["number"] == stuck:
                holds.set()
                assert served.wait(60)
            return whole(requests, reply, step)

        voting._replies = replies

    def host():
        with bench.database.begin() as connection, bench.database.working(connection):
            bench.database.locked(connection, stuck)
            holds.set()
            assert served.wait(60)

    async def people():
        first = asyncio.ensure_future(writer.submit(Request(stuck, people=[bytes(16)])))
        await asyncio.to_thread(holds.wait, 60)
        reply = await asyncio.wait_for(writer.submit(Request(other, people=[bytes(16)])), 60)
        assert not first.done()
        served.set()
        return reply, await first

    holding = threading.Thread(target=host)
    if bench.database.kind == "postgresql":
        holding.start()
        assert holds.wait(60)
    writer = Writer(bench.studies, lanes=2)
    writer.start()
    try:
        both = asyncio.run(people())
    finally:
        served.set()
        writer.end()
        if bench.database.kind == "sqlite":
            voting._replies = whole
        else:
            holding.join(60)
    assert {reply.seats[0][0].status for reply in both} == {Status.ASKED}


def lookout(bench):
    closer = StepCloser(bench.studies, 0.0)
    writer = Writer(bench.studies)
    closer.is_alive = writer.is_alive = lambda: True
    access = Access(bench.database, SECRETS)
    return Lookout(bench.database, SECRETS, access, writer, closer), closer


def test_readiness_tells_of_a_full_disk_and_of_a_study_that_is_stuck(tmp_path):
    bench, room = Bench(Database(f"sqlite:///{tmp_path}/votes.db")), []
    sa.event.listen(
        bench.database.engine,
        "checkout",
        lambda connection, *_: [connection.execute(f"PRAGMA query_only={on}") for on in room],
    )
    bench.database.migrate()
    bench.database.check(SECRETS)
    study, number = bench.create()
    made, closer = lookout(bench)
    assert not made.seen()[0]  # nobody has looked yet
    made.look()
    assert made.seen() == (True, "ready")
    room[:] = [1]
    made._tried = -1e9
    made.look()
    assert not made.seen()[0]
    assert "written" in made.seen()[1]
    room[:] = [0]
    made.look()
    assert made.seen() == (True, "ready")
    # A ledger that is damaged: its study is held, the worker is not, and it says so.
    bench.ask(study, "anna")
    bench.answer(number, 0, {("anna", 0): 1.0})
    with bench.database.begin() as connection:
        connection.exec_driver_sql("UPDATE ledger SET line = 'x'")
    bench.past_deadline(number)
    (row,) = closer.look_at_all()
    closer._each(row, closer.close)
    assert closer.troubled == {number: LedgerDamaged.__name__}
    assert made.seen() == (True, "ready, but 1 studies cannot be released: see the log")
    bench.database.close()


def test_a_window_that_a_clock_has_put_years_ahead_ends_in_time_again(bench):
    study, number = bench.create(window_seconds=60)
    with bench.database.begin() as connection:
        now = bench.database.now(connection)
        chosen = schema.studies.c.number == number
        connection.execute(
            sa.update(schema.studies).where(chosen).values(deadline=now + 60 * 5_256_000 + 7)
        )
    bench.studies.design(number)
    StepCloser(bench.studies, 0.0)._look()
    left = bench.studies.row(study)["deadline"] - now
    assert 0 < left <= 67
    assert (left - 7) % 60 == pytest.approx(0.0, abs=1e-3)


async def steadily(served, study, token, ended):
    """Requests one after the other on connections that are kept; what went wrong, and how many."""
    wrong, done = [], 0

    async def one(place):
        nonlocal done
        wire = serve_load.Wire("127.0.0.1", served.port, token)
        number = 0
        while not ended.is_set():
            number += 1
            try:
                path = f"/v1/studies/{study}/questions"
                status, _ = await wire.post(path, {"person": f"{place} {number}"})
                wrong.extend([status] if status != 200 else [])
            except Exception as error:
                wrong.append(error)
                wire.close()
                wire = serve_load.Wire("127.0.0.1", served.port, token)
            done += 1
            await asyncio.sleep(0.05)
        wire.close()

    await asyncio.gather(*(one(place) for place in range(16)))
    return wrong, done


@pytest.mark.slow
def test_workers_are_replaced_one_by_one_without_a_failed_request(tmp_path, empty_postgres):
    """SIGHUP to the service, as `systemctl reload` sends it, under load, three times."""
    with serving(tmp_path, database=empty_postgres, workers=2) as served:
        admin = served.client()
        study = admin.create(**SPEC)["id"]
        token, ended, results = admin.new_token("site", study)["token"], threading.Event(), []
        load = threading.Thread(
            target=lambda: results.extend(asyncio.run(steadily(served, study, token, ended)))
        )
        load.start()
        for _ in range(3):
            before = set(served.workers())
            os.kill(served.process.pid, signal.SIGHUP)
            until = time.monotonic() + 120
            while set(served.workers()) & before or len(served.workers()) != 2:
                assert time.monotonic() < until, served.log()
                time.sleep(0.2)
        ended.set()
        load.join(60)
        wrong, done = results
        assert done > 100
        assert wrong == []
        admin.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_that_ends_resets_nobody_and_leaves_nothing_behind(
    workers, tmp_path, monkeypatch
):
    """SIGTERM under load. Who comes too late is refused at the door, and may go elsewhere.

    (The supervisor listened on, and each of its 32 connections was reset when it ended.)
    """
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    with serving(tmp_path, workers=workers) as served:
        admin = served.client()
        study = admin.create(**SPEC)["id"]
        token, ended, results = admin.new_token("site", study)["token"], threading.Event(), []
        admin.close()
        load = threading.Thread(
            target=lambda: results.extend(asyncio.run(steadily(served, study, token, ended)))
        )
        load.start()
        time.sleep(2.0)
        assert any((tmp_path / "temporary").glob("blindstep-metrics-*"))
        served.process.terminate()
        served.process.wait(30)
        ended.set()
        load.join(60)
        wrong, done = results
        assert done > 100
        assert {type(each) for each in wrong} <= {ConnectionRefusedError}
        assert served.process.returncode == 0
        assert not any((tmp_path / "temporary").glob("blindstep-metrics-*"))


@pytest.mark.slow
def test_a_stopped_host_stops_no_other_one(tmp_path, empty_postgres):
    """Two services on one database, one stopped by SIGSTOP under load: the other goes on."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    key = ("--key-file", str(tmp_path / "key"))
    with (
        serving(tmp_path / "a", database=empty_postgres, options=key) as first,
        serving(tmp_path / "b", database=empty_postgres, options=key) as second,
    ):
        admin = first.client()
        studies = [admin.create(**SPEC)["id"] for _ in range(2)]
        token, ended, slow = admin.new_token("admin")["token"], threading.Event(), {}

        def go(served, study):
            slow[served.port, study] = asyncio.run(steadily(served, study, token, ended))

        loads = [
            threading.Thread(target=go, args=(served, study))
            for served in (first, second)
            for study in studies
        ]
        for each in loads:
            each.start()
        for _ in range(4):
            time.sleep(1.0)
            psutil.Process(first.process.pid).suspend()
            try:
                with second.client(patience=0, timeout=10) as other:
                    for study in studies:
                        began = time.monotonic()
                        assert other.study(study)["status"] == "running"
                        question = other.ask(study, f"new {began}")
                        assert question["status"] == "asked"
            finally:
                psutil.Process(first.process.pid).resume()
        ended.set()
        for each in loads:
            each.join(60)
        for (port, _), (wrong, done) in slow.items():
            assert done > 10
            # What the stopped host had under way may be refused, with a 503 that may be repeated.
            assert [each for each in wrong if each != 503 or port == second.port] == []
        admin.close()
