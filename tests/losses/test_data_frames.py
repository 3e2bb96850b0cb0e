"""Data frames are data like any other; categories and scales come from public lists and constants."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import blindstep as bs
from blindstep.losses.data_frames import arrays_of
from blindstep.run.planned import of_compiled
from driver_runs import DATA, SHORT, run, same
from losses import capped_distance, capped_distance_numpy

SECRET = "Ada Lovelace"
LOSSES = {"compiled": capped_distance, "host": capped_distance_numpy}


class Column:
    """What polars's and pandas's columns have in common."""

    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return np.asarray(self.values)


class Frame:
    """What their frames have in common; polars's `columns` is a list."""

    def __init__(self, **columns):
        self.held, self.columns = columns, list(columns)

    def __getitem__(self, name):
        return Column(self.held[name])


FRAMES = {
    "pandas": pd.DataFrame({"x": DATA[:, 0], "y": DATA[:, 1]}),
    "another": Frame(x=DATA[:, 0], y=DATA[:, 1]),
    "columns": {"x": pd.Series(DATA[:, 0]), "y": Column(DATA[:, 1])},
    "nullable": pd.DataFrame({"x": DATA[:, 0], "y": DATA[:, 1]}).convert_dtypes(),
}


def by_name(loss, joined):
    def of_columns(params, record):
        return loss(params, joined([record["x"], record["y"]]))

    return of_columns


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("driver", LOSSES)
def test_a_frame_is_a_dict_of_its_columns(driver, kind):
    loss = by_name(LOSSES[driver], jnp.stack if driver == "compiled" else np.array)
    found = run(driver, plan=SHORT, data=FRAMES[kind], loss=loss)
    assert same(found, run(driver, plan=SHORT, data={"x": DATA[:, 0], "y": DATA[:, 1]}, loss=loss))


def test_arrays_stay_as_they_are_and_frames_may_be_parts_of_data(tmp_path):
    np.save(tmp_path / "x.npy", DATA)
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = arrays_of({"disk": on_disk, "frames": (FRAMES["pandas"], FRAMES["another"])})
    assert found["disk"] is on_disk
    for frame in found["frames"]:
        assert np.array_equal(np.stack([frame["x"], frame["y"]], 1), DATA)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float32", "Int64", "boolean"])
def test_one_missing_cell_changes_no_dtype_of_a_frame(dtype):
    """pandas makes floats, or objects, of whole numbers and truth values where one cell is missing."""
    whole = pd.DataFrame({"x": pd.Series([1, 0, 1, 1], dtype=dtype)})
    missing = pd.DataFrame({"x": whole["x"].astype(object).where([False, True, True, True])})
    missing = missing.convert_dtypes() if dtype[0] in "Ib" else missing.astype(float)
    there, gone = arrays_of(whole)["x"], arrays_of(missing)["x"]
    assert there.dtype == gone.dtype == np.float64
    assert there.tolist() == [1, 0, 1, 1]
    assert np.array_equal(gone, [np.nan, 0, 1, 1], equal_nan=True)
    listed = [{"x": cells, "a": [0] * 4} for cells in ([1, 0, 1, 1], [None, 0, 1, 1], [True] * 4)]
    encoded = [bs.encode(each, scales={"a": (0, 1)})["x"] for each in listed]
    assert {each.dtype for each in encoded} == {np.dtype(np.float64)}


def test_no_plan_depends_on_whether_a_cell_is_missing():
    """What a run costs is counted alike for whole numbers and for the floats that gaps make of them."""
    names = [f"x{k}" for k in range(180)]
    whole = pd.DataFrame({name: np.arange(20) for name in names})
    missing = whole.astype(float)
    missing.loc[0] = np.nan

    def loss(params, record):
        return sum(params[k] * record[name] for k, name in enumerate(names))

    as_arrays = [{name: frame[name].to_numpy() for name in frame} for frame in (whole, missing)]
    kinds = (arrays_of(whole), arrays_of(missing), *as_arrays)
    assert len({of_compiled(loss, np.zeros(180), data) for data in kinds}) == 1

    def by_label(params, record):
        return params[record["x0"]]

    of_compiled(by_label, np.zeros(180), as_arrays[0])  # needs whole numbers: counted with them


