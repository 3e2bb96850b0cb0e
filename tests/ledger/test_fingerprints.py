"""Fingerprints: the same for the same thing, other for any other; and names that tell nothing."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blindstep.errors import InvalidArgument
from blindstep.ledger import fingerprints
from blindstep.ledger.files import fingerprint

DATA = {"x": np.arange(60, dtype=np.float32).reshape(12, 5), "y": np.arange(12)}


def test_a_fingerprint_is_of_the_value_not_of_its_order():
    assert fingerprint({"a": 1, "b": [2.5]}) == fingerprint({"b": [2.5], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    with pytest.raises(InvalidArgument, match="fingerprinted"):
        fingerprint({"a": math.inf})


def test_a_plan_may_be_annotated_but_not_changed():
    plan = {"dim": 2, "delta": 1e-5, "notes": ["a"]}
    assert fingerprints.of_plan(plan) == fingerprints.of_plan({**plan, "notes": []})
    assert fingerprints.of_plan(plan) != fingerprints.of_plan({**plan, "delta": 1e-6})


def test_one_fingerprint_for_the_same_data_however_held(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", DATA["x"])
    mapped = {"x": np.load(tmp_path / "x.npy", mmap_mode="r"), "y": DATA["y"]}
    whole = fingerprints.of_data(DATA)
    assert fingerprints.of_data(mapped) == whole
    assert fingerprints.of_data(jax.tree.map(jnp.asarray, DATA)) == whole
    assert fingerprints.of_data({**DATA, "x": np.asfortranarray(DATA["x"])}) == whole
    monkeypatch.setattr(fingerprints, "_CHUNK", 64)
    assert fingerprints.of_data(mapped) == whole
    one_bit = DATA["x"].copy()
    one_bit.view(np.uint32)[11, 4] ^= 1
    others = [{**DATA, "x": one_bit}, {"x": DATA["x"], "z": DATA["y"]}]
    others += [{**DATA, "x": DATA["x"].reshape(12, 5, 1)}, {**DATA, "y": DATA["y"].view(np.uint64)}]
    others += [{"x": DATA["x"][::-1], "y": DATA["y"]}]
    assert len({whole, *map(fingerprints.of_data, others)}) == 6


def test_the_fingerprint_of_a_loss_sees_its_operations_and_its_constants():
    def with_constant(value):
        array = jnp.full(2, value)
        return lambda x, z: jax.jit(lambda a: jnp.sum(jnp.abs(a - array)))(x) + jnp.sum(z["y"])

    def of(loss):
        return fingerprints.of_loss(loss, jnp.zeros(2), DATA)

    one, two, other = (of(with_constant(value)) for value in (1.0, 1.0, 2.0))
    assert one == two != other
    assert of(lambda x, z: jnp.sum(x)) != of(lambda x, z: jnp.sum(x) * 1.0000001)


def test_what_is_known_of_questions_is_a_name_and_the_start():
    one = fingerprints.of_questions("survey 2026", np.zeros(2))
    assert one == fingerprints.of_questions("survey 2026", np.zeros(2))
    assert one.data != fingerprints.of_questions(None, np.zeros(2)).data
    assert one.params != fingerprints.of_questions("survey 2026", np.ones(2)).params
    assert one.loss == ""


def test_names_depend_on_the_secret_and_on_what_they_name():
    key, other = bytes(32), bytes(range(32))
    votes = np.asarray([0.0, 1.0, np.nan])
    name = fingerprints.answers_id(key, 3, votes)
    assert name == fingerprints.answers_id(key, 3, np.asarray([0.0, 1.0, -np.nan]))
    changed = [(other, 3, votes), (key, 4, votes), (key, 3, votes[::-1].copy())]
    assert len({name, *(fingerprints.answers_id(*each) for each in changed)}) == 4
    data = {fingerprints.data_id(k, f) for k in (key, other) for f in ("a" * 64, "b" * 64)}
    assert len(data) == 4
