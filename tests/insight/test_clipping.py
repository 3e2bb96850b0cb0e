"""The share of clipped records, on data declared public."""

import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.insight.tables import fraction_clipped
from plans import plan_of

DATA = np.asarray([0.1, 0.2, 0.4, 0.6, 2.0, np.inf])


def slope(params, record):
    return record * jnp.sum(params)


def plan(**choices):
    return plan_of(
        records=6,
        dim=4,
        privacy=bs.Privacy(mu=1.0),
        radius=1.0,
        horizon=1,
        first_batch=6,
        directions=4,
        sampler="haar",
        **choices,
    )


@pytest.mark.parametrize("sharing", ["record", "block"])
def test_fraction_clipped_is_counted_on_public_records(sharing):
    # A linear loss with a full frame: a record's vector has the norm of its gradient, |record| sqrt(4).
    # The record whose loss is not finite counts 0, so nothing of it is clipped.
    made = plan(bounds=bs.Bounds(clip=1.0), sharing=sharing)
    assert fraction_clipped(slope, jnp.zeros(4), DATA, made) == pytest.approx(2 / 6)


def test_clamps_alone_clip_nothing():
    made = plan(bounds=bs.Bounds(lipschitz=0.01))
    assert fraction_clipped(slope, jnp.zeros(4), DATA, made) == 0.0
