"""`blindstep demo`: two stories on embedded data, with their tables, statement and report.

The stories are an example (`examples/demo`), which a wheel has inside the package, as `demo`.
"""

from __future__ import annotations

import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

import blindstep
from blindstep.cli import AsJson, print_json
from blindstep.errors import InvalidArgument
from blindstep.insight.report import report as write_report

REPORT = Path("demo") / "report.html"


def load_demo() -> Any:
    """The package of the stories: that of a wheel, or that of the checkout."""
    package = Path(blindstep.__file__).parent
    for folder in (package / "demo", package.parents[1] / "examples" / "demo"):
        spec = spec_from_file_location("blindstep_demo", folder / "__init__.py")
        if spec is not None and spec.loader is not None and (folder / "__init__.py").exists():
            sys.modules[spec.name] = found = module_from_spec(spec)
            spec.loader.exec_module(found)
            return found
    raise InvalidArgument("the demo is not installed: it is in wheels of blindstep and checkouts.")


def demo(as_json: AsJson = False) -> None:
    """Two private runs on embedded data, in about a minute: votes of users, and digits."""
    began = time.perf_counter()
    # Progress goes where the bars go, so that stdout holds tables, or JSON, and nothing else.
    say = None if as_json else Console(stderr=True, highlight=False).print
    found = load_demo()
    stories = [found.votes.tell(say), found.digits.tell(say)]
    # The run whose statement and report are shown: the votes at the largest epsilon.
    label, result = [(r.label, r.result) for r in stories[0].rows if r.result is not None][-1]
    utility = {
        f"{story.title.partition(':')[0]}, {story.score}, {row.label}": f"{row.score:.3f}"
        for story in stories
        for row in story.rows
    }
    REPORT.parent.mkdir(exist_ok=True)
    title = f"blindstep demo: votes at {label}"
    report = str(write_report(result, REPORT, title=title, public_utility=utility))
    if as_json:
        told = {"stories": [story.to_dict() for story in stories], "report": report}
        print_json(told | {"seconds": time.perf_counter() - began})
        return
    console = Console(highlight=False)
    for story in stories:
        console.print(f"\n[bold]{story.title}[/bold]")
        console.print(_table(story))
        console.print(story.meaning, style="dim")
    console.print(f"\nWhat is guaranteed to each user (votes, {label}):")
    console.print(str(result.privacy))
    console.print(f"\nThe report, with all of the above: {report} (open it in a browser)")


def _table(story: Any) -> Table:
    """A story as a table: how well it went, and the delta at which epsilon is quoted."""
    table = Table("", Column(story.score, justify="right"), Column("delta", justify="right"))
    for row in story.rows:
        delta = "" if row.result is None else f"{row.result.privacy.delta:g}"
        table.add_row(row.label, f"{row.score:.3f}", delta)
    return table
