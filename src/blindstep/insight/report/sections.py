"""The sections of a report, in order."""

from __future__ import annotations

import math

import numpy as np
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
    table,
    tag,
    text,
    tiles,
)
from blindstep.trusted import accounting

PAPER = (
    "Qinzi Zhang, Hoang Tran and Ashok Cutkosky. Private Zeroth-Order Nonsmooth Nonconvex "
    "Optimization. International Conference on Learning Representations (ICLR), 2024."
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
            figures.epsilon_curve(privacy.mu, privacy.delta),
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
        tag("p", "Enforced on every record, whatever the loss returns:"),
        listed(privacy.enforced),
    )


def noise(content: Content) -> Html:
    """Noise against signal over the steps."""
    released, added = content.gradient_norm, content.noise_norm
    heading = "Noise against signal"
    if released.size == 0:
        return section(heading, tag("p", "No step has been saved yet.", css="note"))
    total, ours = float(np.mean(released**2)), float(np.mean(added**2))
    share = min(1.0, ours / total) if total > 0 else 1.0
    said = (
        "Nearly all of it is noise: progress comes from averaging over many steps."
        if share > 0.9
        else "The rest is signal, and the error of random directions and batches."
    )
    return section(
        heading,
        tag(
            "p",
            f"Over the run, {share:.0%} of the squared length of the released gradients is the noise "
            f"that was added for privacy. {said}",
        ),
        figure(
            figures.noise_against_signal(released, added),
            joined(
                tag("span", css="key"),
                "released gradient ",
                Html("&ensp;"),
                tag("span", css="key second"),
                "noise in it, known from the plan. Root mean squares of norms; both are public.",
            ),
            css="wide",
        ),
    )


def stationarity(content: Content) -> Html:
    """What the theorem promises, beside what a certificate measured."""
    plan, made = content.plan, content.certificate
    promised = "nothing" if plan.tolerance is None else rounded(plan.tolerance, 4)
    about = f"in expectation, at radius {plan.radius:g}"
    if plan.tolerance is None:
        about = "no Lipschitz bound was given, so no theorem applies"
    elif plan.vacuous:
        about += "; vacuous: no better than the Lipschitz bound, so every point meets it"
    rows = [("Promised", promised, f"by the theorem, {about}")]
    after: list[Html] = []
    if made is None:
        after.append(
            tag(
                "p",
                "Nothing was measured. ",
                tag("code", "result.certify(loss, data, public=True)"),
                " measures it on data declared public; with privacy= and ledger= on private data, "
                "which are then charged.",
                css="note",
            )
        )
    else:
        sure = "certain" if made.confidence == 1 else f"confidence {made.confidence:.4g}"
        where = "public records" if made.public else "private records"
        rows.append(
            (
                "Measured",
                f"≤ {rounded(made.norm_bound, 4)}",
                f"at radius {made.radius:g}, {sure}; by {made.method} from {made.records:,} {where}",
            )
        )
        after.extend(tag("p", f"Assumes that {each}.", css="note") for each in made.assumes)
        if made.privacy is not None:
            both = accounting.compose([content.privacy.mu, made.privacy.mu])
            after.append(
                tag(
                    "p",
                    f"The certificate read private records and cost epsilon "
                    f"{rounded(made.privacy.epsilon)} of its own (mu = {made.privacy.mu:.4g}). On the "
                    f"same records, run and certificate together are {both:.4g}-Gaussian "
                    f"differentially private: epsilon "
                    f"{rounded(accounting.epsilon(both, content.privacy.delta))} at delta = "
                    f"{scientific(content.privacy.delta)}.",
                )
            )
    return section(
        "How stationary the answer is",
        tag(
            "p",
            "The Goldstein norm is the length of the shortest average of gradients within a radius of "
            "the answer. It is 0 at a minimum, smooth or not, and it is what the theory bounds.",
        ),
        facts(rows),
        *after,
    )


