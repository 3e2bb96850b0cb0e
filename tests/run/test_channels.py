"""Small channels: what a record could say beside the noise by making code print, warn or raise."""

import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.sklearn import estimators
from driver_runs import DATA, SHORT, run, same

INFINITE = np.where(np.arange(len(DATA))[:, None] == 3, np.inf, DATA)


def by_lapack(point, record):
    """NumPy's least squares: LAPACK itself complains of an infinite matrix on standard output.

    That of NumPy 2.5 does not any more: here it is said for it, below Python, as LAPACK says it.
    """
    if not np.all(np.isfinite(record)):
        os.write(1, b" ** On entry to DLASCL parameter number  4 had an illegal value\n")
    return np.linalg.lstsq(np.outer(record, record), point, rcond=None)[0].sum()


def test_lapack_says_nothing_of_an_infinite_record(capfd):
    np.linalg.svd(DATA)  # loads the library
    with pytest.raises(np.linalg.LinAlgError):
        by_lapack(np.zeros(2), INFINITE[3])
    assert "DLASCL" in capfd.readouterr().out  # the power twin
    run("host", plan=SHORT, data=INFINITE, loss=by_lapack)
    bs.value(by_lapack, np.zeros(2), INFINITE, bs.Privacy(mu=1.0), largest=8.0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("call", ["minimize", "value"])
def test_the_search_for_nan_of_jax_ends_no_run(call):
    """`jax_debug_nans` raises at the first value that is not finite: that of a record."""

    def loss(point, record):
        return jnp.sum(jnp.abs(point - record)) / jnp.where(record[0] > 100.0, 0.0, 1.0)

    def found():
        if call == "minimize":
            return run("compiled", plan=SHORT, data=INFINITE, loss=loss)
        return bs.value(loss, np.zeros(2), INFINITE, bs.Privacy(mu=1.0), largest=8.0, seed=1)

    usual = found()
    with jax.debug_nans(True), jax.debug_infs(True):
        with pytest.raises(FloatingPointError):  # the power twin
            jax.jit(loss)(np.zeros(2), INFINITE[3])
        again = found()
    assert same(again, usual) if call == "minimize" else again == usual


class Reached(Exception):
    pass


def test_an_estimator_warns_of_no_cell(monkeypatch):
    """Beyond float32 a number is infinite; NumPy says so where it is cast."""
    features, target, given = np.ones((30, 2)), np.ones(30), []

    def stop(loss, params, data, *_, **options):
        given.append(data)
        raise Reached

    features[7, 0] = target[8] = 1e300
    with pytest.warns(RuntimeWarning, match="overflow"):  # the power twin
        features.astype(np.float32)
    monkeypatch.setattr(estimators, "minimize", stop)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Reached):
            estimators.PrivateRegressor(epsilon=8, delta=1e-5).fit(features, target)
    assert given[0]["features"].dtype == given[0]["target"].dtype == np.float32
    assert np.isinf([given[0]["features"][7, 0], given[0]["target"][8]]).all()
