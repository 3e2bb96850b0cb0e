"""The command line: privacy, plan, train, audit, report, demo and ledger, each with `--json`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from blindstep.cli.audit import audit
from blindstep.cli.demo import demo
from blindstep.cli.ledger import show
from blindstep.cli.planning import plan, privacy
from blindstep.cli.report import report
from blindstep.cli.train import train

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (privacy, plan, train, audit, report, demo):
    app.command()(command)

ledger_app = typer.Typer(no_args_is_help=True, help="What was spent, run by run.")
ledger_app.command()(show)
app.add_typer(ledger_app, name="ledger")


def _version(asked: bool) -> None:
    if asked:
        print(f"blindstep {version('blindstep')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Differentially private optimization from function values alone."""


def main() -> None:
    """Entry point of the `blindstep` command."""
    app()
