"""Runs on people with several rows: every driver, across crashes, in ledgers and reports."""

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.insight.report import report_run_directory
from blindstep.insight.tables import read_spending, spending_numbers
from driver_runs import DATA, NAIVE_PLAN, cut_after, run, same
from losses import capped_distance_numpy
from people_tables import NAMES, PEOPLE, TABLE, distances

UNIT = "one person (all rows of one identifier are one record, at most 8 of them used)"


@pytest.mark.slow
def test_all_drivers_make_the_same_run_of_people(tmp_path):
    on_disk = np.memmap(tmp_path / "table", dtype=float, mode="w+", shape=TABLE.shape)
    on_disk[:] = TABLE
    options = {"data": TABLE, "people": NAMES}
    one = run("compiled", **options)
    assert same(one, run("compiled", **options | {"data": on_disk}))
    assert same(one, run("compiled", **options | {"data": jnp.asarray(TABLE), "people": PEOPLE}))
    loss = {"loss": distances, "vectorized": True}
    for other in (run("host", **options), run("host", **options, **loss)):
        np.testing.assert_allclose(one.means, other.means, rtol=1e-9, atol=1e-12)
        assert other.privacy == one.privacy
    assert one.privacy.unit == UNIT
    assert f"Protected: {UNIT}" in str(one.privacy)
    # The numbers are those of a run on as many records: only whom they are about has changed.
    assert one.privacy.mu == run("compiled").privacy.mu


def test_people_with_one_row_each_are_records():
    one = run("compiled", people=[f"{number:02}" for number in range(24)])
    np.testing.assert_allclose(one.means, run("compiled").means, rtol=1e-12)


@pytest.mark.slow
def test_a_time_limit_is_kept_for_people():
    def loss(x, z):
        import time

        if z[0] > 100:
            time.sleep(3600)
        return np.linalg.norm(x - z)

    people, spoiled = bs.People(PEOPLE, rows=2), TABLE.copy()
    options = {"method": NAIVE_PLAN, "people": people, "seed": 7}
    spoiled[PEOPLE == 9] = 1e3
    void = TABLE.copy()
    void[PEOPLE == 9] = np.nan
    found = bs.minimize(loss, np.zeros(2), spoiled, evaluate=bs.Host(timeout=2.0), **options)
    alone = bs.minimize(loss, np.zeros(2), void, evaluate=bs.Host(), **options)
    np.testing.assert_array_equal(found.means, alone.means)


def test_the_loss_of_a_person_brings_no_jax_to_a_sandbox():
    code = "import blindstep.losses.portable, sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("driver", ["compiled", "host"])
def test_a_run_of_people_cut_short_gives_the_same_bits(driver, tmp_path, monkeypatch):
    options = {"data": TABLE, "people": NAMES}
    whole = run(driver, **options)
    cut_after(monkeypatch, 5, driver, tmp_path / "run", **options)
    # Other rows of the same people, or the rows for people, would meet the same noise.
    for other in ({"people": bs.People(NAMES, rows=7)}, {"people": None, "data": TABLE[:24]}):
        with pytest.raises(bs.errors.CheckpointMismatch, match="another people or rows"):
            run(driver, tmp_path / "run", **options | other)
    with pytest.raises(bs.errors.CheckpointMismatch, match="another data"):
        run(driver, tmp_path / "run", **options | {"people": np.roll(NAMES, 1)})
    assert same(whole, run(driver, tmp_path / "run", **options))


def test_ledger_and_report_name_the_unit(tmp_path):
    run("compiled", tmp_path / "run", data=TABLE, people=NAMES)
    said = spending_numbers(read_spending(tmp_path / "run"))
    assert (said["unit"], said["runs"][0]["unit"]) == ("one person", UNIT)
    page = report_run_directory(tmp_path / "run", tmp_path / "page.html").read_text()
    assert UNIT in page
    assert "Your record is all rows of yours together" in page
    assert "people protected, each on its own" in page
    assert "records are yours" not in page


def test_a_ledger_does_not_add_up_different_units(tmp_path):
    ledger, calls = tmp_path / "people.jsonl", []

    def loss(x, z):
        calls.append(z[0])
        return capped_distance_numpy(x, z)

    # Made-up records are drawn as DATA are here, so they are left out.
    rows = {"ledger": ledger, "plan": NAIVE_PLAN, "loss": loss, "rehearse": False}
    people = {**rows, "data": TABLE, "people": NAMES}
    run("host", **people, seed=1)
    before, spent = ledger.read_bytes(), read_spending(ledger).spent()
    calls.clear()
    with pytest.raises(bs.errors.LedgerMismatch) as caught:
        run("host", **rows, seed=2)
    assert "its runs protect one person, and run 'run-" in str(caught.value)
    assert "would protect one record: their mus do not add up" in str(caught.value)
    assert "`people=`" in str(caught.value)
    assert "another ledger" in str(caught.value)
    assert not set(calls) & set(DATA[:, 0])  # before a record was looked at
    assert ledger.read_bytes() == before
    # How many rows are used does not change whom the mu is about.
    run("host", **people | {"people": bs.People(NAMES, rows=2)}, seed=3)
    assert read_spending(ledger).spent() == pytest.approx(spent * np.sqrt(2))


MESH = """
import jax, numpy as np, blindstep as bs
from jax.sharding import NamedSharding, PartitionSpec
from driver_runs import NAIVE_PLAN
from losses import capped_distance
from people_tables import NAMES, PEOPLE, TABLE

jax.config.update("jax_disable_most_optimizations", True)
mesh = jax.make_mesh((2,), ("x",))
even = len(TABLE) // 2 * 2
def spread(rows):
    return jax.device_put(rows, NamedSharding(mesh, PartitionSpec("x")))
def found(data, people):
    return bs.minimize(capped_distance, np.zeros(2), data, people=people, method=NAIVE_PLAN, seed=7)
with jax.enable_x64(True):
    here, there = (found(put(TABLE[:even]), NAMES[:even]) for put in (np.asarray, spread))
    np.testing.assert_allclose(here.means, there.means, rtol=1e-9, atol=1e-12)
    try:
        found(spread(TABLE[:even]), np.where(PEOPLE == 0, 1, PEOPLE)[:even])
    except bs.InvalidArgument as error:
        assert "23 people cannot be spread evenly over 2 devices" in str(error), error
    else:
        raise AssertionError
"""


@pytest.mark.slow
def test_people_are_spread_over_the_devices_that_their_rows_are_on():
    places = [os.path.dirname(__file__), os.path.dirname(sys.modules["losses"].__file__)]
    flags = "--xla_force_host_platform_device_count=2"
    env = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join([*places, *sys.path])}
    done = subprocess.run([sys.executable, "-c", MESH], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
