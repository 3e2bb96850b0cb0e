"""Reports: one self-contained HTML file about a run, of public quantities only.

The page has its style and pictures inside and refers to nothing else. Its first sections, here, say
what is guaranteed, in words and in numbers; `report_sections` has the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from scipy.stats import norm

from blindstep.errors import InvalidArgument
from blindstep.insight import report_sections as sections
from blindstep.insight.audit import Audit
from blindstep.insight.certificate import Certificate
from blindstep.insight.report_content import Content, of_result, of_run_directory
from blindstep.insight.report_markup import (
    Html,
    epsilon_curve,
    facts,
    figure,
    listed,
    note,
    paragraph,
    rounded_up,
    scientific,
    section,
    tag,
    text,
    tiles,
    trade_off_curve,
)
from blindstep.ledger import data_ledger
from blindstep.planning.statement import (
    SECRECY,
    SEEDED,
    Statement,
    arithmetic_sentence,
    delta_sentence,
    gaussian_sentence,
    round_up,
    secrecy_sentence,
    unit_sentence,
)
from blindstep.private.accounting import PERSON, RECORD
from blindstep.private.terms import REPLACE
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


def report(
    result: Reportable,
    path: str | os.PathLike[str],
    *,
    title: str = "A private run",
    public_utility: Mapping[str, float | str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    certificate: Certificate | None = None,
    audit: Audit | None = None,
) -> Path:
    """Write a report of a run: one HTML file that loads nothing from elsewhere.

        bs.report(result, "run.html", public_utility={"accuracy on public records": 0.91})

    It holds public quantities only: no record, no key, and of losses the noisy means that a run
    released.

    Args:
        result: what `minimize`, `tune` or an `Optimizer` gave.
        path: the file to write; folders on the way are made.
        title: the heading.
        public_utility: names and values that you computed *on public data*, such as an accuracy.
        ledger: a ledger, or a run directory, whose spending the report shows.
        certificate: what `certificate` measured at the answer.
        audit: what `audit` found for the plan of this run.

    Returns:
        The path of the file.
    """
    return _write(of_result(result, title, public_utility, ledger, certificate, audit), path)


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
    style = files("blindstep.insight").joinpath("report.css").read_text(encoding="utf-8")
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


def header(content: Content) -> Html:
    """Title, state of the run, and the numbers that matter most."""
    plan, privacy = content.plan, content.privacy
    one, many = (PERSON, "people") if privacy.unit.startswith(PERSON) else (RECORD, "records")
    state, alerts = tag("span", "finished", css="badge good"), []
    if privacy.seeded:
        alerts.append(tag("div", paragraph(SEEDED), css="alert"))
    if (spent := content.spending) is not None and spent["mu"] > privacy.mu * (1 + 1e-6):
        together = (
            f"On the same people everything in the ledger is {round_up(spent['mu'])}-Gaussian "
            f"differentially private: epsilon {rounded_up(spent['epsilon'])} at delta = "
            f"{scientific(spent['delta'])}. Quote these numbers for a choice among its runs; those "
            "below are this run's own."
        )
        said = paragraph(tag("b", "This run is part of a larger spend. "), together)
        alerts.append(tag("div", said, css="alert warn"))
    if not content.finished:
        done = f"unfinished: step {content.steps_done:,} of {content.steps:,}"
        what, why = "This run is not finished. ", "what was spent so far is in the ledger."
        if content.ended_early:
            done = f"ended early: step {content.steps_done:,} of {content.steps:,}"
            what, why = "This run was ended early. ", "when a run ends depends on what it released."
        state = tag("span", done, css="badge warn")
        said = paragraph(tag("b", what), f"The privacy below is that of the whole plan; {why}")
        alerts.append(tag("div", said, css="alert warn"))
    return tag(
        "header",
        state,
        tag("h1", content.title),
        tag(
            "p",
            f"{plan.dim:,} parameters learned from {plan.records:,} {many} in {content.steps:,} "
            f"noisy steps, from {'gradients' if plan.differentiates else 'values'} of the loss alone.",
            css="lead",
        ),
        *alerts,
        tiles(
            [
                (f"ε = {rounded_up(privacy.epsilon)}", f"at δ = {scientific(privacy.delta)}"),
                (_best_guess(privacy), f"best guess about any {one}; 50% is chance"),
                (f"{plan.records:,}", f"{many} protected, each on its own"),
                (
                    f"{sum(terms.schedule.passes for terms in plan.all_terms):,}",
                    f"times a {one.removeprefix('one ')} answers, at most",
                ),
            ]
        ),
    )


def in_words(content: Content) -> Html:
    """The privacy statement for readers who have never heard of differential privacy."""
    privacy = content.privacy
    guess, people = _best_guess(privacy), privacy.unit.startswith(PERSON)
    asked = "which of two records was used, yours or another one in its place"
    if privacy.neighbours != REPLACE:
        asked = "whether your record was used, or left out"
    lacked = "the key of the noise"
    if privacy.secrecy:
        lacked += ", which also says in which steps a record was read"
    several = "If several records are yours, they are protected less than one is."
    return section(
        "What this means for a person in the data",
        paragraph(
            f"Imagine somebody who wants to know {asked}. They hold everything that this run released "
            f"and every other record; all they lack is {lacked}. Tossing a coin, they are right half "
            "of the time. ",
            tag("b", f"Having studied all of it, they are right at most {guess} of the time."),
        ),
        paragraph(
            "This holds for every loss that makes a number of one record, whatever the other records "
            "are, and whatever is done with the result later. ",
            "Your record is all rows of yours together." if people else several,
        ),
        note(
            "It does not mean that nothing about you can be inferred. What is true of people in "
            "general can be learned without you, and may be true of you as well."
        ),
    )


def in_numbers(content: Content) -> Html:
    """The privacy statement for an expert, with both curves."""
    privacy = content.privacy
    delta, half = scientific(privacy.delta), round_up(privacy.mu**2 / 2)
    exceeds = "at most: larger than delta"
    rows = [
        ("mu", round_up(privacy.mu), "Gaussian differential privacy"),
        ("epsilon", round_up(privacy.epsilon), f"of (epsilon, delta)-DP at delta = {delta}"),
        ("delta", delta, "the additive slack of (epsilon, delta)-DP"),
        ("P(privacy loss > epsilon)", scientific(privacy.exceeds), exceeds),
        ("zCDP", half, "zero-concentrated: mu² / 2"),
        ("Rényi", f"α × {half}", "Rényi-DP of any order α > 1"),
    ]
    pictures = tag(
        "div",
        figure(
            epsilon_curve(privacy.mu, privacy.delta, privacy.slack, privacy.secrecy),
            "Epsilon and delta are one curve: the smaller the additive slack delta, the larger "
            "epsilon.",
        ),
        figure(
            trade_off_curve(privacy.mu),
            tag("span", css="key"),
            "The best attack there is: the smaller one of its errors, the larger the other. It names "
            "a record that was not used (type I), or misses one that was (type II). ",
            tag("span", css="key dotted"),
            "Guessing.",
        ),
        css="figures",
    )
    return section(
        "The guarantee in numbers",
        gaussian_sentence(privacy.mu),
        delta_sentence(privacy.epsilon, privacy.delta, privacy.exceeds),
        facts(rows),
        pictures,
        unit_sentence(privacy.unit, privacy.neighbours, privacy.windows),
        paragraph("Released: ", privacy.released, "."),
        paragraph(arithmetic_sentence(privacy.arithmetic, privacy.slack)),
        SECRECY,
        *([secrecy_sentence(privacy.secrecy)] if privacy.secrecy else []),
        "Enforced on every record, whatever the loss returns:",
        listed(privacy.enforced),
    )


def _best_guess(privacy: Statement) -> str:
    """The largest chance of a right guess between two equally likely neighbours.

    Phi(mu / 2), and what secret batches add: half the sum of 1 and the profile at epsilon 0.
    """
    right = float(norm.cdf(privacy.mu / 2))
    return f"{float(round_up(right + privacy.secrecy * (1.0 - right), 3)):.1%}"


_SECTIONS = (
    header,
    in_words,
    in_numbers,
    sections.beliefs,
    sections.audited,
    sections.outcome,
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
