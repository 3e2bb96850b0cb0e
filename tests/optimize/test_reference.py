"""The twin of the paper, checked against itself and against arithmetic done by hand."""

import math

import numpy as np
import pytest

import reference as ref


def sphere(rng, *shape):
    """Uniform points of the unit sphere, in the last axis."""
    v = rng.standard_normal(shape)
    return v / np.linalg.norm(v, axis=-1, keepdims=True)


def absolute(x, z):
    """A 1-Lipschitz, nonsmooth loss."""
    return float(np.abs(x - z).sum() / math.sqrt(len(x)))


def test_node_examples_of_the_remark():
    """rmk:tree."""
    assert ref.node(7) == [(1, 4), (5, 6), (7, 7)]
    assert ref.node(8) == [(1, 8)]
    assert ref.node(1) == [(1, 1)]
    xi = np.arange(16.0).reshape(8, 2)
    np.testing.assert_array_equal(ref.tree(7, xi), xi[3] + xi[5] + xi[6])


def test_tree_factorises_the_prefix_sum_and_counts_nodes():
    """B C = lower ones; the busiest leaf is the first, in floor(log2 T) + 1 nodes."""
    for T in range(1, 65):
        B, C = ref.tree_matrices(T)
        np.testing.assert_array_equal(B @ C, np.tril(np.ones((T, T))))
        assert ref.exact_node_count(T) == T.bit_length() == C[:, 0].sum()
        assert C[:, 1:].sum(axis=0).max(initial=0) <= T.bit_length() - 1
    fails = [T for T in range(1, 65) if ref.exact_node_count(T) > 2 * math.log(T)]
    assert fails == [1, 2, 4]


def test_printed_sigma_is_zero_at_one_step_and_short_at_two_and_four():
    """Erratum 1: at B1 = T B2 / 2, which cor:privacy allows."""
    assert ref.printed_sigma(1, 10, 1.0, 2, 1.0) == 0.0
    assert ref.corrected_sigma(1, 10, 1.0, 1, 2, 1.0) == pytest.approx(20.0)
    for T in range(2, 65):
        args = (10, 1.0, T, 2, 0.5)  # d, L, B1 = T B2 / 2, B2, mu
        short = ref.printed_sigma(T, 10, 1.0, 2, 0.5) < ref.corrected_sigma(T, *args)
        assert short == (T in (2, 4))
        # The theorem's B1 = T + 1 halves GRAD's sensitivity: the printed value then suffices.
        assert ref.printed_sigma(T, 10, 1.0, 1, 1.0) > ref.corrected_sigma(T, 10, 1, T + 1, 1, 1.0)


def test_estimators_are_exact_on_linear_loss_with_orthonormal_frame():
    """Sum_j u_j u_j^T = I turns 1/d sum_j d/(2 delta) (2 delta <z, u_j>) u_j into z."""
    rng = np.random.default_rng(0)
    d, b = 5, 3
    batch = rng.standard_normal((b, d))
    frames = np.stack([np.linalg.qr(rng.standard_normal((d, d)))[0].T for _ in range(b)])
    x, y = rng.standard_normal((2, d))
    got = ref.grad(lambda v, z: float(v @ z), x, batch, frames, 0.1)
    np.testing.assert_allclose(got, batch.mean(axis=0), rtol=1e-10)
    # f = <x, z> has DIFF = 1/b sum_i d/(delta q) <x - y, z_i> sum_j u_ij, not 0 for fixed u.
    got = ref.diff(lambda v, z: float(v @ z), x, y, batch, frames, 0.1)
    want = sum((x - y) @ z * u.sum(axis=0) for z, u in zip(batch, frames, strict=True)) / b / 0.1
    np.testing.assert_allclose(got, want, rtol=1e-10)
    plus_minus = np.concatenate([frames, -frames], axis=1)
    got = ref.diff(lambda v, z: float(v @ z), x, y, batch, plus_minus, 0.1)
    np.testing.assert_allclose(got, 0.0, atol=1e-10)


def test_record_rules():
    """Clamp, clip and the zero rule act per record, before the average over b."""
    rng = np.random.default_rng(1)
    x, us = np.zeros(3), sphere(rng, 2, 4, 3)

    def hostile(v, z):
        if z == "raise":
            raise RuntimeError
        return {"nan": math.nan, "inf": math.inf, "huge": 1e300 * v[0]}.get(z, float(v[0]))

    ok = ref.grad(hostile, x, ["ok"], us[:1], 0.1)
    for bad in ("raise", "nan", "inf"):
        got = ref.grad(hostile, x, ["ok", bad], us, 0.1, clamp=1.0, clip=1e6)
        np.testing.assert_allclose(got, ok / 2, rtol=1e-14)
    long = ref.diff(hostile, x + 1, x, ["huge"], us[:1], 0.1, clip=0.25)
    assert np.linalg.norm(long) == pytest.approx(0.25)
    tight = ref.grad(hostile, x, ["huge"], us[:1], 0.1, clamp=0.2)
    want = sum(15.0 * 0.2 * np.sign(u[0]) * u for u in us[0]) / 4
    np.testing.assert_allclose(tight, want, rtol=1e-12)


