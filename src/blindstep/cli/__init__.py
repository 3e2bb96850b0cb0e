"""The command line: a function for each command, each with `--json`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from blindstep.errors import BlindstepError, HopelessPlan, LargeDelta, LossNotFinite

# Each command: the module that has it, and the first sentence of its help. A module is imported when
# its command runs, since JAX comes with it, which takes longer than reading this table.
COMMANDS = {
    "privacy": ("plans", "Convert a privacy budget, exactly: mu to epsilon, or epsilon to mu."),
    "plan": ("plans", "Plan a run: every number of it, what it costs and what it certifies."),
    "train": (
        "train",
        "Train privately on a problem file. The same command goes on after a crash.",
    ),
    "audit": (
        "plans",
        "Attack a plan through its own code: a lower bound on mu against what is claimed.",
    ),
    "report": (
        "plans",
        "Write a self-contained HTML report of a run: privacy, noise, plan, ledger; nothing secret.",
    ),
    "hand-over": (
        "hand_over",
        "Write a folder about a finished run to give away, or check one; nothing secret.",
    ),
    "demo": (
        "demo",
        "Two private runs on embedded data, in about a minute: votes of users, and digits.",
    ),
    "serve": ("serve", "Start the feedback service: better from votes, privately, over HTTP."),
    "ledger": ("ledger", "What was spent, run by run."),
}
# The exit code of a program that Ctrl-C has ended: 128 + SIGINT.
STOPPED = 130
_JSON = "blindstep.json"


def _asked_for_json(context: typer.Context, asked: bool) -> bool:
    context.meta[_JSON] = asked  # shared with the contexts around it: errors are JSON, too
    return asked


AsJson = Annotated[
    bool, typer.Option("--json", callback=_asked_for_json, help="Print JSON for machines.")
]
Mu = Annotated[float | None, typer.Option(help="Gaussian-DP budget (the paper calls it rho).")]
Epsilon = Annotated[float | None, typer.Option(help="Epsilon of (epsilon, delta)-DP.")]
Delta = Annotated[float, typer.Option(help="Delta of (epsilon, delta)-DP.")]


def _whole(text: str) -> int:
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if (value := float(text)).is_integer():
            return int(value)
    raise typer.BadParameter(f"{text!r} is not a whole number, such as 1000000 or 1e6.")


# How an option for a number of records or evaluations is read.
WHOLE: dict[str, Any] = {"parser": _whole, "metavar": "<int>"}


def print_json(value: Any) -> None:
    """Print a value as JSON; a NaN is an error here, not a surprise for the reader's parser."""
    print(json.dumps(value, indent=2, allow_nan=False))


def end(code: int, words: object) -> NoReturn:
    """End with this exit code and one line on stderr."""
    print(f"blindstep: {words}", file=sys.stderr)
    raise typer.Exit(code) from None


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
        """Run a command; an error of this package, or Ctrl-C, ends it with one line on stderr."""
        try:
            return super().invoke(ctx)
        except BlindstepError as error:
            if ctx.meta.get(_JSON):
                print_json({"error": type(error).__name__, "message": str(error)})
            end(2, error)
        except KeyboardInterrupt:
            again = "the same command starts again, and a run that had begun goes on where it was."
            end(STOPPED, f"Stopped; {again}")


def load(name: str) -> Any:
    """The command of this name, imported and ready to run."""
    found = getattr(import_module(f"blindstep.cli.{COMMANDS[name][0]}"), name.replace("-", "_"))
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)
    alone = typer.Typer(add_completion=False)
    alone.command(name)(found)
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
)


def _version(asked: bool) -> bool:
    if asked:
        print(f"blindstep {version('blindstep')}")
        raise typer.Exit
    return asked


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
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
