"""Every noise draw of real runs, recorded on its way into the release: no two coincide."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blindstep import NoEntropy, Optimizer, host, plan
from blindstep.trusted import arithmetic, randomness
from losses import capped_distance
from resume_helpers import CHOICES, DATA, HORIZON, cut_after, small_run

EPOCHS = 16


@pytest.fixture(scope="module")
def watched():
    """The draws of all runs under `loss`, as (block, step, draw), in the order they were made."""
    drawn, real = [], arithmetic.gaussian

    def recording(key, block, step, dim):
        draw = real(key, block, step, dim)
        # As bits: a callback's thread may round float64 to float32.
        bits = jax.lax.bitcast_convert_type(draw, jnp.uint32)
        jax.debug.callback(
            lambda *seen: drawn.append(tuple(map(np.array, seen))), block, step, bits
        )
        return draw

    def loss(x, z):  # another function, so that nothing compiled without recording is used
        return capped_distance(x, z)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arithmetic, "gaussian", recording)
        yield drawn, loss


def draws_of(watched, run):
    """What a run drew: {(block, step): draw}. A draw made again must be the same."""
    drawn, loss = watched
    drawn.clear()
    run(loss)
    jax.effects_barrier()
    found = {}
    for block, step, bits in drawn:
        address, draw = (int(block), int(step)), bits.view(np.float64)[:, 0]
        assert np.array_equal(found.setdefault(address, draw), draw)
    return found


def all_different(*runs):
    numbers = np.abs(np.concatenate([np.ravel(draw) for run in runs for draw in run.values()]))
    return len(np.unique(numbers)) == numbers.size


def test_no_two_draws_of_two_runs_coincide(watched):
    runs = [draws_of(watched, lambda loss: small_run(loss=loss, seed=None)) for _ in range(2)]
    for run in runs:
        # One draw for each release: every step of every block, in both passes.
        assert set(run) == {(b, s) for b in range(EPOCHS) for s in range(1, HORIZON + 1)}
    assert all_different(*runs)
    # The same could be seen: a run compared with itself has every number twice.
    assert not all_different(runs[0], runs[0])


@pytest.mark.parametrize("share", [0, 1])
def test_a_resumed_run_draws_what_was_left_and_nothing_twice(watched, tmp_path, monkeypatch, share):
    directory = tmp_path / "run"
    cut = {"share": share, "before_saving": True, "seed": None}
    before = draws_of(watched, lambda loss: cut_after(monkeypatch, directory, 5, loss=loss, **cut))
    after = draws_of(watched, lambda loss: small_run(directory, loss=loss, seed=None))
    assert len(before) == 5 * HORIZON
    assert len(before | after) == EPOCHS * HORIZON
    # What was drawn before the crash and is drawn again is the same to the last bit.
    again = before.keys() & after.keys()
    assert again
    assert all(np.array_equal(before[a], after[a]) for a in again)
    assert all_different(before | after)


def test_no_entropy_stops_every_driver_before_anything_is_evaluated(monkeypatch, tmp_path):
    def broken(n):
        raise OSError("no getrandom")

    def never(x, z):
        raise AssertionError("evaluated")

    monkeypatch.setattr(os, "urandom", broken)
    with pytest.raises(NoEntropy, match="nothing was released"):
        small_run(seed=None)
    with pytest.raises(NoEntropy, match="nothing was released"):
        host.minimize(never, np.zeros(2), DATA, **CHOICES)
    made = plan(records=len(DATA), dim=2, **CHOICES)
    with pytest.raises(NoEntropy, match="nothing was released"):
        Optimizer(made, np.zeros(2))


def test_the_noise_key_has_256_bits_of_entropy_and_uses_them_all():
    keys = np.stack([np.asarray(randomness.fresh_keys().noise) for _ in range(64)])
    bits = np.unpackbits(keys.view(np.uint8), axis=1)
    # Each of the 256 bits is 0 in some key and 1 in another: missed by chance below 1e-16.
    assert bits.shape[1] == 256
    assert np.all(bits.any(axis=0) & ~bits.all(axis=0))
    one = keys[0]
    for word in range(8):
        other = one.copy()
        other[word] ^= 1
        near, far = (np.asarray(randomness.gaussian(jnp.asarray(k), 0, 1, 4)) for k in (one, other))
        assert not np.any(near == far)


def test_streams_are_told_apart_by_name_and_noise_by_its_tag():
    public = randomness.fresh_keys(3).public
    names = ["directions", "path", "order of records", "chosen epoch", ""]
    data = [
        tuple(np.asarray(jax.random.key_data(randomness.public_stream(public, n)))) for n in names
    ]
    assert len(set(data)) == len(names)
    again = randomness.public_stream(public, "path")
    assert tuple(np.asarray(jax.random.key_data(again))) == data[1]
