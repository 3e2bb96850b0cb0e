"""`blindstep train --people COLUMN`: identifiers from every kind of file, and no word of them."""

import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from blindstep.cli import app
from blindstep.cli import train as command
from blindstep.cli.data_files import read_data
from blindstep.errors import InvalidArgument

PROBLEM = """
import jax.numpy as jnp

def loss(params, record):
    assert set(record) == {"height", "weight"}
    return jnp.abs(record["weight"] - params["slope"] * record["height"])

params = {"slope": jnp.zeros(())}
data = DATA
"""
SECRET = "Ada Lovelace"
RNG = np.random.default_rng(0)
PEOPLE = RNG.permutation(np.repeat(np.arange(400), RNG.integers(1, 12, 400)))
NAMES = np.asarray([f"{SECRET} {number}" for number in PEOPLE])
COLUMNS = {"height": RNG.normal(size=len(PEOPLE))}
COLUMNS["weight"] = 0.5 * COLUMNS["height"] + 0.1 * RNG.normal(size=len(PEOPLE))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["height,name,weight"]
    numbers = zip(COLUMNS["height"].tolist(), NAMES, COLUMNS["weight"].tolist(), strict=True)
    lines += [f'{height!r},"{name}", {weight!r}' for height, name, weight in numbers]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    np.savez("people.npz", name=NAMES, **COLUMNS)
    for kind, names in (("text", NAMES), ("number", PEOPLE)):
        table = pyarrow.table({**COLUMNS, "name": names})
        pyarrow.parquet.write_table(table, f"{kind}.parquet")
    codes = pyarrow.array(NAMES).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({**COLUMNS, "name": codes}), "codes.parquet")
    return tmp_path


def train(data, *options):
    with open("problem.py", "w") as file:
        file.write(PROBLEM.replace("DATA", data))
    fixed = ("--epsilon", "4", "--delta", "1e-4", "--radius", "0.5")
    return CliRunner().invoke(app, ["train", "problem.py", *fixed, *options])


def test_people_are_trained_on_and_named_as_the_unit(folder):
    done = train("'people.csv'", "--people", "name", "--json", "--passes", "10")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["privacy"]["unit"].startswith("one person (all rows of one identifier")
    assert "at most 8 of them" in told["privacy"]["unit"]
    assert told["plan"]["records"] == 400
    with np.load(told["params"]) as answer:
        assert abs(answer["slope"] - 0.5) < 0.2
    public = (Path(told["ledger"]), folder / "problem-run" / "plan.json")
    for path in (*public, folder / "problem-result" / "report.html"):
        assert SECRET not in path.read_text()
    shown = CliRunner().invoke(app, ["ledger", "show", "problem-run"])
    assert "for replacing one person" in " ".join(shown.stdout.split())
    # The same people under another unit would meet the same noise: the run directory refuses.
    again = train("'people.csv'", "--people", "name", "--rows", "2", "--passes", "10")
    assert again.exit_code == 2
    assert "another people or rows" in " ".join(again.stderr.split())


@pytest.mark.parametrize(
    "data",
    [
        *("'people.csv'", "'people.npz'", "'text.parquet'", "'number.parquet'", "'codes.parquet'"),
        "dict(__import__('numpy').load('people.npz'))",
    ],
)
def test_identifiers_are_read_from_every_kind_of_file(folder, monkeypatch, data):
    seen = {}

    def stop(loss, params, data, *, people, method, **rest):
        seen.update(data=data, people=people, method=method)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "minimize", stop)
    done = train(data, "--people", "name", "--rows", "3")
    assert done.exit_code == 130, done.stderr
    assert set(seen["data"]) == set(COLUMNS)
    for name, column in COLUMNS.items():
        np.testing.assert_array_equal(seen["data"][name], column)
    order = np.unique(PEOPLE if "number" in data else NAMES, return_inverse=True)[1]
    np.testing.assert_array_equal(
        np.unique(seen["people"].identifiers, return_inverse=True)[1], order
    )
    assert (seen["method"].records, seen["people"].rows) == (400, 3)
    assert "with at most 3 of their rows" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        (
            "'people.csv'",
            ["--people", "nobody"],
            "data has no column 'nobody', which --people names",
        ),
        ("'people.csv'", ["--rows", "3"], "column 'name', is not a number"),
        ("'text.parquet'", [], "is of type string"),
        ("__import__('numpy').zeros((9, 2))", ["--people", "name"], "give columns by name"),
        ("{'name': __import__('numpy').zeros(9)}", ["--people", "name"], "no column but 'name'"),
        (
            "{k: v[:9] for k, v in __import__('numpy').load('people.npz').items() if k != 'name'}",
            ["--rows", "3"],
            "--rows 3 is for people with several rows: give --people too",
        ),
    ],
)
def test_what_cannot_be_used_is_said_without_a_name(folder, data, options, says):
    done = train(data, *options)
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())
    assert SECRET not in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"name,age\n{SECRET},36\n{SECRET},x\n", "line 3, column 'age', is not a number"),
        (f"name,age\n{SECRET},36\n{SECRET}\n", "line 3, has 1 cells, not 2"),
        (f"name,age\n{SECRET},36\n{SECRET},36,7\n", "line 3, has 3 cells, not 2"),
        (f"name,age\n{SECRET},\n", "line 2, column 'age', is empty"),
        ("name,age\n", "has no record"),
    ],
)
def test_a_csv_with_people_that_cannot_be_used(tmp_path, text, says):
    (tmp_path / "people.csv").write_text(text)
    with pytest.raises(InvalidArgument, match=says) as caught:
        read_data(tmp_path / "people.csv", ("name",))
    assert SECRET not in str(caught.value)


def test_a_row_without_a_name_is_refused(folder):
    with open("people.csv", "a") as file:
        file.write("1.0,,2.0\n")
    done = train("'people.csv'", "--people", "name")
    assert done.exit_code == 2
    assert "none missing" in " ".join(done.stderr.split())
    assert SECRET not in done.stderr
