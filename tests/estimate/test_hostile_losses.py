"""The premise of the gate, under hostile losses: a record's vector depends on that record alone.

Each case is a pair of data sets that differ in one record, with values from the palette of the worst:
NaN, infinities, denormals, values whose differences overflow. All other vectors stay the same, bit
for bit. (What the gate makes of hostile vectors is in tests/private.)
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blindstep.estimate.bounds import Bounds
from blindstep.estimate.directions import Sphere
from blindstep.estimate.estimators import Query, Sharing, ValueEstimator
from blindstep.estimate.frames import Haar, Structured
from blindstep.estimate.probing import probing_of_answers, probing_of_loss
from blindstep.private.schedule import Kind
from hostile import table_loss, tables

CASES, BATCH, DIM, TABLE = 400, 6, 4, 16
ESTIMATORS = {
    "own sphere": ValueEstimator(DIM, 4, Sphere(), 0.1, 0.1, Bounds(lipschitz=1.0)),
    "own haar": ValueEstimator(DIM, 2, Haar(), 0.1, 0.1, Bounds(clip=1.0, diff_clip=0.1)),
    "own structured": ValueEstimator(DIM, 2, Structured(), 0.1, 0.1, Bounds(range=(-1, 1))),
    "shared": ValueEstimator(
        DIM, 2, Structured(), 0.1, 0.1, Bounds(clip=1.0, diff_clip=0.1), Sharing.BLOCK
    ),
}


def vectors(contributions):
    """The vectors of a batch, in its order, as the gate asks for them."""
    found, some = [], contributions.batch_size
    for start in range(0, BATCH, some):
        inside = jnp.minimum(start + jnp.arange(some), BATCH - 1)
        found.append(contributions.of(inside, inside))
    return jnp.concatenate(found)[:BATCH]


@eqx.filter_jit
def from_losses(estimator, query, data):
    one = lambda data: vectors(  # noqa: E731
        probing_of_loss(estimator, table_loss, data).contributions(query, BATCH)
    )
    return jax.vmap(one)(data)


@eqx.filter_jit
def from_answers(estimator, query, data):
    one = lambda data: vectors(probing_of_answers(estimator, data).contributions(query, BATCH))  # noqa: E731
    return jax.vmap(one)(data.reshape(CASES, BATCH, 2, estimator.directions))


def neighbours(seed, values):
    """Data sets, the same with one record replaced, and which."""
    rng = np.random.default_rng(seed)
    data, other = tables(rng, (CASES, BATCH, values), 0.2), tables(rng, (CASES, values), 0.2)
    replaced = rng.integers(0, BATCH, CASES)
    neighbour = data.copy()
    neighbour[np.arange(CASES), replaced] = other
    return data, neighbour, replaced


def others_that_moved(one, two, replaced):
    """Whether any vector moved that is not the replaced record's; and whether that one ever did."""
    moved = np.any(one.view(np.uint64) != two.view(np.uint64), axis=-1)
    own = np.arange(BATCH) == replaced[:, None]
    return moved[~own].any(), moved[own].any()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, from_losses) for name in ESTIMATORS),
        ("own sphere", from_answers),
        ("shared", from_answers),
    ],
)
def test_no_record_reaches_the_vector_of_another(name, make):
    estimator = ESTIMATORS[name]
    kind = Kind.DIFF if make is from_losses else Kind.GRAD
    query = Query(jnp.full(DIM, 0.3), jnp.full(DIM, 0.35), jax.random.key(1), kind)
    values = TABLE if make is from_losses else 2 * estimator.directions
    data, neighbour, replaced = neighbours(5, values)
    found = [np.asarray(make(estimator, query, jnp.asarray(each))) for each in (data, neighbour)]
    assert others_that_moved(*found, replaced) == (False, True)


def test_a_loss_that_sees_its_neighbours_is_caught():
    """The power twin: vectors relative to the batch's largest one."""
    data, neighbour, replaced = neighbours(6, 3)
    relative = [each / np.nanmax(np.abs(each), axis=(1, 2), keepdims=True) for each in
                (np.clip(data, -1, 1), np.clip(neighbour, -1, 1))]  # fmt: skip
    assert others_that_moved(*relative, replaced) == (True, True)
