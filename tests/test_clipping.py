"""The share of clipped records, on data declared public."""

import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs


def slope(params, record):
    return record * jnp.sum(params)


@pytest.mark.parametrize("sampler", ["haar", "structured"])
def test_fraction_clipped_is_counted_on_public_records(sampler):
    # A linear loss with a full frame: a record's estimate is its gradient, of norm |record| sqrt(4).
    data = np.asarray([0.1, 0.2, 0.4, 0.6, 2.0])
    plan = bs.plan(
        records=5,
        dim=4,
        privacy=bs.Privacy(rho=1.0),
        radius=1.0,
        bounds=bs.Clip(1.0),
        horizon=1,
        first_batch=5,
        directions=4,
        sampler=sampler,
    )
    assert bs.fraction_clipped(slope, jnp.zeros(4), data, plan) == pytest.approx(2 / 5)
