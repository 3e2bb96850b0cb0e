"""`blindstep report`: a run directory as a page for people."""

from __future__ import annotations

from typing import Annotated

import typer

from blindstep.cli.common import AsJson, fail, print_json
from blindstep.errors import BlindstepError
from blindstep.insight.report import report_run_directory


def report(
    directory: Annotated[str, typer.Argument(help="The directory of a run, finished or not.")],
    out: Annotated[
        str | None, typer.Option(help="The file to write. Default: DIRECTORY-report.html.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The heading.")] = None,
    ledger: Annotated[
        str | None, typer.Option(help="The ledger, where the run did not keep its own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a self-contained HTML report of a run: privacy, noise, plan, ledger; nothing secret.

    The run directory holds the noise key, so the page goes beside it, not into it.
    """
    try:
        path = report_run_directory(directory, out, title=title, ledger=ledger)
    except BlindstepError as error:
        fail(error, as_json)
    if as_json:
        print_json({"report": str(path)})
    else:
        print(f"{path}: the report, for a browser. It holds nothing secret.")
