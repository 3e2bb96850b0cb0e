"""`blindstep report`: a run directory as a page for people."""

from __future__ import annotations

from typing import Annotated

import typer

from blindstep.cli.common import AsJson, fail, print_json
from blindstep.errors import BlindstepError
from blindstep.insight.report import report_run_directory


def report(
    directory: Annotated[str, typer.Argument(help="A run directory, of a run finished or not.")],
    out: Annotated[
        str | None, typer.Option(help="The file to write; left out: report.html in the directory.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The heading.")] = None,
    ledger: Annotated[
        str | None, typer.Option(help="The ledger, where the run did not keep its own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a self-contained HTML report of a run: privacy, noise, plan, ledger; nothing secret."""
    try:
        path = report_run_directory(directory, out, title=title, ledger=ledger)
    except BlindstepError as error:
        fail(error, as_json)
    if as_json:
        print_json({"report": str(path)})
    else:
        print(path)
