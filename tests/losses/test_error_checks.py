"""`equinox.error_if` in a compiled loss: the record counts 0, the others stay, nothing is said."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, io_callback

import blindstep as bs
from blindstep.losses import error_checks
from blindstep.losses.error_checks import voiding
from blindstep.losses.pytrees import check_loss
from blindstep.losses.rehearsal import check_gradient

RECORDS = np.linspace(-1.0, 1.0, 8)
BAD = 5
POINTS = jnp.linspace(0.0, 1.0, 3)


def plain(p, z):
    return jnp.abs(p - z)


def in_the_loss(p, z):
    return jnp.abs(p - eqx.error_if(z, z > 10.0, f"secret {z}"))


def forgotten(p, z):
    """The checked value is compared, and NaN compares like any number: the record counts 0 anyway."""
    return jnp.where(eqx.error_if(z, z > 10.0, "secret") > 10.0, 7.0, jnp.abs(p - z))


def whole_number(p, z):
    place = eqx.error_if(jnp.asarray(z * 0, int), z > 10.0, "secret")
    return jnp.stack([jnp.abs(p - z), p])[place]


_jitted = eqx.filter_jit(lambda z: eqx.error_if(z, z > 10.0, "secret"))


def in_a_jitted_part(p, z):
    return jnp.abs(p - _jitted(z))


def in_a_loop(p, z):
    def body(total, _):
        return total + eqx.error_if(z, z > 10.0, "secret") / 4, None

    return jnp.abs(p - jax.lax.scan(body, 0.0, length=4)[0])


def in_a_branch(p, z):
    return jax.lax.cond(z > 0, in_the_loss, plain, p, z)


LOSSES = (in_the_loss, forgotten, whole_number, in_a_jitted_part, in_a_loop, in_a_branch)


def values(loss, records):
    """All records at all points; eagerly, too, what is jitted inside comes from JAX's caches."""
    at = jax.vmap(jax.vmap(loss, (0, None)), (None, 0))
    return np.asarray(at(POINTS, jnp.asarray(records)))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_a_failed_check_voids_its_record_alone(loss, capfd, recwarn):
    honest, spoiled = RECORDS.copy(), RECORDS.copy()
    spoiled[BAD] = 99.0
    # Evaluated by the user it raises, before and after: what JAX keeps of one is not used by the other.
    with pytest.raises(Exception, match="secret"):
        values(loss, spoiled)
    capfd.readouterr()
    before, after = (values(jax.jit(voiding(loss)), records) for records in (honest, spoiled))
    assert np.array_equal(values(voiding(loss), spoiled), after, equal_nan=True)
    others = np.arange(len(RECORDS)) != BAD
    assert np.array_equal(before[others], after[others])
    assert np.all(np.isfinite(before))
    assert np.all(np.isnan(after[BAD]))
    said = capfd.readouterr()
    assert said.out + said.err == ""
    assert not recwarn.list
    with pytest.raises(Exception, match="secret"):
        values(loss, spoiled)


def minimized(loss, data):
    plan = bs.plan(
        bs.Tight(
            radius=1.0,
            bounds=bs.Bounds(clip=1.0),
            horizon=2,
            rounds=2,
            passes=4,
            first_batch=len(data),
            oracle="naive",
        ),
        dim=2,
        records=len(data),
        privacy=bs.Privacy(mu=1.0),
    )
    return bs.minimize(loss, jnp.zeros(2), data, method=plan, seed=0).params


@pytest.mark.slow
def test_a_run_counts_such_a_record_zero_and_says_nothing(capfd, caplog, recwarn):
    """The run is, bit for bit, one in which that record's loss is NaN."""
    data = RECORDS.copy()
    data[BAD] = 99.0
    by_check = minimized(lambda p, z: in_the_loss(p, z).sum(), data)
    by_nan = minimized(lambda p, z: jnp.where(z > 10.0, jnp.nan, plain(p, z).sum()), data)
    assert np.array_equal(by_check, by_nan)
    said = capfd.readouterr()
    assert said.out + said.err + caplog.text == ""
    assert not recwarn.list


def test_what_is_known_before_the_run_is_still_told():
    def wrong_shape(p, z):
        return eqx.error_if(p, p.ndim == 1, "parameters must be a matrix").sum()

    with pytest.raises(Exception, match="must be a matrix"):
        minimized(wrong_shape, RECORDS)


