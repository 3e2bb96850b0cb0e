"""Corners of the trusted folder that no story leads through: other platforms, forks, ends of ranges."""

import errno
import hashlib
import importlib.util
import io
import math
import sys
import types
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.errors import InvalidArgument
from blindstep.trusted import accounting, durable, journal
from blindstep.trusted.account import Account
from blindstep.trusted.checkpoint import CURRENT, Checkpoint, CheckpointMeta
from blindstep.trusted.estimators import Kind, Query
from blindstep.trusted.increments import Chunk, increment, probe_points
from blindstep.trusted.journal import Head
from blindstep.trusted.oracle import Oracle
from blindstep.trusted.refusals import CheckpointDamaged, LedgerUnwritable
from blindstep.trusted.schedule import Schedule
from blindstep.trusted.sealed_json import seal, unseal
from losses import capped_distance
from storage_helpers import identity, open_ledger, overwrite


def test_delta_and_epsilon_stay_safe_at_the_ends_of_their_ranges():
    """Where the formula loses its digits, the answer is that of a larger mu: never too small."""
    for mu in (5e-324, 1e-17, 1e-9):
        assert accounting.delta(mu, 0.0) >= mu / math.sqrt(2 * math.pi)
        assert accounting.epsilon(mu, 1e-12) == accounting.epsilon(1e-7, 1e-12)
    assert accounting.delta(1e-7, 1e9) == 0.0
    assert accounting.delta(1e-7, 1e300) == 0.0
    # Phi(a) - e^epsilon Phi(a - mu) = 1/2 at a close to 0: epsilon is close to mu^2 / 2.
    assert accounting.epsilon(1e6, 0.5) >= 0.5e12
    assert accounting.epsilon(1e6, 0.5) == pytest.approx(0.5e12, rel=1e-8)
    with pytest.raises(InvalidArgument, match="needs a mu below 1e-07"):
        accounting.mu_for_epsilon(1e-9, 1e-12)
    with pytest.raises(InvalidArgument, match="protects nobody"):
        accounting.epsilon(1.1e6, 0.5)
    with pytest.raises(InvalidArgument, match="protects nobody"):
        accounting.mu_for_epsilon(1e12, 0.5)


def test_a_block_of_too_many_releases_is_refused_before_anything_is_allocated():
    with pytest.raises(InvalidArgument, match="a shorter period"):
        Schedule(records=2**62, first_batch=1, diff_batch=1, period=2**40, blocks=1)


def test_points_for_others_are_those_that_the_increment_evaluates():
    """Who evaluates elsewhere gets, record by record, the points that are evaluated here."""
    for sharing in ("record", "batch"):
        plan = bs.plan(records=20, dim=3, privacy=bs.Privacy(rho=1.0), radius=0.5, lipschitz=1.0,
                       oracle="naive", horizon=2, first_batch=4, directions=2, sampler="haar",
                       sharing=sharing)  # fmt: skip
        estimator = plan.build().oracle.estimator
        query = Query(jnp.ones(3), jnp.zeros(3), jax.random.key(5), Kind.GRAD)
        records = jnp.arange(12.0).reshape(4, 3)

        def loss(points, record):
            return jax.vmap(jax.vmap(lambda x: capped_distance(x, record)))(points)

        take = eqx.filter_jit(increment)
        here = take(estimator, query, loss, records, Chunk(4, 2))
        sets = eqx.filter_jit(probe_points)(estimator, query, jnp.arange(4))
        sets = jnp.broadcast_to(sets, (4, *sets.shape[1:]))
        values = jnp.stack([loss(points, z) for points, z in zip(sets, records, strict=True)])
        there = take(estimator, query, lambda _, v: v, values, Chunk(4, 2))
        np.testing.assert_allclose(there, here, rtol=0, atol=1e-12)


def test_the_noise_of_a_traced_oracle_is_an_argument_of_the_program():
    """A run compiles once for all budgets: inside, noise_std is no float that could be checked."""
    oracle = bs.plan(records=20, dim=2, privacy=bs.Privacy(rho=1.0), radius=0.5, lipschitz=1.0,
                     oracle="naive", horizon=2).build().oracle  # fmt: skip
    parts = {name: getattr(oracle, name) for name in Oracle.__annotations__}

    @jax.jit
    def released(noise_std):
        traced = Oracle(**parts | {"noise_std": noise_std})
        return traced.release(traced.init(), jnp.zeros(2), 0, 1, jnp.arange(8, dtype=jnp.uint32))[1]

    np.testing.assert_allclose(released(jnp.asarray(6.0)), 2 * released(jnp.asarray(3.0)))
    with pytest.raises(InvalidArgument, match="not private"):
        Oracle(**parts | {"noise_std": 0.0})


# -- storage -----------------------------------------------------------------------------------------


def test_a_run_registered_twice_under_one_key_is_no_history():
    account = Account()
    account.apply({"kind": "ledger", "at": "", "schema": 1, "records": "people"})
    entry = {"kind": "run", "at": "", **vars(identity())}
    account.apply(entry)
    for again in (entry, entry | {"plan": "q" * 64, "noise_key": "another"}):
        with pytest.raises(ValueError, match="registered twice"):
            account.apply(again)


@pytest.mark.parametrize("records", ["", None, 5])
def test_a_ledger_is_of_somebody(tmp_path, records):
    with pytest.raises((InvalidArgument, TypeError), match="records"):
        open_ledger(tmp_path / "x.jsonl", records=records)
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(durable.fcntl, "flock", no_locks)
    with pytest.raises(LedgerUnwritable, match=r"x\.jsonl\.lock cannot be locked \(No locks"):
        open_ledger(tmp_path / "x.jsonl")


def test_what_a_forked_child_does_first(tmp_path):
    """It lets go of every ledger; what it would write is refused (the fork itself: test_ledger)."""
    ledger = open_ledger(tmp_path / "x.jsonl")
    ledger.register(identity())
    journal._let_go_in_child()
    with pytest.raises(LedgerUnwritable, match="forked process never owns it"):
        ledger.begin("first", 0)
    open_ledger(tmp_path / "x.jsonl").close()  # the lock is free


def test_a_system_with_a_full_flush_gets_it(tmp_path, monkeypatch):
    """On macOS fsync stops at the drive's cache."""
    asked = []
    full = types.SimpleNamespace(F_FULLFSYNC=51, fcntl=lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(durable, "fcntl", full)
    with open(tmp_path / "x", "wb") as file:
        durable.flush(file.fileno())
        assert asked == [(file.fileno(), 51)]


def test_a_system_without_fcntl_can_still_import(monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    spec = importlib.util.spec_from_file_location("durable_elsewhere", durable.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.fcntl is None


def state_of(*members):
    packed, array = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array(array, np.zeros(2))
    with zipfile.ZipFile(packed, "w") as archive:
        for name in members:
            archive.writestr(zipfile.ZipInfo(name), array.getvalue())
    return packed.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("members", [("a.txt",), ("a",), ("a.npy", "a.npy")])
def test_members_that_are_no_arrays_or_share_a_name_are_refused(tmp_path, members):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save({"a": np.zeros(2)}, CheckpointMeta("r", "p", "d", 0, Head("a", 1, "b")))
    body = unseal((tmp_path / CURRENT).read_bytes()[:-1])[0]
    packed = state_of(*members)
    body["state_sha256"] = hashlib.sha256(packed).hexdigest()
    overwrite(tmp_path / body["state"], packed)
    overwrite(tmp_path / CURRENT, seal(body) + b"\n")
    with pytest.raises(CheckpointDamaged, match="names are not those of arrays"):
        checkpoint.load()
