"""The program that is traced for an accelerator, run here: the same numbers as the processor's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.drivers import evaluation
from blindstep.trusted import chacha
from blindstep.trusted.directions import first_of
from blindstep.trusted.frames import Structured
from losses import capped_distance

DIM = 150
PLANS = {
    "own frames": {"sharing": "record", "oracle": "variance-reduced", "period": 4, "directions": 9},
    "a batch's frame": {"sharing": "batch", "oracle": "naive", "period": 1, "directions": 64},
    "a block's frame": {"sharing": "block", "oracle": "variance-reduced", "period": 2, "directions": 9},
    "few directions": {"sharing": "batch", "oracle": "naive", "period": 1, "directions": 8},
    "independent": {"sharing": "record", "oracle": "naive", "directions": 2, "sampler": "sphere"},
}  # fmt: skip


@pytest.fixture
def as_on(monkeypatch):
    """Trace as for another kind of device; programs of before and after are forgotten."""

    def choose(backend):
        jax.clear_caches()
        monkeypatch.setattr(jax, "default_backend", lambda: backend)

    yield choose
    jax.clear_caches()


@pytest.mark.parametrize("name", PLANS)
def test_a_run_is_the_same_on_an_accelerator(as_on, monkeypatch, name):
    # Groups of a few steps, so that 12 steps are several of them.
    few = dataclasses.replace(evaluation._ACCELERATOR, cache=8 * PLANS[name]["directions"] * DIM)
    monkeypatch.setattr(evaluation, "_ACCELERATOR", few)
    plan = bs.plan(
        records=120,
        dim=DIM,
        privacy=bs.Privacy(rho=1.0),
        radius=1.0,
        bounds=bs.Clip(1.0, 0.5),
        **{"horizon": 12, "first_batch": 3, "diff_batch": 2, "epochs": 1, **PLANS[name]},
    )
    data = np.random.default_rng(0).normal(size=(120, DIM))
    run = lambda: bs.minimize(capped_distance, np.zeros(DIM), data, plan=plan, seed=1)  # noqa: E731
    here = run()
    as_on("gpu")
    there = run()
    np.testing.assert_allclose(there.means, here.means, rtol=0, atol=1e-12)
    np.testing.assert_allclose(there.history.gradient_norm, here.history.gradient_norm, rtol=1e-12)


@pytest.mark.parametrize("blocks", [1, 90, 256])
def test_the_cipher_gives_the_same_words_on_an_accelerator(as_on, blocks):
    key = jnp.arange(8, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
    nonce = jnp.arange(3 * 6, dtype=jnp.uint32).reshape(3, 2, 3)
    here = np.asarray(chacha.chacha20(key, nonce, blocks))
    as_on("gpu")
    np.testing.assert_array_equal(chacha.chacha20(key, nonce, blocks), here)


def products_in(jaxpr):
    """All matrix products of a program, those of its inner programs too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "jaxpr")):
            yield from products_in(value.jaxpr) if hasattr(value, "jaxpr") else ()


@pytest.mark.parametrize(("number", "dim"), [(123, 123), (64, 200), (9, 9)])
def test_no_frame_is_made_by_products_that_round_to_ten_bits(as_on, number, dim):
    """As an accelerator's do by default: a frame would be stretched by more than its slack."""
    as_on("gpu")

    def directions(keys):
        prepared = Structured().prepare(keys, number, dim, jnp.float32)
        return Structured().rows(first_of(prepared), None, number, dim)

    keys = jax.random.split(jax.random.key(0), 3)
    for product in products_in(jax.make_jaxpr(directions)(keys).jaxpr):
        precision = product.params["precision"]
        assert precision is not None
        assert set(precision) == {jax.lax.Precision.HIGHEST}
