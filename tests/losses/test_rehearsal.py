"""The loss is tried on made-up records first: what cannot work is refused before anything is spent."""

import dataclasses
import os
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import blindstep as bs
from blindstep.losses import rehearsal
from driver_runs import BUDGET, DATA, SHORT, run

PEOPLE = {"height": DATA[:, 0], "weight": DATA[:, 1]}
SECRET = 42.4242


def misspelt(params, record):
    return abs(record["heigth"] - params[0])


def right(params, record):
    return abs(record["height"] - params[0])


def host(tmp_path, loss, data=PEOPLE, **options):
    return run("host", tmp_path / "run", plan=SHORT, loss=loss, data=data, **options)


def test_a_misspelt_key_is_refused_before_anything_is_spent(tmp_path):
    """Case 1 of section 7 of the review: it spent epsilon 4 in 0.1 s and returned noise."""
    with pytest.raises(bs.errors.InvalidArgument) as refused:
        host(tmp_path, misspelt)
    said = str(refused.value)
    for part in (
        "raises KeyError: 'heigth'",
        "test_rehearsal.py",
        "height: float64[]",
        "Nothing was",
    ):
        assert part in said
    assert "rehearse=False" in said
    assert not (tmp_path / "run").exists()
    with pytest.raises(
        bs.errors.InvalidArgument, match="KeyError: 'heigth'"
    ):  # JAX meets it while it traces
        bs.minimize(misspelt, np.zeros(2), PEOPLE, method=SHORT, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert host(tmp_path, right).privacy.mu == SHORT.mu


WRONG = {
    "a vector": (
        lambda p, r: p * r["height"],
        r"gives an array of shape \(2,\), not one real number",
    ),
    "nothing": (lambda p, r: None, r"gives nothing \(None\)"),
    "text": (lambda p, r: "1.0", "gives a value of type str"),
    "complex": (lambda p, r: 1j, "gives a value of type complex"),
    "a dict": (lambda p, r: {"loss": 1.0}, "gives a value of type dict"),
    "an exit": (lambda p, r: exit(3), "raises SystemExit: 3"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_loss_that_gives_no_number_is_refused(tmp_path, kind, capfd):
    loss, said = WRONG[kind]
    with pytest.raises(bs.errors.InvalidArgument, match=said):
        host(tmp_path, loss)
    assert not (tmp_path / "run").exists()
    assert capfd.readouterr() == ("", "")


def test_a_vectorised_loss_gives_one_number_for_each_row(tmp_path):
    for loss in (lambda p, r: 1.0, lambda p, r: np.zeros((2, 2)), lambda p, r: np.zeros(1)):
        with pytest.raises(bs.errors.InvalidArgument, match="one number for each of 2 rows"):
            host(tmp_path, loss, vectorized=True)
    assert not (tmp_path / "run").exists()
    host(tmp_path, lambda p, r: abs(r["height"] - p[:, 0]), vectorized=True)


@pytest.mark.slow
def test_with_a_time_limit_it_is_tried_in_a_process_of_its_own(tmp_path):
    mother = os.getpid()

    def exits(params, record):
        os._exit(1) if os.getpid() != mother else None

    def sleeps(params, record):
        time.sleep(600)

    with pytest.raises(
        bs.errors.InvalidArgument, match=r"raises KeyError: 'heigth' \(line \d+ of test_reh"
    ):
        host(tmp_path, misspelt, timeout=60.0)
    with pytest.raises(bs.errors.InvalidArgument, match="ends its process"):
        host(tmp_path, exits, timeout=60.0)
    with pytest.raises(bs.errors.InvalidArgument, match=r"takes longer than timeout=0\.2 seconds"):
        host(tmp_path, sleeps, timeout=0.2)
    assert not (tmp_path / "run").exists()


IGNORES = {
    "host": [lambda p, r: abs(r["height"] - 3.0), lambda p, r: 0.0 * p[0] + 1.0],
    "compiled": [lambda p, r: jnp.abs(r["height"] - 3.0), lambda p, r: 0.0 * p[0] + 1.0],
}


@pytest.mark.parametrize("driver", IGNORES)
def test_a_loss_that_ignores_its_parameters_is_refused(driver, tmp_path):
    for loss in IGNORES[driver]:
        with pytest.raises(bs.errors.InvalidArgument, match="does not change with the parameters"):
            run(driver, tmp_path / "run", plan=SHORT, data=PEOPLE, loss=loss)
    assert not (tmp_path / "run").exists()


SEES_LITTLE = {
    "steps": lambda p, r: float((p[0] > r["height"]) != (r["weight"] > 0.5)),
    "a cap": lambda p, r: min(abs(p[0] - r["height"]), 0.001),
    "some records": lambda p, r: p[0] if 0 < r["height"] < 1 else 0.0,
    "a price": lambda p, r: -p[0] if 3.0 < 3.0 + p[0] <= r["weight"] else 0.0,
    "somebody deep in debt": lambda p, r: p[0] if r["weight"] < -100.0 else 0.0,
    "far away": lambda p, r: max(abs(p[0]) - 0.1, 0.0),
    "a number in few places": lambda p, r: 1.0 if abs(p[0]) < 1e-9 else np.nan,
}


@pytest.mark.parametrize("name", SEES_LITTLE)
def test_a_loss_that_changes_somewhere_for_somebody_is_fine(name, tmp_path):
    rehearsal.rehearse(SEES_LITTLE[name], np.zeros(2), PEOPLE)


def test_an_ordinary_loss_is_called_few_times():
    calls = []
    rehearsal.rehearse(lambda p, r: calls.append(1) or right(p, r), np.zeros(2), PEOPLE)
    assert len(calls) == 3


@pytest.mark.filterwarnings("ignore::blindstep.errors.HopelessPlan")
@pytest.mark.parametrize("driver", ["compiled", "host"])
def test_swapped_parameters_and_data_are_refused(driver, tmp_path):
    with pytest.raises(bs.errors.InvalidArgument, match="24 rows: are the two swapped"):
        bs.minimize(
            *(distance, DATA, np.zeros(2), bs.Privacy(mu=1.0)),
            evaluate=bs.Host() if driver == "host" else None,
            checkpoint=tmp_path / "run",
            method=bs.Auto(evaluations=2**12),
        )
    assert not (tmp_path / "run").exists()
    matrix = np.zeros((500, 2))  # many parameters, and few records that are none of them
    rehearsal.rehearse(lambda p, r: abs(p[3] @ r["x"]), matrix, {"x": DATA})


def distance(point, record):
    return abs(point - record).sum()


@pytest.mark.parametrize("driver", ["compiled", "host"])
def test_a_plan_for_another_number_of_records_is_refused(driver, tmp_path):
    """In version 0.2 one for fewer was run: most people were never asked."""
    for number in (len(DATA) - 1, len(DATA) + 1):
        other = dataclasses.replace(SHORT, records=number)
        with pytest.raises(bs.errors.InvalidArgument, match=f"the plan is for {number} records"):
            run(driver, tmp_path / "run", plan=other)
    assert not (tmp_path / "run").exists()


def picky(accepted):
    """A loss that fails for every record but some."""

    def loss(params, record):
        if not accepted(record):
            raise ValueError("not for me")
        return right(params, record)

    return loss


def test_a_loss_that_fails_for_some_made_up_records_is_fine(tmp_path):
    for number, accepted in enumerate(
        (
            lambda r: r["height"] == 0,
            lambda r: r["height"] == 1,
            lambda r: 0 < r["height"] < 1,
            lambda r: r["height"] not in (0, 1) and r["height"] * r["weight"] != 0,
        )
    ):
        host(tmp_path / str(number), picky(accepted))


def test_it_can_be_switched_off(tmp_path):
    """Some losses take real values only, such as keys of a table."""
    known = {value: value for value in DATA[:, 0]}
    loss = lambda p, r: abs(known[float(r["height"])] - p[0])  # noqa: E731
    with pytest.raises(bs.errors.InvalidArgument, match="KeyError"):
        host(tmp_path, loss)
    tried, plain = host(tmp_path, loss, rehearse=False), host(tmp_path / "other", right)
    assert np.array_equal(tried.means, plain.means)


@pytest.mark.parametrize("driver", ["compiled", "host"])
def test_values_that_are_never_finite_are_a_warning(driver):
    loss = (lambda x, z: jnp.log(x[0] * z[0])) if driver == "compiled" else (lambda x, z: np.inf)
    with pytest.warns(
        bs.errors.LossNotFinite, match="not finite at the start parameters, for any of 6"
    ):
        run(driver, plan=SHORT, loss=loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(driver, plan=SHORT, loss=loss, rehearse=False)


def test_a_callback_that_always_raises_is_refused(tmp_path, capfd):
    def loss(x, z):
        def call(value):
            raise ValueError("no such thing")

        return jax.pure_callback(
            call, jax.ShapeDtypeStruct((), z.dtype), z[0], vmap_method="sequential"
        )

    with pytest.raises(bs.errors.InvalidArgument, match="ValueError: no such thing"):
        run("compiled", tmp_path / "run", plan=SHORT, loss=loss)
    assert not (tmp_path / "run").exists()
    assert capfd.readouterr() == ("", "")


class NeverRead(np.ndarray):
    """An array of which everything but the values may be asked."""

    def __getitem__(self, key):
        raise AssertionError("a record was read")

    def __array__(self, *args, **kwargs):
        raise AssertionError("a record was read")


def test_no_value_of_the_data_enters():
    """Shapes and dtypes do. So two data sets of the same shapes are rehearsed alike, bit for bit."""
    secret = np.full((24, 2), SECRET).view(NeverRead)
    seen = []

    def loss(params, record):
        seen.append(np.copy(record))
        return np.nan

    for data in (secret, DATA):
        with pytest.warns(bs.errors.LossNotFinite):
            rehearsal.rehearse(loss, np.zeros(2), data)
    assert len(seen) == 12
    assert np.array_equal(seen[:6], seen[6:])
    assert not np.any(np.asarray(seen) == SECRET)


def test_made_up_records_have_the_structure_shapes_and_dtypes_of_the_data():
    data = {
        "half": np.zeros((5, 3), jnp.bfloat16),
        "count": np.full((5,), 9, np.uint8),
        "flag": np.ones((5, 2), bool),
        "name": np.array(["Ada Lovelace"] * 5),
        "day": np.zeros(5, "datetime64[D]"),
        "thing": np.array([object()] * 5),
        "pair": (np.zeros((5, 1, 2), np.float32), jnp.zeros(5)),
    }
    made = rehearsal.made_up(data)
    assert jax.tree.structure(made) == jax.tree.structure(data)
    for mine, theirs in zip(jax.tree.leaves(made), jax.tree.leaves(data), strict=True):
        assert mine.shape == (6, *theirs.shape[1:])
        assert mine.dtype.kind == theirs.dtype.kind
        assert mine.dtype == theirs.dtype or theirs.dtype.kind == "U"
    assert set(made["count"]) | set(made["flag"].ravel()) == {0, 1}
    assert set(made["name"]) == {"", "a"} == set(made["thing"])


@pytest.mark.parametrize("shape", [(24, 2), (24, 20), (24,)])
def test_a_loss_of_pairs_is_seen_to_change(shape):
    pairs = np.zeros(shape, np.int32)
    data = {"one": pairs, "other": pairs}

    def gap(params, record):
        one, other = np.ravel(record["one"]), np.ravel(record["other"])
        return params[one[0]] - params[one[1] if one.size > 1 else other[0]]

    rehearsal.rehearse(gap, np.zeros(2), data)


def test_what_a_record_is_made_of_does_not_say_how_long_texts_are(tmp_path):
    data = {"name": np.array(["Ada Lovelace"] * 24)}
    with pytest.raises(bs.errors.InvalidArgument, match=r"which is \{name: text\[\]\}"):
        host(tmp_path, lambda p, r: r["age"], data)


def test_people_with_several_rows_have_their_own_loss_tried(tmp_path):
    method = bs.Tight(radius=BUDGET["radius"], bounds=bs.Bounds(clip=1.0), horizon=2)
    with pytest.raises(bs.errors.InvalidArgument, match="KeyError: 'heigth'"):
        bs.minimize(
            misspelt,
            np.zeros(2),
            PEOPLE,
            BUDGET["privacy"],
            method=method,
            people=np.arange(24) // 2,
            evaluate=bs.Host(),
            checkpoint=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()
