"""A run that is cut short goes on with the same bits, and its ledger never says too little."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.drivers import compiled, fingerprints
from blindstep.drivers.session import Session
from blindstep.drivers.storage import SavingInterval, Storage
from blindstep.errors import HorizonExceeded, InvalidArgument
from blindstep.trusted.ledger import read_ledger
from blindstep.trusted.refusals import CheckpointMismatch, LedgerBusy
from losses import capped_distance
from resume_helpers import (
    CHOICES,
    DATA,
    HORIZON,
    Killed,
    cut_after,
    evaluations,
    same,
    small_run,
)

EPOCHS = 16


@pytest.fixture(scope="module")
def uninterrupted():
    with jax.enable_x64(True):
        return small_run()


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.mark.parametrize("share", [0, 1])
@pytest.mark.parametrize("before_saving", [False, True])
def test_a_run_cut_at_every_third_epoch_gives_the_same_bits(
    run, monkeypatch, uninterrupted, share, before_saving
):
    """With every epoch saved, and with none saved: then all are replayed, at no charge."""
    epochs = [1, 3, 7] if share else [2, 5, 15]
    for number in epochs:
        cut_after(monkeypatch, run, number, share=share, before_saving=before_saving)
        account = read_ledger(run / "ledger.jsonl")
        (begun,) = (r.next_step for r in account.runs.values())
        assert begun >= number * HORIZON
        passes = math.ceil(begun / (EPOCHS // 2 * HORIZON))
        assert account.spent() == pytest.approx(uninterrupted.plan.mu * math.sqrt(passes / 2))
    assert same(small_run(run), uninterrupted)
    assert read_ledger(run / "ledger.jsonl").spent() == pytest.approx(uninterrupted.plan.mu)


def test_a_finished_run_is_returned_and_releases_nothing(run, monkeypatch, uninterrupted):
    first = small_run(run)
    files = {path.name: path.read_bytes() for path in run.iterdir()}
    evaluated = evaluations(monkeypatch)
    again = small_run(run)
    assert same(first, again)
    assert same(again, uninterrupted)
    assert np.array_equal(first.history.seconds, again.history.seconds)
    assert not evaluated
    assert {path.name: path.read_bytes() for path in run.iterdir()} == files


def test_an_unseeded_run_keeps_its_key(run, monkeypatch):
    cut_after(monkeypatch, run, 3, share=1, seed=None)
    one = small_run(run, seed=None)
    assert not one.privacy.seeded
    assert same(one, small_run(run, seed=None))
    assert "seed" in str(small_run(run.with_name("seeded")).privacy)


def test_the_directory_is_for_its_owner_only(run):
    small_run(run)
    assert run.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in run.iterdir()} == {0o600}
    names = {path.name for path in run.iterdir()}
    assert {"ledger.jsonl", "checkpoint.json", "plan.json"} <= names
    assert bs.Plan.from_json((run / "plan.json").read_text()).horizon == HORIZON


def test_memory_mapped_records_are_resumed(run, tmp_path, monkeypatch, uninterrupted):
    np.save(tmp_path / "records.npy", DATA)
    mapped = np.load(tmp_path / "records.npy", mmap_mode="r")
    cut_after(monkeypatch, run, 5, share=1, data=mapped, before_saving=True)
    assert same(small_run(run, data=mapped), uninterrupted)
    cut_after(monkeypatch, run.with_name("in-memory"), 5, share=1, before_saving=True)
    assert same(small_run(run.with_name("in-memory"), data=jnp.asarray(DATA)), uninterrupted)


def test_an_epoch_over_several_passes_charges_each(run, monkeypatch):
    choices = {"oracle": "naive", "period": 1, "first_batch": 40, "horizon": 5, "diff_batch": None}
    choices |= {"passes": 10}
    whole = small_run(**choices)
    assert whole.plan.passes > whole.plan.epochs
    cut_after(monkeypatch, run, 2, share=1, before_saving=True, **choices)
    account = read_ledger(run / "ledger.jsonl")
    per_pass = whole.plan.mu / math.sqrt(whole.plan.passes)
    assert account.spent() == pytest.approx(per_pass * math.sqrt(2 * 5 / (96 // 40)))
    assert same(small_run(run, **choices), whole)
    assert read_ledger(run / "ledger.jsonl").spent() == pytest.approx(whole.plan.mu)


def steeper(x, z):
    return capped_distance(x, z) * 1.0000001


def with_constant(value):
    array = jnp.full(2, value)
    return lambda x, z: jax.jit(lambda a: jnp.sum(jnp.abs(a - array)))(x) + capped_distance(x, z)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data": DATA * (1 + 1e-15)}, "another data"),
        ({"data": DATA.astype(np.float32)}, "another data"),
        ({"radius": 0.6}, "plan.json is another plan"),
        ({"loss": steeper}, "another loss"),
        ({"start": jnp.ones(2)}, "another params"),
        ({"seed": 8}, "another seed"),
    ],
)
def test_what_changed_is_refused(run, monkeypatch, change, says):
    cut_after(monkeypatch, run, 2, share=1)
    before = (run / "ledger.jsonl").read_bytes()
    evaluated = evaluations(monkeypatch)
    with pytest.raises(CheckpointMismatch, match=says):
        small_run(run, **change)
    assert not evaluated
    assert (run / "ledger.jsonl").read_bytes() == before


def test_the_fingerprint_of_a_loss_sees_its_constants():
    one, two, other = (
        fingerprints.of_loss(with_constant(value), jnp.zeros(2), DATA) for value in (1.0, 1.0, 2.0)
    )
    assert one == two != other


def test_other_versions_may_go_on_but_not_repeat(tmp_path, monkeypatch, uninterrupted):
    """Where nothing has to be repeated bit for bit, a new version of JAX is no obstacle."""
    behind, level = tmp_path / "behind", tmp_path / "level"
    cut_after(monkeypatch, behind, 3, share=1, before_saving=True)
    cut_after(monkeypatch, level, 3, share=1)
    other = "versions, devices or compiler flags"
    with monkeypatch.context() as patch:
        patch.setattr(fingerprints, "of_environment", lambda data: "e" * 64)
        with pytest.raises(CheckpointMismatch, match=other):
            small_run(behind)
        cut_after(patch, level, 1, share=0)
    # That epoch was begun by the other version, and cannot be repeated by this one.
    with pytest.raises(CheckpointMismatch, match=other):
        small_run(level)
    assert same(small_run(behind), uninterrupted)


def test_two_at_once_are_refused(run, monkeypatch):
    cut_after(monkeypatch, run, 2, share=1)
    refused = []

    def meanwhile(*arguments):
        with pytest.raises(LedgerBusy, match=r"ledger\.jsonl is being written"):
            small_run(run)
        refused.append(1)
        raise Killed

    monkeypatch.setattr(compiled, "run_epoch", meanwhile)
    with pytest.raises(Killed):
        small_run(run)
    assert refused


def test_steps_are_released_in_order_and_not_past_the_end(run):
    plan = bs.plan(records=96, dim=2, **CHOICES)
    machine = plan.build()
    start = machine.begin(jnp.zeros(2))
    known = fingerprints.Fingerprints("d" * 64, "a" * 64, "", "e" * 64)
    with Session(machine, plan, start, Storage(run), lambda: known) as session:
        with pytest.raises(InvalidArgument, match="step 1 is not next"):
            session.before_release(1, replay=True)
        with pytest.raises(HorizonExceeded, match=r"steps 0 \.\. 64 of a run of 64"):
            session.before_release(0, 65, replay=True)
        session.save(start, 0, {"answers": np.arange(3.0)})  # before the release they belong to
        session.before_release(0, replay=True)
    with Session(machine, plan, start, Storage(run), lambda: known) as session:
        assert np.array_equal(session.saved["answers"], np.arange(3.0))
        with pytest.raises(bs.BlindstepError, match="consumed in this pass"):
            session.before_release(0, replay=False)
        session.before_release(0, replay=True)
    assert read_ledger(run / "ledger.jsonl").spent() == machine.oracle.mu_per_pass()


@pytest.mark.parametrize(("epoch", "save"), [(0.001, 0.01), (0.01, 0.3), (5.0, 0.01), (1.0, 0.0)])
def test_saving_takes_a_twentieth_of_the_time_at_most(epoch, save):
    now = [0.0]

    def spend(seconds):
        now[0] += seconds

    interval, saves = SavingInterval(clock=lambda: now[0]), 0
    interval.measure(lambda: spend(save))  # the first save is not optional
    for _ in range(3000):
        spend(epoch)
        if interval.due():
            interval.measure(lambda: spend(save))
            saves += 1
    assert (saves + 1) * save <= 0.05 * now[0] + save
    assert saves >= min(3000, 0.04 * 3000 * epoch / save) - 1 if save else saves == 3000


def test_one_fingerprint_for_the_same_data_however_held(tmp_path, monkeypatch):
    data = {"x": np.arange(60, dtype=np.float32).reshape(12, 5), "y": np.arange(12)}
    np.save(tmp_path / "x.npy", data["x"])
    mapped = {"x": np.load(tmp_path / "x.npy", mmap_mode="r"), "y": data["y"]}
    whole = fingerprints.of_data(data)
    assert fingerprints.of_data(mapped) == whole
    assert fingerprints.of_data(jax.tree.map(jnp.asarray, data)) == whole
    assert fingerprints.of_data({**data, "x": np.asfortranarray(data["x"])}) == whole
    monkeypatch.setattr(fingerprints, "_CHUNK", 64)
    assert fingerprints.of_data(mapped) == whole
    one_bit = data["x"].copy()
    one_bit.view(np.uint32)[11, 4] ^= 1
    others = [{**data, "x": one_bit}, {"x": data["x"], "z": data["y"]}]
    others += [{**data, "x": data["x"].reshape(12, 5, 1)}, {**data, "y": data["y"].view(np.uint64)}]
    others += [{"x": data["x"][::-1], "y": data["y"]}]
    assert len({whole, *map(fingerprints.of_data, others)}) == 6
