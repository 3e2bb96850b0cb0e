"""What the commands share: options, JSON for machines, one line on stderr for an error."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, NoReturn

import typer

from blindstep.errors import BlindstepError

# The exit code of a program that Ctrl-C has ended: 128 + SIGINT.
STOPPED = 130
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Mu = Annotated[float | None, typer.Option(help="Gaussian-DP budget (the paper calls it rho).")]
Epsilon = Annotated[float | None, typer.Option(help="Epsilon of (epsilon, delta)-DP.")]
Delta = Annotated[float, typer.Option(help="Delta of (epsilon, delta)-DP.")]


def print_json(value: Any) -> None:
    """Print a value as JSON; a NaN is an error here, not a surprise for the reader's parser."""
    print(json.dumps(value, indent=2, allow_nan=False))


def fail(error: BlindstepError, as_json: bool) -> NoReturn:
    """End with exit code 2 and the error's own words, as JSON too where that was asked for."""
    if as_json:
        print_json({"error": type(error).__name__, "message": str(error)})
    print(f"blindstep: {error}", file=sys.stderr)
    raise typer.Exit(2)


def stop(words: str) -> NoReturn:
    """End after Ctrl-C: one line that says how to go on, and the exit code that shells expect."""
    print(f"blindstep: {words}", file=sys.stderr)
    raise typer.Exit(STOPPED) from None
