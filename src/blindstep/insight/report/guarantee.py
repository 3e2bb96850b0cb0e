"""The first sections of a report: what is guaranteed, in words and in numbers."""

from __future__ import annotations

from scipy.stats import norm

from blindstep.insight.report import figures
from blindstep.insight.report.content import Content
from blindstep.insight.report.markup import (
    Html,
    facts,
    figure,
    listed,
    note,
    paragraph,
    rounded_up,
    scientific,
    section,
    tag,
    tiles,
)
from blindstep.planning.plan import Plan
from blindstep.private.statement import (
    PERSON,
    RECORD,
    SECRECY,
    SEEDED,
    delta_sentence,
    gaussian_sentence,
    round_up,
    unit_sentence,
)


def header(content: Content) -> Html:
    """Title, state of the run, and the numbers that matter most."""
    plan, privacy = content.plan, content.privacy
    one, many = (PERSON, "people") if privacy.unit.startswith(PERSON) else (RECORD, "records")
    state, alerts = tag("span", "finished", css="badge good"), []
    if privacy.seeded:
        alerts.append(tag("div", paragraph(SEEDED), css="alert"))
    if not content.finished:
        done = f"unfinished: step {content.steps_done:,} of {content.steps:,}"
        state = tag("span", done, css="badge warn")
        said = paragraph(
            tag("b", "This run is not finished. "),
            "The privacy below is that of the whole run; what was spent so far is in the ledger.",
        )
        alerts.append(tag("div", said, css="alert warn"))
    return tag(
        "header",
        state,
        tag("h1", content.title),
        tag(
            "p",
            f"{plan.dim:,} parameters learned from {plan.records:,} {many} in {content.steps:,} "
            f"noisy steps, from {_seen(plan)} alone.",
            css="lead",
        ),
        *alerts,
        tiles(
            [
                (f"ε = {rounded_up(privacy.epsilon)}", f"at δ = {scientific(privacy.delta)}"),
                (_best_guess(privacy.mu), f"best guess about any {one}; 50% is chance"),
                (f"{plan.records:,}", f"{many} protected, each on its own"),
                (
                    f"{plan.calibrations + plan.passes:,}",
                    f"times a {one.removeprefix('one ')} answers, at most",
                ),
            ]
        ),
    )


def _seen(plan: Plan) -> str:
    return "gradients of the loss" if plan.differentiates else "values of the loss"


def in_words(content: Content) -> Html:
    """The privacy statement for a reader who never heard of differential privacy."""
    guess, people = _best_guess(content.privacy.mu), content.privacy.unit.startswith(PERSON)
    several = "If several records are yours, they are protected less than one is."
    return section(
        "What this means for a person in the data",
        paragraph(
            "Imagine somebody who wants to know which of two records was used, yours or another one "
            "in its place. They hold everything that this run released and every other record; all "
            "they lack is the key of the noise. Tossing a coin, they are right half of the time. ",
            tag("b", f"Having studied all of it, they are right at most {guess} of the time."),
        ),
        paragraph(
            "This holds whatever the loss function is, whatever the other records are, and whatever "
            "is done with the result later. ",
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
    exceeds = "Φ(mu/2 − epsilon/mu), at most: larger than delta"
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
            figures.epsilon_curve(privacy.mu, privacy.delta, privacy.slack),
            "Epsilon and delta are one curve: the smaller the additive slack delta, the larger "
            "epsilon.",
        ),
        figure(
            figures.attack_curve(privacy.mu),
            tag("span", css="key"),
            "The best attack there is: how often it names a record that was used, against how often "
            "it names that record where another one was. ",
            tag("span", css="key dotted"),
            "Guessing.",
        ),
        css="figures",
    )
    return section(
        "The guarantee in numbers",
        paragraph(gaussian_sentence(privacy.mu)),
        paragraph(delta_sentence(privacy.epsilon, privacy.delta, privacy.exceeds)),
        facts(rows),
        pictures,
        paragraph(unit_sentence(privacy.unit)),
        paragraph("Released: ", privacy.released, "."),
        paragraph("Arithmetic: ", privacy.arithmetic, "."),
        paragraph(SECRECY),
        paragraph("Enforced on every record, whatever the loss returns:"),
        listed(privacy.enforced),
    )


def _best_guess(mu: float) -> str:
    """The largest chance of a right guess between two equally likely neighbours: Phi(mu / 2)."""
    return f"{float(round_up(float(norm.cdf(mu / 2)), 3)):.1%}"
