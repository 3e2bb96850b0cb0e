"""`blindstep demo`: the method on embedded data."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from blindstep.cli.common import AsJson, print_json
from blindstep.insight import demo as demonstration


def demo(as_json: AsJson = False) -> None:
    """Run the paper's algorithm on a small embedded problem, at several epsilons."""
    stories = demonstration.run(progress=not as_json)
    if as_json:
        print_json([asdict(story) for story in stories])
        return
    table = Table(title="One meeting point for 40,000 people, from 4 distances asked of each")
    for heading in ("", "meeting point (km)", "mean walk (km)"):
        table.add_column(heading, justify="right")
    for story in stories:
        table.add_row(
            story.label, f"({story.place[0]:.2f}, {story.place[1]:.2f})", f"{story.mean_walk:.3f}"
        )
    console = Console()
    console.print(table)
    for story in stories:
        if story.epsilon == 1.0:
            console.print(f"\nThe guarantee of the row at epsilon 1:\n{story.statement}")
