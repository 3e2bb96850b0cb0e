"""Records from files: what is read, and what is said about a file that cannot be used."""

import errno

import jax.numpy as jnp
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import blindstep as bs
from blindstep.cli.data_files import check_finite, read_data
from blindstep.cli.problem_file import load_problem
from blindstep.errors import InvalidArgument
from storage_helpers import failing

SECRET = "Ada Lovelace"


def written(tmp_path, text, name="people.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_with_names_gives_columns(tmp_path):
    data = read_data(written(tmp_path, '\ufeffage,"height, cm"\r\n30,1.8\r\n40,1.7\r\n'))
    assert list(data) == ["age", "height, cm"]
    np.testing.assert_array_equal(data["age"], [30.0, 40.0])


def test_csv_without_names_gives_one_array(tmp_path):
    np.testing.assert_array_equal(
        read_data(written(tmp_path, "1,2\n3,-4e1\n")), [[1.0, 2.0], [3.0, -40.0]]
    )


def test_numbers_may_be_missing_where_they_have_a_scale_and_may_be_true_or_false(tmp_path):
    """As `blindstep.encode` takes them: at their centre."""
    text = "age,job,left\n30,cook,True\n,clerk,false\nNA,cook,1\n"
    data = read_data(written(tmp_path, text), ("job",), ("age",))
    np.testing.assert_array_equal(data["age"], [30.0, np.nan, np.nan])
    np.testing.assert_array_equal(data["left"], [1.0, 0.0, 1.0])
    made = bs.encode(data, scales={"age": (40, 10)}, categories={"job": ("cook", "clerk")})
    np.testing.assert_array_equal(made["features"], [[-1, 1, 0], [0, 0, 1], [0, 1, 0]])
    columns = {"age": [30, None], "member": [True, None], "left": [True, False]}
    data = read_data(parquet(tmp_path, **columns), (), ("age", "member"))
    np.testing.assert_array_equal(data["age"], [30.0, np.nan])
    np.testing.assert_array_equal(data["member"], [1.0, np.nan])


def test_columns_are_named_where_some_of_their_names_were_given(tmp_path):
    """Then line 1 holds names, and no record."""
    path = written(tmp_path, f"age,left\n30,1\n,{SECRET}\n")
    with pytest.raises(InvalidArgument, match="line 3, column 'left', is not a number") as caught:
        read_data(path, (), ("age",))
    assert SECRET not in str(caught.value)
    with pytest.raises(InvalidArgument, match="line 2, column 'left', is empty: fill it"):
        read_data(written(tmp_path, "age,left\n30,\n"), (), ("age",))


def test_columns_are_named_where_the_problem_file_speaks_of_one(tmp_path):
    """Other words in it are no names: a record without a line of names may well begin with one."""
    (tmp_path / "problem.py").write_text(
        "params, data = 0.0, 'people.csv'\n"
        "def loss(p, record):\n    return abs(p - record['left'])\n"
        f"colleagues = ({SECRET!r}, 'Charles Babbage')\n"
    )
    for text, says in (
        ("age,left\n30,\n", "line 2, column 'left', is empty"),
        (f"{SECRET},36a\n1,2\n3,\n", "line 3, column 2, is empty"),
    ):
        written(tmp_path, text)
        with pytest.raises(InvalidArgument, match=says) as caught:
            load_problem(tmp_path / "problem.py")
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("age;height\n30;1.8\n", "something else than commas"),
        ("age,age\n30,1.8\n", "line 1, has an empty cell or the same text twice"),
        ("age,\n30,1.8\n", "line 1, has an empty cell or the same text twice"),
        (f"age,name\n30,1\n40,{SECRET}\n", "line 3, column 2, is not a number: turn text"),
        ("age,height\n30,1.8\n40,\n", "line 3, column 2, is empty: fill it"),
        ("1,2\n3,x\n", "line 2, column 2, is not a number"),
        ("age,height\n30,1.8\n40\n", "line 3, has 1 cells, not 2"),
        ("age,height\n30,1.8,7\n40,1,7\n", "line 2, has 3 cells, not 2"),
        ("age,height\n", "has no record"),
        # Line 1 is a record: nothing of it is shown.
        (f"{SECRET},36\nx,41\n", "line 1, has both numbers and text"),
        (f"{SECRET},London\nx,Wilmslow\n", "line 2, column 1, is not a number"),
        (f"{SECRET},London\n1,2\n3,\n", "line 3, column 2, is empty"),
        (f"{SECRET},London\n1,2,3\n", "line 2, has 3 cells, not 2"),
        (f"{SECRET},{SECRET}\n1,2\n", "the same text twice"),
        (f"{SECRET},London\n", "has no record"),
        (f"{SECRET};36\nx;41\n", "something else than commas"),
    ],
)
def test_a_csv_that_cannot_be_used(tmp_path, text, says):
    with pytest.raises(InvalidArgument, match=says) as caught:
        read_data(written(tmp_path, text))
    assert not any(word in str(caught.value) for word in (SECRET, "London", "36", "Wilmslow"))
    assert caught.value.__cause__ is None  # NumPy's own message has the cell
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_npy_stays_on_the_disk_and_npz_gives_its_arrays(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(3, 2))
    np.savez(tmp_path / "b.npz", x=np.arange(3.0), y=np.ones((3, 2)))
    assert isinstance(read_data(tmp_path / "a.npy"), np.memmap)
    assert set(read_data(tmp_path / "b.npz")) == {"x", "y"}


