"""What is left on the disk, and an older database brought up to date."""

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from blindstep.serve import closing, reading, schema
from blindstep.serve.database import Database
from blindstep.serve.studies import Studies
from serving import SECRETS, Bench

# The tables of a database that 0.2.0 has written under the key of SECRETS: a study that is finished,
# one in its second step, and one whose step is frozen.
OLD = Path(__file__).with_name("database_0001.json")


@pytest.fixture
def filed(tmp_path):
    """A study in a file, with an open step; what of its votes must be gone; and where to look."""
    bench = Bench(Database(f"sqlite:///{tmp_path}/votes.db"))
    bench.database.migrate()
    bench.database.check(SECRETS)
    study, number = bench.create()
    names = [f"person {n}" for n in range(200)]
    bench.ask(study, *names)
    bench.answer(number, 0, {(name, part): 0.5 for name in names for part in (0, 1)})
    bench.past_deadline(number)
    with bench.database.read() as connection:
        kept = [bytes(v) for v in connection.execute(sa.select(schema.votes.c.sealed)).scalars()]
    yield bench, number, kept, lambda: b"".join(f.read_bytes() for f in tmp_path.iterdir())
    bench.database.close()


def found(kept, content):
    return sum(each in content for each in kept)


def test_no_file_holds_votes_or_salt_of_a_released_step(filed):
    """Of SQLite's files also not the write-ahead log, which holds them until it is cut off."""
    bench, number, kept, content = filed
    assert len(kept) == 400
    closer = closing.StepCloser(bench.studies, 0.0)
    row = bench.studies.row(number)
    assert bench.freeze(number, closer._holder)
    kept.append(bytes(bench.studies.row(number)["salt"]))
    assert found(kept, content()) == 401
    assert bench.release(number, closer._holder)
    assert found(kept, content()) == 401  # without cutting it off all of them are still there
    closer._forgetting = True
    closer._look()
    assert found(kept, content()) == 0
    # The worker does both.
    bench.ask(row["id"], "late")
    bench.answer(number, 1, {("late", 0): 0.5})
    with bench.database.read() as connection:
        kept = [bytes(v) for v in connection.execute(sa.select(schema.votes.c.sealed)).scalars()]
    bench.past_deadline(number)
    closer._look()
    closer._under_way[number].join(60)
    closer._look()
    assert bench.studies.row(number)["release"] == 2
    assert found(kept, content()) == 0
    for thread in closer._under_way.values():
        thread.join(60)


def test_who_reads_meanwhile_puts_it_off_and_not_away(filed):
    bench, number, kept, content = filed
    closer = closing.StepCloser(bench.studies, 0.0)
    with bench.database.read() as connection:
        connection.execute(sa.select(schema.votes)).all()
        closer.close(bench.studies.row(number))
        closer._look()
        assert closer._forgetting
        assert found(kept, content()) == 400
    closer._look()
    assert not closer._forgetting
    assert found(kept, content()) == 0


def test_closing_a_study_removes_its_votes_from_the_disk(filed):
    bench, number, kept, content = filed
    bench.studies.close(bench.studies.row(number)["id"])
    assert found(kept, content()) == 0


@pytest.fixture
def old(url):
    """A database at revision 0001, with what 0.2.0 wrote into one."""
    database = Database(url)
    config = Config()
    folder = Path(schema.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    with database.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        tables = sa.MetaData()
        tables.reflect(connection)
        for name, rows in json.loads(OLD.read_text()).items():
            held = [{k: raw(v) for k, v in row.items()} for row in rows]
            connection.execute(sa.insert(tables.tables[name]), held)
    yield database
    database.close()


def raw(value):
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def test_a_database_of_0_2_is_brought_up_to_date(old):
    """What was released stays, with its ledger; what was open is closed, and its votes are deleted."""
    before = json.loads(OLD.read_text())
    old.migrate()
    old.check(SECRETS)
    assert old.revision() == schema.REVISION
    bench = Bench(old)
    studies = bench.studies
    rows = {row["name"]: row for row in studies.all()}
    assert {name: row["status"] for name, row in rows.items()} == {
        "done": "finished",
        "open": "closed",
        "frozen": "closed",
    }
    assert bench.count(schema.votes) == bench.count(schema.asked) == 0
    for row in rows.values():
        assert (row["frozen"], row["salt"], row["holder"]) == (0, None, None)
        first = [each for each in before["releases"] if each["study"] == row["number"]]
        assert studies.history(row["number"]) == [json.loads(each["outcome"]) for each in first]
    done = studies.design(rows["done"]["number"])
    assert (done.releases, done.planned) == (4, 8)
    assert reading.result(done, studies.history(done.number)).params.shape == (2,)
    told = json.loads(before["releases"][3]["outcome"])["parameters"]
    assert studies.parameters(rows["done"]["id"]) == (4, told)
    # A cohort's budget knows what its study of before has spent.
    spent = studies.account("readers").spent()
    assert spent == pytest.approx(done.plan.mu, rel=0.1)
    study, number = bench.create(cohort="readers")
    bench.run_step(study, number)
    assert Studies(old, SECRETS).account("readers").spent() > spent


def test_an_old_database_is_not_served_before_it_is_brought_up_to_date(old):
    with pytest.raises(Exception, match="0001"):
        old.check(SECRETS)
