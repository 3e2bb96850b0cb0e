"""The program that is traced for an accelerator, run here: the same numbers as the processor's.

(The cipher's kernel is compared with its loop in tests/private/test_noise.py.)
"""

import dataclasses

import jax
import numpy as np
import pytest

import blindstep as bs
from blindstep.estimate import estimators
from losses import capped_distance
from plans import plan_of

DIM = 150
PLANS = {
    "own frames": {"sharing": "record", "oracle": "variance-reduced", "period": 4, "directions": 9},
    "own directions": {
        **{"sharing": "record", "oracle": "naive", "period": 1, "directions": 2},
        "sampler": "sphere",
    },
    "a block's frame": {
        **{"sharing": "block", "oracle": "variance-reduced", "period": 2, "directions": 9},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_run_is_the_same_on_an_accelerator(monkeypatch, name):
    # Groups of a few steps, so that 12 steps are several of them.
    few = dataclasses.replace(estimators._ACCELERATOR, drawn=8 * PLANS[name]["directions"] * DIM)
    monkeypatch.setattr(chunks, "_ACCELERATOR", few)
    plan = plan_of(
        records=120,
        dim=DIM,
        privacy=bs.Privacy(mu=1.0),
        radius=1.0,
        bounds=bs.Bounds(clip=1.0, diff_clip=0.5),
        **{"horizon": 12, "first_batch": 3, "diff_batch": 2, "rounds": 1, **PLANS[name]},
    )
    data = np.random.default_rng(0).normal(size=(120, DIM))
    run = lambda: bs.minimize(capped_distance, np.zeros(DIM), data, method=plan, seed=1)  # noqa: E731
    here = run()
    jax.clear_caches()
    try:
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        there = run()
    finally:
        jax.clear_caches()
    np.testing.assert_allclose(there.means, here.means, rtol=0, atol=1e-12)
    np.testing.assert_allclose(there.history.gradient_norm, here.history.gradient_norm, rtol=1e-12)