def test_python_objects_are_not_read(tmp_path):
    objects = np.array([{"a": 1}, None], dtype=object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "b.npz", x=objects, allow_pickle=True)
    for name in ("a.npy", "b.npz"):
        with pytest.raises(InvalidArgument, match="not a file of plain arrays"):
            read_data(tmp_path / name)
    for name in ("c.npy", "c.npz"):
        with pytest.raises(InvalidArgument, match="not a file of plain arrays"):
            read_data(written(tmp_path, "nonsense", name))


def parquet(tmp_path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "people.parquet")
    return tmp_path / "people.parquet"


def test_parquet_gives_columns(tmp_path):
    pairs = pyarrow.array([[1.0, 2.0], [3.0, 4.0]], pyarrow.list_(pyarrow.float64(), 2))
    data = read_data(parquet(tmp_path, age=[30, 40], tall=[True, False], pair=pairs))
    np.testing.assert_array_equal(data["age"], [30, 40])
    np.testing.assert_array_equal(data["pair"], [[1.0, 2.0], [3.0, 4.0]])
    check_finite(data)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ([SECRET, "b"], "column 'it', is of type string: a loss computes with numbers"),
        ([1.0, None], "column 'it', has missing values"),
    ],
)
def test_a_parquet_that_cannot_be_used(tmp_path, column, says):
    with pytest.raises(InvalidArgument, match=says) as caught:
        read_data(parquet(tmp_path, it=column))
    assert SECRET not in str(caught.value)


def test_other_files(tmp_path, monkeypatch):
    with pytest.raises(InvalidArgument, match="is not a parquet file"):
        read_data(written(tmp_path, "nonsense", "a.parquet"))
    with pytest.raises(InvalidArgument, match=r"must be .npy, .npz, .csv, .parquet"):
        read_data(written(tmp_path, "nonsense", "a.xlsx"))
    with pytest.raises(InvalidArgument, match=r"\(No such file or directory\): data is looked for"):
        read_data(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InvalidArgument, match=r"folder.csv is not a file: data is looked for"):
        read_data(tmp_path / "folder.csv")
    path = written(tmp_path, "1,2\n", "locked.csv")
    refused = pytest.raises(InvalidArgument, match=r"locked.csv cannot be read \(Permission denied")
    with refused, failing(monkeypatch, "stat", errno.EACCES):
        read_data(path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"age": np.array([1.0, np.nan])}, r"data\['age'\] has missing values \(NaN\)"),
        (np.array([[1.0], [np.inf]], np.float32), "infinities"),
    ],
)
def test_arrays_that_cannot_be_used(data, says):
    with pytest.raises(InvalidArgument, match=says):
        check_finite(data)


def test_good_arrays_pass():
    check_finite(
        {"a": np.ones((2, 3)), "b": np.array([True, False]), "c": jnp.ones(2, jnp.bfloat16)}
    )
