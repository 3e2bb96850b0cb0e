"""`import blindstep` and `blindstep --help` are quick: JAX is imported when it is first needed."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import blindstep
from blindstep import cli


@pytest.mark.parametrize(
    "begun",
    [
        "import blindstep",
        "import blindstep; dir(blindstep)",
        "from blindstep.errors import InvalidArgument, LargeDelta",
        "import blindstep as bs; bs.errors.InvalidArgument",
        "import blindstep.cli",
        "from typer.testing import CliRunner; from blindstep.cli import app\n"
        "assert 'train' in CliRunner().invoke(app, ['--help']).stdout",
    ],
)
def test_jax_is_not_imported_before_it_is_needed(begun):
    check = (
        "import sys\nfor name in ('jax', 'numpy', 'equinox'): assert name not in sys.modules, name"
    )
    subprocess.run([sys.executable, "-c", f"{begun}\n{check}"], check=True)


def test_table_and_type_checkers_name_the_same():
    assert blindstep.__all__ == list(blindstep._HOMES) == sorted(blindstep._HOMES)
    tree = ast.parse(Path(inspect.getfile(blindstep)).read_text())
    (typed,) = [each for each in tree.body if isinstance(each, ast.If)]
    told = {
        alias.name: node.module
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {name: f"blindstep.{home}" for name, home in blindstep._HOMES.items()}
    assert told == homes | {"errors": "blindstep", "callbacks": "blindstep.run"}


def test_every_public_name_is_there():
    assert set(blindstep.__all__) <= set(dir(blindstep))
    for name in blindstep.__all__:
        found = getattr(blindstep, name)
        assert getattr(found, "__name__", name).rpartition(".")[2] == name
        assert blindstep.__dict__[name] is found  # kept: the second time nothing is looked up
    with pytest.raises(AttributeError, match="no attribute 'minimise'"):
        blindstep.minimise  # noqa: B018


def test_importing_leaves_the_precision_of_the_program_alone():
    """The library computes in float64 where it runs, and switches nothing for the user's own code."""
    check = (
        "import jax.numpy as jnp, blindstep as bs\n"
        "bs.minimize, bs.Optimizer, bs.Host\n"
        "assert jnp.zeros(1).dtype == 'float32'\n"
        "method = bs.Tight(radius=1, bounds=bs.Bounds(clip=1), horizon=1, first_batch=4)\n"
        "plan = bs.plan(method, dim=1, records=4, privacy=bs.Privacy(mu=1))\n"
        "result = bs.minimize(lambda p, z: abs(p - z), 0.5, jnp.ones(4), method=plan)\n"
        "assert result.history.gradient_norm.dtype == 'float64'\n"
        "assert jnp.zeros(1).dtype == 'float32'\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_list_of_commands_says_what_their_own_help_says(name):
    told = cli.load(name)
    assert (told.help or "").partition("\n")[0] == cli.COMMANDS[name][1]


def test_a_mistyped_command_is_answered_with_the_nearest():
    said = CliRunner().invoke(cli.app, ["trian"])
    assert said.exit_code == 2
    assert "Did you mean 'train'" in said.stderr
