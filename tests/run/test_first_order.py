"""`estimate="gradient"`: another vector of each record, and everything else as it is."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.insight.tables import fraction_clipped
from blindstep.ledger.ledger import read_ledger
from blindstep.private.noise import STD, fresh_keys, lattice_noise
from blindstep.private.schedule import Kind
from driver_runs import BUDGET, DATA, cut_after, run, same
from gates import make_gate, of_rows
from plans import plan_of

# 2 passes over 24 records: steps on half of them; and blocks of a gradient and three differences.
NAIVE = {**BUDGET, "bounds": bs.Bounds(clip=0.8), "horizon": 2, "first_batch": 12, "passes": 2}
BLOCKS = {
    **{
        **BUDGET,
        "bounds": bs.Bounds(clip=0.8, diff_clip=0.2),
        "horizon": 4,
        "period": 4,
        "mechanism": "tree",
    },
    **{"first_batch": 6, "diff_batch": 2, "passes": 2},
}


def planned(choices=NAIVE, **more):
    return plan_of(records=24, dim=2, estimate="gradient", **choices, **more)


def square(x, z):
    return 0.5 * jnp.sum((x - z) ** 2)


def first_release(plan, seed):
    """What the gate gives for the gradients of `square` at 0, which are -z: by hand, in one step."""
    gate = make_gate(plan.terms, seed=seed)
    rows = gate.rows(0)

    def program(permit, memory):
        return permit.release(memory, Kind.GRAD, of_rows(-DATA, 5))

    return np.asarray(gate.through(program)), rows


# -- what is released ------------------------------------------------------------------------------


def test_the_release_is_the_clipped_mean_gradient_and_the_noise_of_the_gate():
    plan = planned()
    release, rows = first_release(plan, seed=7)
    own = -DATA[rows]
    lengths = np.linalg.norm(own, axis=1)
    assert np.min(lengths) < 0.8 < np.max(lengths)
    mean = np.mean(own * np.minimum(1.0, 0.8 / lengths)[:, None], axis=0)
    with jax.enable_x64(True):
        noise = lattice_noise(jnp.asarray(fresh_keys(7).noise.words()), jnp.asarray(0), 2)
    width = plan.noise_std / STD
    np.testing.assert_array_equal(np.rint(mean / width), np.rint(release / width) - noise)
    found = run(plan=plan, loss=square, seed=7)
    assert found.history.gradient_norm[0, 0] == np.linalg.norm(release)
    assert found.privacy.mu == plan.mu <= 1.0


def test_replacing_a_record_moves_a_release_by_no_more_than_the_sensitivity_and_can_reach_it():
    plan = planned(NAIVE | {"first_batch": 24, "horizon": 1, "passes": 1})
    far = DATA.copy()
    far[0], other = [1e3, 0.0], DATA.copy()
    other[0] = [-1e3, 0.0]

    def release(data):
        gate = make_gate(plan.terms, seed=1)
        return gate.through(lambda p, m: p.release(m, Kind.GRAD, of_rows(-data, 24)))

    moved = float(np.linalg.norm(np.asarray(release(far)) - np.asarray(release(other))))
    assert 0.99 * plan.sensitivity < moved < plan.sensitivity * (1 + 1e-3)
    assert plan.sensitivity == pytest.approx(2 * 0.8 / 24)


def test_a_record_without_a_finite_gradient_counts_zero():
    """A length has no gradient at 0, where it is 0; the root of 1 more has."""

    def root(x, z):
        return square(x, z) + jnp.sqrt(jnp.sum(x**2) + (z[0] < 9))

    silent, still = DATA.copy(), DATA.copy()
    silent[3], still[3] = 10.0, 0.0  # the gradient at the start is NaN, and 0
    plan = planned(NAIVE | {"first_batch": 24, "horizon": 1, "passes": 1})
    one, two = (run(plan=plan, loss=root, data=data) for data in (silent, still))
    assert one.history.gradient_norm[0, 0] == two.history.gradient_norm[0, 0]


def test_a_record_that_fails_a_check_counts_zero_and_nothing_is_said(capfd):
    def checked(x, z):
        return square(eqx.error_if(x, z[0] > 9, "a secret"), z)

    failing, still = DATA.copy(), DATA.copy()
    failing[3], still[3] = 10.0, 0.0
    plan = planned(NAIVE | {"first_batch": 24, "horizon": 1, "passes": 1})
    one, two = (run(plan=plan, loss=checked, data=data) for data in (failing, still))
    assert one.history.gradient_norm[0, 0] == two.history.gradient_norm[0, 0]
    assert capfd.readouterr() == ("", "")


# -- the same plan, ledger, checkpoint, people, audit ------------------------------------------------


@pytest.mark.parametrize("choices", [NAIVE, BLOCKS], ids=["naive", "blocks"])
def test_a_run_cut_short_gives_the_same_bits(choices, tmp_path, monkeypatch):
    plan = planned(choices)
    whole = run(plan=plan, loss=square)
    cut_after(monkeypatch, 2, "compiled", tmp_path / "run", plan=plan, loss=square)
    assert same(run("compiled", tmp_path / "run", plan=plan, loss=square), whole)
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["estimate"] == {
        "kind": "gradient"
    }
    spent = read_ledger(tmp_path / "run" / "ledger.jsonl").spent()
    assert spent == pytest.approx(plan.mu, rel=1e-9)


def test_a_run_in_natural_units_goes_on_and_is_not_taken_for_one_from_values(tmp_path):
    given = {"privacy": bs.Privacy(mu=4.0), "seed": 3, "checkpoint": tmp_path / "run"}
    first = bs.minimize(square, np.zeros(2), DATA, method=bs.Auto(estimate="gradient"), **given)
    assert (first.plan.method, first.plan.differentiates) == ("auto", True)
    assert np.isfinite(first.history.loss).all()  # the loss rides along
    assert same(
        bs.minimize(square, np.zeros(2), DATA, method=bs.Auto(estimate="gradient"), **given), first
    )
    with pytest.raises(bs.errors.CheckpointMismatch):
        bs.minimize(square, np.zeros(2), DATA, **given)


def test_people_have_the_gradient_of_their_mean():
    """Everybody twice, and somebody three times: the same people, whose means are their one row."""
    people = np.concatenate([np.repeat(np.arange(24), 2), [5]])
    plan = planned()
    found = run(plan=plan, loss=square, data=DATA[people], people=people)
    alone = run(plan=plan, loss=square, data=DATA, people=np.arange(24))
    np.testing.assert_allclose(found.means, alone.means, atol=1e-12)
    assert "one person" in str(found.privacy)
    spoiled = DATA[people].copy()
    spoiled[np.flatnonzero(people == 5)[1]] = np.nan  # one of their rows voids them, nobody else
    without = DATA.copy()
    without[5] = np.nan
    same_but_one = run(plan=plan, loss=square, data=spoiled, people=people)
    nobody = run(plan=plan, loss=square, data=without, people=np.arange(24))
    np.testing.assert_allclose(same_but_one.means, nobody.means, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("choices", [NAIVE, BLOCKS], ids=["naive", "blocks"])
def test_the_audit_reaches_the_claim_and_does_not_pass_it(choices):
    plan = planned(choices | {"radius": 0.1})
    found = bs.audit(plan, pairs=3000, seed=0)
    assert found.holds, found.reason
    assert found.claimed_mu == pytest.approx(plan.mu, rel=1e-5)
    assert 0.8 * found.claimed_mu < found.lower_bound_mu <= found.claimed_mu


def test_an_audit_with_canaries_holds():
    plan = bs.plan(
        bs.Tight(
            estimate="gradient", horizon=1, first_batch=4, radius=1.0, bounds=bs.Bounds(clip=1.0)
        ),
        records=4000,
        dim=2,
        privacy=bs.Privacy(mu=2.0),
    )
    found = bs.audit(plan, attack="one-run", seed=0)
    assert found.holds, found.reason
    assert 0.6 * found.claimed_mu < found.lower_bound_mu <= found.claimed_mu


def test_how_many_records_are_clipped_can_be_asked():
    share = fraction_clipped(square, np.zeros(2), DATA, planned())
    assert share == pytest.approx(np.mean(np.linalg.norm(DATA, axis=1) > 0.8))


# -- losses without gradients -------------------------------------------------------------------------


def called_back(x, z):
    shape = jax.ShapeDtypeStruct((), np.float64)
    return jax.pure_callback(
        lambda x, z: np.sum((x - z) ** 2), shape, x, z, vmap_method="sequential"
    )


@jax.custom_vjp
def talking(x, z):
    return square(x, z)


def _talk(residual, out):
    jax.debug.print("{}", residual[1])
    return out * (residual[0] - residual[1]), jnp.zeros_like(residual[1])


talking.defvjp(lambda x, z: (square(x, z), (x, z)), _talk)


def looped(x, z):
    return jax.lax.while_loop(lambda s: s < jnp.sum(z), lambda s: s + jnp.sum(x**2) + 1.0, 0.0)


WITHOUT = {
    "0/1": (lambda x, z: jnp.where(z @ x > 0.1, 0.0, 1.0), "its gradient is 0"),
    "ranks": (lambda x, z: 1.0 * jnp.argsort(x - z)[0], "its gradient is 0"),
    "rounded": (lambda x, z: jnp.round(4 * jnp.sum((x - z) ** 2)), "its gradient is 0"),
    "whole numbers": (lambda x, z: jnp.sum(x > z), "cannot differentiate the loss.*TypeError"),
    "a callback": (called_back, "cannot differentiate the loss.*ValueError.*callback"),
    "a loop": (looped, "cannot differentiate the loss.*while_loop"),
    "a gradient that prints": (talking, "the gradient of the loss prints"),
}


@pytest.mark.parametrize("kind", WITHOUT)
def test_a_loss_without_gradients_is_refused_before_anything_is_spent(kind, tmp_path):
    loss, says = WITHOUT[kind]
    with pytest.raises(bs.errors.InvalidArgument, match=says) as refused:
        run("compiled", tmp_path / "run", plan=planned(), loss=loss)
    assert "Nothing was spent. Leave out estimate='gradient'" in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_rehearse_false_lets_a_staircase_pass_but_no_loss_that_cannot_be_differentiated():
    run(plan=planned(), loss=WITHOUT["0/1"][0], rehearse=False)
    with pytest.raises(bs.errors.InvalidArgument, match="cannot differentiate"):
        run(plan=planned(), loss=called_back, rehearse=False)


def test_a_flat_start_is_no_staircase():
    """At a start of 0 a product of weights has no slope, and a little off it has."""
    assert np.isfinite(
        run(plan=planned(), loss=lambda x, z: (x[0] * x[1] - z[0]) ** 2).params
    ).all()


def test_a_gradient_that_is_never_finite_is_a_warning():
    with pytest.warns(bs.errors.LossNotFinite, match="the loss or its gradient is not finite"):
        run(plan=planned(), loss=lambda x, z: jnp.sqrt(jnp.sum(x**2)) + 0.0 * z[0])


@pytest.mark.parametrize("driver", ["host", "ask"])
def test_drivers_of_values_refuse_a_plan_with_gradients(driver, tmp_path):
    with pytest.raises(bs.errors.InvalidArgument, match=r"run it with blindstep\.minimize"):
        run(driver, tmp_path / "run", plan=planned())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"estimate": "slope"}, "estimate must be one of values, gradient"),
        ({"directions": 2}, "directions is for estimates from values"),
        ({"smoothing": 0.1}, "smoothing is for estimates from values"),
        ({"lipschitz": 1.0}, "lipschitz asks for a certificate"),
        ({"gap": 1.0}, "gap asks for a certificate"),
        ({"bounds": bs.Bounds(range=(0, 1))}, "nothing bounds a record's gradient"),
        ({"method": "paper"}, r"Paper\(\) has no argument 'estimate'"),
        ({"method": "klt"}, r"Klt\(\) has no argument 'estimate'"),
    ],
)
def test_what_gradients_leave_no_choice_of_is_refused(change, says):
    with pytest.raises(bs.errors.InvalidArgument, match=says):
        plan_of(**{"records": 24, "dim": 2, "estimate": "gradient", **NAIVE, **change})


def test_a_run_that_finds_its_scales_draws_no_directions_either():
    with pytest.raises(bs.errors.InvalidArgument, match="draws none"):
        bs.Auto(estimate="gradient", directions=3)


# -- what it is for -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_ends_lower_than_values_do_with_the_same_budget_and_nothing_tuned():
    """A smooth problem in 200 dimensions, within the same number of evaluations."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1000, 200)) / np.sqrt(200)
    noise = 0.1 * rng.normal(size=1000)
    data = {"x": features, "y": np.tanh(features @ (4.0 * rng.normal(size=200))) + noise}

    def loss(w, z):
        return (jnp.tanh(z["x"] @ w) - z["y"]) ** 2

    def mean_loss(w):
        return float(np.mean((np.tanh(features @ np.asarray(w)) - data["y"]) ** 2))

    given = {"privacy": bs.Privacy(epsilon=4.0, delta=1e-5), "seed": 0}
    values, gradients = (
        mean_loss(
            bs.minimize(
                loss,
                np.zeros(200),
                data,
                method=bs.Auto(estimate=estimate, evaluations=2**18),
                **given,
            ).params
        )
        for estimate in ("values", "gradient")
    )
    assert gradients < 0.9 * values < mean_loss(np.zeros(200))