HALVES = np.array([0.5, 2.0])
CONSTANTS = {
    "a product": lambda p, z: abs(HALVES * p - z["x"]).sum(),
    "a choice": lambda p, z: jnp.where(z["x"] > 0, HALVES, p).sum(),
    "a loop": lambda p, z: jax.lax.scan(lambda c, x: (c + x * p, None), np.zeros(2), HALVES)[0][0],
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_loss_may_hold_numpy_s_constants(name):
    """Of float64, in a session where JAX is at 32 bits, as it is unless somebody says otherwise."""
    with jax.enable_x64(False):
        assert of_compiled(CONSTANTS[name], np.zeros(2), {"x": np.zeros(9)}) > 2**20


def test_text_columns_reach_a_host_loss_as_text(tmp_path):
    job = pd.Series(["cook", None, "clerk", "cook"] * 6)
    frame = pd.DataFrame({"x": DATA[:, 0], "job": job, "kind": job.astype("category")})
    assert set(arrays_of(frame)["job"]) == {"cook", "clerk", ""} == set(arrays_of(frame)["kind"])

    def loss(params, record):
        return abs(params[0] - record["x"]) * (2.0 if record["job"] == "cook" else 1.0)

    # With a checkpoint: its fingerprint reads all columns.
    run("host", tmp_path / "run", plan=SHORT, data=frame, loss=loss)
    with pytest.raises(
        bs.errors.InvalidArgument, match=r"data\['job'\] has dtype .*blindstep\.encode"
    ):
        run("compiled", plan=SHORT, data=frame)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (pd.DataFrame({0: [1.0], 1: [2.0]}), "columns whose names are no text"),
        (pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), "more than one column named 'a'"),
        (pd.DataFrame({"a": [SECRET, 3.0]}), r"data\['a'\] holds neither numbers alone nor text"),
        (pd.DataFrame({"a": [[SECRET], [2]]}), r"data\['a'\] holds neither numbers alone nor text"),
    ],
)
def test_frames_that_cannot_be_used(frame, says):
    with pytest.raises(bs.errors.InvalidArgument, match=says) as refused:
        arrays_of(frame)
    assert SECRET not in str(refused.value)


# -- features -------------------------------------------------------------------------------------

PEOPLE = pd.DataFrame(
    {
        "age": [20, 60, None, 40],
        "job": ["clerk", "cook", SECRET, None],
        "bought": [1, 0, 1, 0],
        "hours": [np.inf, 30.0, 40.0, np.nan],
    }
)
SCALES = {"hours": (40, 10), "age": (40, 20)}
JOBS = {"job": ("cook", "clerk")}
FEATURES = [[0, -1, 0, 1], [-1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    "people",
    [
        PEOPLE,
        PEOPLE.convert_dtypes(),
        PEOPLE.astype({"job": "category"}),
        PEOPLE.to_dict("list"),
        Frame(**PEOPLE.to_dict("list")),
    ],
)
def test_columns_become_features_in_the_order_of_the_arguments(people):
    found = bs.encode(people, scales=SCALES, categories=JOBS)
    assert found["features"].dtype == np.float32
    assert found["features"].tolist() == FEATURES
    assert list(found) == ["features", "bought"]
    assert found["bought"].tolist() == [1, 0, 1, 0]


def test_a_row_becomes_what_it_is_alone():
    """Its features depend on the row and the public constants, on no other row."""
    together = bs.encode(PEOPLE, scales=SCALES, categories=JOBS)["features"]
    for place in range(len(PEOPLE)):
        alone = bs.encode(PEOPLE.iloc[place : place + 1], scales=SCALES, categories=JOBS)
        assert np.array_equal(alone["features"][0], together[place])


def test_categories_may_be_numbers_and_anything_may_be_in_a_cell():
    odd = {"code": [1, 2.0, [SECRET], {}, np.nan, True, "1"]}
    found = bs.encode(odd, categories={"code": (1, 2)})["features"]
    assert found.tolist() == [[1, 0], [0, 1], [0, 0], [0, 0], [0, 0], [1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"scales": {"agee": (1, 1)}}, "there is no column 'agee': there are age, job"),
        ({"scales": {"age": (1, 1)}, "categories": {"age": (1,)}}, "in both scales and categories"),
        ({}, "give scales, categories or both"),
        ({"scales": {"age": (40, 0)}}, r"the size of scales\['age'\] must be above 0"),
        ({"scales": {"age": (np.nan, 1)}}, r"the centre of scales\['age'\] must be a finite"),
        ({"scales": {"job": (0, 1)}}, "column 'job' is not one of numbers"),
        ({"categories": {"job": "cook"}}, r"categories\['job'\] must be a list"),
        ({"categories": {"job": ()}}, r"categories\['job'\] must be a list"),
        ({"categories": {"job": ("cook", "cook")}}, "names a category twice"),
        ({"scale": {"age": (1, 1)}}, "did you mean 'scales'"),
    ],
)
def test_what_is_wrong_is_said_and_no_cell_is_named(given, says):
    with pytest.raises(bs.errors.InvalidArgument, match=says) as refused:
        bs.encode(PEOPLE, **given)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_column_of_that_name_and_things_that_are_no_frame():
    with pytest.raises(bs.errors.InvalidArgument, match="a column is named 'features'"):
        bs.encode({"features": [1], "a": [1]}, scales={"a": (0, 1)})
    with pytest.raises(bs.errors.InvalidArgument, match="frame is a list"):
        bs.encode([1, 2], scales={"a": (0, 1)})
    with pytest.raises(bs.errors.InvalidArgument, match="differ in length"):
        bs.encode({"a": [1], "b": [1, 2]}, scales={"a": (0, 1), "b": (0, 1)})
