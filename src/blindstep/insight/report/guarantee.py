"""The first sections of a report: what is guaranteed, in words and in numbers."""

from __future__ import annotations

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
    up,
)
from blindstep.private.statement import (
    SECRECY,
    SEEDED,
    delta_sentence,
    gaussian_sentence,
    unit_sentence,
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
        alerts.append(tag("div", tag("p", SEEDED), css="alert"))
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
                (f"ε = {rounded(up(privacy.epsilon))}", f"at δ = {scientific(privacy.delta)}"),
                (
                    percent_up(_best_guess(privacy.mu)),
                    "best guess about any one record; 50% is chance",
                ),
                (f"{plan.records:,}", "records protected, each on its own"),
                (f"{plan.passes:,}", "times a record answers, at most"),
            ]
        ),
    )


def in_words(content: Content) -> Html:
    """The privacy statement for a reader who never heard of differential privacy."""
    guess = percent_up(_best_guess(content.privacy.mu))
    return section(
        "What this means for a person in the data",
        tag(
            "p",
            "Imagine somebody who wants to know which of two records was used, yours or another one "
            "in its place. They hold everything that this run released and every other record; all "
            "they lack is the key of the noise. Tossing a coin, they are right half of the time. ",
            tag("b", f"Having studied all of it, they are right at most {guess} of the time."),
        ),
        tag(
            "p",
            "This holds whatever the loss function is, whatever the other records are, and whatever "
            "is done with the result later. If several records are yours, they are protected less "
            "than one is.",
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
        ("mu", f"{up(privacy.mu, 6):.6g}", "Gaussian differential privacy"),
        (
            "epsilon",
            f"{up(privacy.epsilon, 6):.6g}",
            f"of (epsilon, delta)-DP at delta = {scientific(privacy.delta)}",
        ),
        ("delta", scientific(privacy.delta), "the additive slack of (epsilon, delta)-DP"),
        (
            "P(privacy loss > epsilon)",
            scientific(up(privacy.exceeds, 2)),
            "Φ(mu/2 − epsilon/mu), at most: larger than delta",
        ),
        ("zCDP", f"{up(privacy.mu**2 / 2, 6):.6g}", "zero-concentrated: mu² / 2"),
        ("Rényi", f"α × {up(privacy.mu**2 / 2, 6):.6g}", "Rényi-DP of any order α > 1"),
    ]
    pictures = tag(
        "div",
        figure(
            figures.epsilon_curve(privacy.mu, privacy.delta, privacy.slack),
            "Epsilon and delta are one curve: the smaller the additive slack delta, the larger "
            "epsilon.",
        ),
        figure(
            figures.attack_curve(privacy.mu),
            joined(
                tag("span", css="key"),
                "The best attack there is: how often it names a record that was used, against how "
                "often it names that record where another one was. ",
                tag("span", css="key dotted"),
                "Guessing.",
            ),
        ),
        css="figures",
    )
    return section(
        "The guarantee in numbers",
        tag("p", gaussian_sentence(privacy.mu)),
        tag("p", delta_sentence(privacy.epsilon, privacy.delta, privacy.exceeds)),
        facts(rows),
        pictures,
        tag("p", unit_sentence(privacy.unit)),
        tag("p", "Released: ", privacy.released, "."),
        tag("p", "Arithmetic: ", privacy.arithmetic, "."),
        tag("p", SECRECY),
        tag("p", "Enforced on every record, whatever the loss returns:"),
        listed(privacy.enforced),
    )


def _best_guess(mu: float) -> float:
    """The largest chance of a right guess between two equally likely neighbours: Phi(mu / 2)."""
    return float(norm.cdf(mu / 2))