def test_estimators_obey_the_lemmas():
    """lem:grad-estimator and lem:diff-estimator on a 1-Lipschitz loss, by Monte Carlo."""
    rng = np.random.default_rng(2)
    d, delta, n = 6, 0.5, 300
    x = rng.standard_normal(d)
    y = x + 0.05 * sphere(rng, d)
    zs, us = rng.standard_normal((n, 1, d)), sphere(rng, n, 1, d, d)
    gs = np.array([ref.grad(absolute, x, z, u, delta) for z, u in zip(zs, us, strict=True)])
    ds = np.array([ref.diff(absolute, x, y, z, u, delta) for z, u in zip(zs, us, strict=True)])
    assert gs.var(axis=0).sum() <= ref.grad_variance_bound(d, 1.0, 1)
    assert ds.var(axis=0).sum() <= ref.diff_variance_bound(d, 1.0, 1, delta, 0.05)
    assert 2 * np.linalg.norm(gs, axis=1).max() <= ref.grad_sensitivity(d, 1.0, 1)
    assert 2 * np.linalg.norm(ds, axis=1).max() <= ref.diff_sensitivity(d, 1.0, 1, delta, 0.05)


@pytest.mark.parametrize("run", [ref.variance_reduced_run, ref.naive_run])
def test_runs_obey_the_recursions(run):
    """alg:PONC: the path, the ball, the means and rmk:w-distance; the noise enters as TREE(t)."""
    rng = np.random.default_rng(3)
    K, T, d, D = 2, 7, 3, 0.02
    batches = rng.standard_normal((K, T, 2, d))
    us, s = sphere(rng, K, T, 2, d, d), rng.uniform(size=(K, T))
    xi = rng.standard_normal((K, T, d))
    x1 = rng.standard_normal(d)
    keep = {"delta": 0.1, "eta": 0.01, "D": D, "first_clamp": 0.2, "diff_clamp": lambda r: r}
    out = run(absolute, x1, batches, us, s, xi, **keep)
    assert (out.moves[:, 0] == 0).all()
    assert np.linalg.norm(out.moves, axis=-1).max() <= D * (1 + 1e-12)
    assert np.linalg.norm(np.diff(out.w, axis=1), axis=-1).max() <= 2 * D * (1 + 1e-12)
    np.testing.assert_allclose(out.x_final, x1 + out.moves.sum(axis=(0, 1)), rtol=1e-12)
    np.testing.assert_allclose(out.round_means, out.w.mean(axis=1), rtol=1e-12)
    still = run(absolute, x1, batches, us, s, xi, **(keep | {"eta": 0.0}))
    quiet = run(absolute, x1, batches, us, s, 0 * xi, **(keep | {"eta": 0.0}))
    noise = still.released - quiet.released
    if run is ref.naive_run:
        np.testing.assert_allclose(noise, xi, atol=1e-12)
    else:
        trees = [[ref.tree(t, xi[k]) for t in range(1, T + 1)] for k in range(K)]
        np.testing.assert_allclose(noise, trees, atol=1e-12)
        np.testing.assert_allclose(quiet.released, quiet.released[:, :1] + 0 * noise, atol=1e-14)
        assert np.all(still.w == x1)  # it stands still: every DIFF is 0
    snapped = run(absolute, x1, batches, us, s, 0 * xi, **(keep | {"eta": 0.0, "width": 0.125}))
    np.testing.assert_array_equal(snapped.released % 0.125, 0.0)
    assert np.abs(snapped.released - quiet.released).max() <= 0.0625


def test_choice_of_horizon_is_the_maximum():
    """Erratum 2."""
    args = {"M": 1e5, "d": 100, "L": 1.0, "delta": 0.1, "gap": 1.0, "mu": 0.1}
    horizons = ref.balancing_horizons(**args)
    assert ref.order_bound(min(horizons), **args) == pytest.approx(5.39, abs=0.005)
    assert ref.order_bound(max(horizons), **args) == pytest.approx(2.20, abs=0.005)
    best = min(ref.order_bound(T, **args) for T in np.geomspace(1, 1e6, 4000))
    assert best == pytest.approx(2.20, abs=0.005)


def test_printed_epsilon_is_not_private_at_large_rho():
    """Erratum 3."""
    assert ref.printed_epsilon(8, 1e-5) == pytest.approx(54.29, abs=0.005)
    assert ref.gaussian_delta(8, ref.printed_epsilon(8, 1e-5)) > 1e-5
    assert ref.gaussian_delta(8, 65.25) > 1e-5 > ref.gaussian_delta(8, 65.35)
    assert ref.gaussian_delta(1, 4.37715) > 1e-5 > ref.gaussian_delta(1, 4.37725)
    assert ref.gaussian_delta(1, 0) == pytest.approx(math.erf(1 / math.sqrt(8)))


def test_proof_bound_by_hand():
    """One case with round numbers, and the printed tree noise as cor:tree-noise composes it."""
    # T=K=4, B1=B2=1, d=1, L=1, delta=4, gap=8, D=1, N=3: V = 16 + 16 = 32
    want = 16 / 16 + math.sqrt(4 * (96 + 3 + 27)) / 4 + 2 * (math.sqrt(32) + 3)
    assert ref.proof_bound(4, 4, 1, 1, 1, 1.0, 4.0, 8.0, 1.0, 3.0) == pytest.approx(want)
    with pytest.raises(ValueError):
        ref.proof_bound(4, 4, 1, 1, 1, 1.0, 4.0, 8.0, 1.1, 3.0)
    sigma = ref.printed_sigma(32, 9, 2.0, 1, 0.5)
    composed = 2 * math.log(32) * 9 * sigma**2
    assert ref.printed_tree_noise(32, 9, 2.0, 1, 0.5) == pytest.approx(composed)
    assert ref.exact_tree_noise(32, 9, sigma) == pytest.approx(5 * 9 * sigma**2)  # at t = 31
