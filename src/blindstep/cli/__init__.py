"""The command line: privacy, plan, train, audit, report, demo, serve and ledger, each with `--json`."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from blindstep.cli.common import STOPPED, stop
from blindstep.errors import HopelessPlan, LargeDelta, LossNotFinite

# Each command: the module that has it, and the first sentence of its help. A module is imported when
# its command runs, since JAX comes with it, which takes longer than reading this table.
COMMANDS = {
    "privacy": (
        "blindstep.cli.planning",
        "Convert a privacy budget, exactly: mu to epsilon, or epsilon to mu.",
    ),
    "plan": (
        "blindstep.cli.planning",
        "Plan a run: every number of it, what it costs and what it certifies.",
    ),
    "train": (
        "blindstep.cli.train",
        "Train privately on a problem file. The same command goes on after a crash.",
    ),
    "audit": (
        "blindstep.cli.audit",
        "Attack a plan through its own code: a lower bound on mu against what is claimed.",
    ),
    "report": (
        "blindstep.cli.audit",
        "Write a self-contained HTML report of a run: privacy, noise, plan, ledger; nothing secret.",
    ),
    "demo": (
        "blindstep.cli.demo",
        "Two private runs on embedded data, in about a minute: votes of users, and digits.",
    ),
    "serve": (
        "blindstep.cli.serve",
        "Start the feedback service: better from votes, privately, over HTTP.",
    ),
    "ledger": ("blindstep.cli.ledger", "What was spent, run by run."),
}


class _Later(TyperCommand):
    """Stands for a command in the list of commands; when it is called, the command itself is made."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """The context of the command itself, which is then what runs."""
        name = str(self.name)
        return load(name).make_context(info_name, args, *more, **extra)


class _Commands(TyperGroup):
    """The commands of the table, none imported before it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands.update(
            {name: _Later(name, help=said) for name, (_, said) in COMMANDS.items()}
        )

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C in one that has no words of its own for it ends in one line, too."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            stop(
                "Stopped; the same command starts again, and a run that had begun goes on where it was."
            )


def load(name: str) -> Any:
    """The command of this name, imported and ready to run."""
    found = getattr(import_module(COMMANDS[name][0]), name)
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)
    alone = typer.Typer(add_completion=False)
    alone.command(name)(found)
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> bool:
    if asked:
        print(f"blindstep {version('blindstep')}")
        raise typer.Exit
    return asked


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Differentially private optimization from function values alone."""


def _one_line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
    """A warning of this package as its errors look: one line, without a place in the source."""
    if issubclass(category, HopelessPlan | LargeDelta | LossNotFinite):
        return f"blindstep: warning: {message}\n"
    return _as_python_does(message, category, *where, **more)


_as_python_does = warnings.formatwarning


def main() -> None:
    """Entry point of the `blindstep` command."""
    warnings.formatwarning = _one_line
    try:
        app()
    except SystemExit as end:
        if end.code != STOPPED:
            raise
        # What was stopped may still be computing in threads of XLA, which now and then crash a Python
        # that is taken down under them. All files are closed by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(STOPPED)
