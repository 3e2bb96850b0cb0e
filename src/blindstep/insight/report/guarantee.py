"""The first sections of a report: what is guaranteed, in words and in numbers."""

from __future__ import annotations

import math

from scipy.stats import norm

from blindstep.insight.report import figures
from blindstep.insight.report.content import Content
from blindstep.insight.report.markup import (
    Html,
    facts,
    figure,
    joined,
    listed,
    percent_up,
    rounded,
    scientific,
    section,
    tag,
    tiles,
)


def header(content: Content) -> Html:
    """Title, state of the run, and the numbers that matter most."""
    plan, privacy = content.plan, content.privacy
    state = (
        tag("span", "finished", css="badge good")
        if content.finished
        else tag(
            "span",
            f"unfinished: step {content.steps_done:,} of {content.steps:,}",
            css="badge warn",
        )
    )
    alerts = []
    if privacy.seeded:
        alerts.append(
            tag(
                "div",
                tag(
                    "p",
                    tag("b", "Made with a seed. "),
                    "Who knows or guesses the seed can subtract the noise: against them this run is "
                    "not private. Seeds are for tests and reproduction.",
                ),
                css="alert",
            )
        )
    if not content.finished:
        alerts.append(
            tag(
                "div",
                tag(
                    "p",
                    tag("b", "This run is not finished. "),
                    "The privacy below is that of the whole run; what was spent so far is in the "
                    "ledger.",
                ),
                css="alert warn",
            )
        )
    return tag(
        "header",
        state,
        tag("h1", content.title),
        tag(
            "p",
            f"{plan.dim:,} parameters learned from {plan.records:,} records in {content.steps:,} "
            "noisy steps, from values of the loss alone.",
            css="lead",
        ),
        *alerts,
        tiles(
            [
                (f"ε = {rounded(privacy.epsilon)}", f"at δ = {scientific(privacy.delta)}, exact"),
                (
                    percent_up(_best_guess(privacy.mu)),
                    "best guess about any one record; 50% is chance",
                ),
                (f"{plan.records:,}", "records protected, each on its own"),
                (str(plan.passes), "times a record is asked, at most"),
            ]
        ),
    )


def in_words(content: Content) -> Html:
    """The privacy statement for a reader who never heard of differential privacy."""
    privacy = content.privacy
    guess = percent_up(_best_guess(privacy.mu))
    odds = math.exp(privacy.epsilon)
    times = f"{rounded(odds)} times" if odds < 1e6 else "any number of times"
    unlucky = f"1 in {rounded(1 / privacy.delta)}"
    return section(
        "What this means for a person in the data",
        tag(
            "p",
            "Imagine somebody who wants to know whether your record was used, or another one in its "
            "place. They hold everything that this run released, every other record, and all the "
            "computers in the world. Tossing a coin, they are right half of the time. ",
            tag("b", f"Having studied all of it, they are right at most {guess} of the time."),
        ),
        tag(
            "p",
            "Put differently: had your record been any other, no outcome would have become more than "
            f"{times} likelier, or less likely, apart from outcomes whose probability is below "
            f"{unlucky} in all. This holds whatever the loss function is, whatever the other "
            "records are, and whatever is done with the result later.",
        ),
        tag(
            "p",
            "It does not mean that nothing about you can be inferred. What is true of people in "
            "general can be learned without you, and may be true of you as well.",
            css="note",
        ),
    )


def in_numbers(content: Content) -> Html:
    """The privacy statement for an expert, with both curves."""
    privacy = content.privacy
    rows = [
        ("mu", f"{privacy.mu:.6g}", "Gaussian differential privacy, exact"),
        (
            "epsilon",
            f"{privacy.epsilon:.6g}",
            f"of (epsilon, delta)-DP at delta = {scientific(privacy.delta)}, exact",
        ),
        ("zCDP", f"{privacy.zcdp:.6g}", "zero-concentrated: mu² / 2"),
        ("Rényi", f"α × {privacy.mu**2 / 2:.6g}", "Rényi-DP of any order α > 1"),
    ]
    pictures = tag(
        "div",
        figure(
            figures.epsilon_curve(privacy.mu, privacy.delta, privacy.slack),
            "Epsilon and delta are one curve: the smaller the chance of an exception, the weaker "
            "the bound.",
        ),
        figure(
            figures.attack_curve(privacy.mu),
            joined(
                tag("span", css="key"),
                "The best attack there is: how often it spots a record that is there, against how "
                "often it sees one that is not. ",
                tag("span", css="key dotted"),
                "Guessing.",
            ),
        ),
        css="figures",
    )
    return section(
        "The guarantee in numbers",
        facts(rows),
        pictures,
        tag(
            "p", "Protected: ", privacy.unit, ". Neighbouring data sets: ", privacy.neighbours, "."
        ),
        tag("p", "Released: ", privacy.released, "."),
        tag("p", "Arithmetic: ", privacy.arithmetic, "."),
        tag("p", "Enforced on every record, whatever the loss returns:"),
        listed(privacy.enforced),
    )


def _best_guess(mu: float) -> float:
    """The largest chance of a right guess between two equally likely neighbours: Phi(mu / 2)."""
    return float(norm.cdf(mu / 2))