def utility(content: Content) -> Html:
    """How good the answer is: only what the user computed on public data."""
    heading = "How good the answer is"
    if not content.public_utility:
        return section(
            heading,
            tag(
                "p",
                "Not shown. A loss or an accuracy on private records would be a release of its own, "
                "and this report adds none. Numbers computed on public data can be given: ",
                tag("code", "result.report(path, public_utility={...})"),
                ".",
                css="note",
            ),
        )
    rows = [
        (None, (name, value if isinstance(value, str) else rounded(float(value), 4)))
        for name, value in content.public_utility.items()
    ]
    return section(
        heading,
        tag("p", "Computed by the author of this run on data declared public."),
        table(("", "value"), rows),
    )


def plan(content: Content) -> Html:
    """The plan and what binds."""
    return section(
        "The plan, and what binds",
        listed(content.plan.notes) if content.plan.notes else "",
        facts(content.plan.rows()),
    )


def ledger(content: Content) -> Html:
    """Who spent how much on these records."""
    spending, heading = content.spending, "The ledger"
    if spending is None:
        return section(
            heading,
            tag(
                "p",
                "No ledger was given for this report. A person whose record is used in several runs "
                "is protected by their sum, which only a ledger knows.",
                css="note",
            ),
        )
    delta = spending["delta"]
    rows: list[tuple[str | None, tuple[object, ...]]] = []
    for run in spending["runs"]:
        mine = run["run"] == content.run
        name = joined(tag("code", run["run"]), " (this run)" if mine else "")
        rows.append(
            (
                "here" if mine else None,
                (
                    name,
                    tag("span", run["since"][:10], css="date"),
                    f"{run['steps_begun']:,}",
                    f"{run['mu']:.4g}",
                    rounded(run["epsilon"]),
                ),
            )
        )
    for title, prefix, css in (
        ("All runs", "", "total"),
        ("Budget", "budget_", None),
        ("Remaining", "remaining_", None),
    ):
        mu, epsilon = spending[prefix + "mu"], spending[prefix + "epsilon"]
        numbers = ("no limit", "") if mu is None else (f"{mu:.4g}", rounded(epsilon))
        rows.append((css, (title, "", "", *numbers)))
    return section(
        heading,
        tag(
            "p",
            "What every run on these records has spent, written down before each release. Epsilons do "
            "not add up; mu does, in squares.",
        ),
        table(("run", "since", "steps", "mu", f"epsilon at {scientific(delta)}"), rows, words=2),
    )


def reproduce(content: Content) -> Html:
    """Versions, the plan as JSON, and how to run it again."""
    code = (
        "import blindstep as bs\n\n"
        'plan = bs.Plan.from_json(open("plan.json").read())  # the JSON below\n'
        "result = bs.minimize(loss, params, data, plan=plan)"
    )
    return section(
        "How to reproduce it",
        tag(
            "p",
            "With the loss, the records and the plan, the same kind of run is this. Its numbers will "
            "differ, as they must: the noise is secret and drawn anew.",
        ),
        tag("pre", code),
        tag(
            "details",
            tag("summary", "The plan as JSON"),
            tag("pre", content.plan.to_json()),
        ),
        tag("p", ", ".join(f"{name} {number}" for name, number in content.versions.items()) + "."),
    )


def cite(content: Content) -> Html:
    """Whom to cite."""
    year = content.made.year
    return section(
        "How to cite",
        tag("p", PAPER),
        tag(
            "p",
            f"The blindstep authors. blindstep {content.versions['blindstep']}: differentially "
            f"private optimization from function values alone, {year}. Software.",
        ),
    )


def footer(content: Content) -> Html:
    """Where the report comes from."""
    made = content.made.strftime("%d %B %Y, %H:%M UTC").lstrip("0")
    return tag(
        "footer",
        text(
            f"Made by blindstep on {made} from {content.source}. It holds public quantities only: no "
            "loss, no record, no key. This file loads nothing from elsewhere."
        ),
    )


def _best_guess(mu: float) -> float:
    """The largest chance of a right guess between two equally likely neighbours: Phi(mu / 2)."""
    return float(norm.cdf(mu / 2))
