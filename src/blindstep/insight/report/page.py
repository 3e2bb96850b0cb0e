"""The page: one HTML file with its style and pictures inside, and no reference to anything else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from blindstep.errors import InvalidArgument
from blindstep.insight.certificate import Certificate
from blindstep.insight.report import guarantee, sections
from blindstep.insight.report.content import Content, of_result, of_run_directory
from blindstep.insight.report.markup import text
from blindstep.ledger import data_ledger
from blindstep.run.result import Reportable

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
_SECTIONS = (
    guarantee.header,
    guarantee.in_words,
    guarantee.in_numbers,
    sections.answer,
    sections.noise,
    sections.stationarity,
    sections.utility,
    sections.plan,
    sections.ledger,
    sections.reproduce,
    sections.cite,
    sections.footer,
)


def report(
    result: Reportable,
    path: str | os.PathLike[str],
    *,
    title: str = "A private run",
    public_utility: Mapping[str, float | str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    certificate: Certificate | None = None,
) -> Path:
    """Write a report of a run: one HTML file that loads nothing from elsewhere.

    It holds public quantities only: no loss, no record, no key.

    Args:
        result: what `minimize` or an `Optimizer` gave.
        path: the file to write; folders on the way are made.
        title: the heading.
        public_utility: names and values that you computed *on public data*, such as an accuracy.
        ledger: a ledger, or a run directory, whose spending the report shows.
        certificate: what `certificate` measured at the answer.

    Returns:
        The path of the file.
    """
    return _write(of_result(result, title, public_utility, ledger, certificate), path)


def report_run_directory(
    directory: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    title: str | None = None,
    ledger: str | os.PathLike[str] | None = None,
) -> Path:
    """Write the report of a run directory, finished or not.

    Without a path it goes beside the directory, to DIRECTORY-report.html: the directory is secret, and
    a report is made to be shown.
    """
    directory = os.path.abspath(directory)
    title = title or f"Run {os.path.basename(directory)}"
    content = of_run_directory(directory, title=title, ledger=ledger)
    return _write(content, f"{directory}-report.html" if path is None else path)


def render(content: Content) -> str:
    """The whole page."""
    style = files("blindstep.insight.report").joinpath("style.css").read_text(encoding="utf-8")
    body = "\n".join(part(content) for part in _SECTIONS)
    return _PAGE.format(title=text(content.title), style=style, body=body)


def _write(content: Content, path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    secret = data_ledger.secret_directory(target)
    if secret is not None:
        raise InvalidArgument(
            f"{target} is in the run directory {secret}, which holds the noise key, and a report is "
            "made to be shown: give a path outside of it."
        )
    page = render(content)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(
            f"the report cannot be written to {target} ({error.strerror}): give another path."
        ) from error
    return target