def test_checks_that_are_switched_off_stay_off(monkeypatch):
    monkeypatch.setattr("equinox._errors.EQX_ON_ERROR", "off")
    assert np.all(np.isfinite(values(voiding(in_the_loss), [0.0, 99.0])))


def test_names_that_equinox_or_jax_keep_to_themselves_may_be_gone(monkeypatch):
    monkeypatch.setattr("equinox._errors.branched_error_if_impl_jit", None)
    assert error_checks._equinox_errors() is None
    assert error_checks._trace_state() is not None
    monkeypatch.setattr(error_checks, "_PLACES", (jax.extend,))
    assert error_checks._trace_state() is None


@pytest.mark.parametrize("gone", ["_ERRORS", "_STATE"])
def test_where_a_check_cannot_be_changed_the_run_ends_without_a_word(gone, monkeypatch):
    monkeypatch.setattr(error_checks, gone, None)
    with pytest.raises(bs.errors.LossFailed, match="nothing of this round") as failure:
        minimized(lambda p, z: in_the_loss(p, z).sum(), RECORDS * 99)
    assert failure.value.__context__ is None


def printing(p, z):
    jax.debug.print("{z}", z=z)
    return plain(p, z).sum()


def calling_back(p, z):
    return io_callback(lambda p: p, jax.ShapeDtypeStruct((), p.dtype), p.sum() + z)


def checking(p, z):
    checkify.check(z > 10, "secret")
    return plain(p, z).sum()


@pytest.mark.parametrize("loss", [printing, calling_back, checking])
def test_a_loss_that_would_speak_is_refused_before_it_runs(loss, capfd):
    with pytest.raises(bs.errors.InvalidArgument, match="would pass by the noise"):
        minimized(loss, RECORDS)
    assert capfd.readouterr().out == ""


@jax.custom_batching.custom_vmap
def first(z):
    return z


@first.def_vmap
def _(size, batched, z):
    return jnp.broadcast_to(z[:1], z.shape), batched[0]


def called(how):
    def loss(p, z):
        shape = jax.ShapeDtypeStruct((), z.dtype)
        whole = jax.pure_callback(lambda z: z * 0 + z.ravel()[0], shape, z, vmap_method=how)
        return plain(p, whole).sum()

    return loss


def drawing(p, z):
    key = jax.random.key((1e3 * z).astype(int), impl="rbg")
    return plain(p, z).sum() + jax.random.normal(key, dtype=p.dtype)


def words_drawn(p, z):
    key = jnp.full(4, (1e3 * z).astype(jnp.uint32))
    return plain(p, z).sum() + jax.lax.rng_bit_generator(key, ())[1]


def nested(p, z):
    halves = lambda z: jax.lax.cond(z > 0, first, lambda z: z, z)  # noqa: E731
    return plain(p, jax.jit(jax.checkpoint(halves))(z)).sum()


@jax.custom_vjp
def backwards(z):
    return z


backwards.defvjp(lambda z: (z, None), lambda _, slope: (first(slope),))
MIXING = {
    "a rule for batches": lambda p, z: plain(p, first(z)).sum(),
    "a nested rule": nested,
    "a batch called back": called("broadcast_all"),
    "another way of it": called("expand_dims"),
    "the first key": drawing,
    "the first words": words_drawn,
}


@pytest.mark.parametrize("name", MIXING)
def test_a_loss_in_which_one_record_speaks_for_all_is_refused(name):
    loss, start, privacy = MIXING[name], np.zeros(1), bs.Privacy(epsilon=1, delta=1e-5)
    with pytest.raises(bs.errors.InvalidArgument, match="decide what all others count"):
        minimized(loss, RECORDS)
    with pytest.raises(bs.errors.InvalidArgument, match="decide what all others count"):
        bs.value(loss, start, RECORDS, privacy)
    # Why: the first record changes what the others count.
    replaced = np.where(np.arange(8) == 0, 3.0, RECORDS)
    others, moved = (jax.vmap(loss, (None, 0))(start, each)[1:] for each in (RECORDS, replaced))
    assert np.any(np.asarray(others) != np.asarray(moved))


def test_such_a_rule_in_the_gradient_alone_is_refused_too():
    loss = lambda p, z: backwards(p[0]) * z  # noqa: E731
    with pytest.raises(bs.errors.InvalidArgument, match="decide what all others count"):
        check_gradient(loss, np.zeros(1), RECORDS)


@pytest.mark.parametrize("how", ["sequential", None])
def test_calls_for_one_record_each_may_stay(how):
    check_loss(called(how), np.zeros(1), RECORDS)
