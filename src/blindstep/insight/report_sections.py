"""The sections of a report after those about privacy."""

from __future__ import annotations

import math

import numpy as np

from blindstep.errors import InvalidArgument
from blindstep.insight.report_content import Content, noise_norms
from blindstep.insight.report_markup import (
    Html,
    facts,
    figure,
    listed,
    loss_by_round,
    noise_against_signal,
    note,
    paragraph,
    rounded,
    rounded_up,
    scientific,
    section,
    table,
    tag,
)
from blindstep.planning.bound import obstacle
from blindstep.planning.statement import Statement, compose_statements, round_up

# How sure somebody may have been before, for the table of what they could gain.
_BELIEFS = (0.01, 0.1, 0.5)
# Parameters that are shown one by one.
_ALL_OF_THEM = 64
PAPER = (
    "Qinzi Zhang, Hoang Tran and Ashok Cutkosky. Private Zeroth-Order Nonsmooth Nonconvex "
    "Optimization. International Conference on Learning Representations (ICLR), 2024."
)


def beliefs(content: Content) -> Html:
    """What an attacker could gain, for three beliefs that they may have had before."""
    privacy = content.privacy
    rows: list[tuple[None, tuple[object, ...]]] = []
    for before in _BELIEFS:
        odds = math.exp(privacy.epsilon) * before / (1 - before)
        after = math.ceil(1000 * odds / (1 + odds)) / 1000  # never too small
        rows.append((None, (f"{before:.0%}", f"{after:.1%}")))
    return section(
        "What an attacker could gain",
        "Somebody suspects that your record was used, and not another one or none, and then sees all "
        "of this release. How sure could they be afterwards?",
        table(("sure before", "sure afterwards, at most"), rows),
        note(
            f"By Bayes' rule with epsilon {rounded_up(privacy.epsilon)}: the odds grow at most by "
            f"e^epsilon = {round_up(math.exp(privacy.epsilon), 3)}, except with a probability of up to "
            f"{scientific(privacy.exceeds)} over the noise."
        ),
    )


def audited(content: Content) -> Html:
    """What an audit measured, where one was made."""
    found, heading = content.audit, "What was audited"
    if found is None:
        return section(
            heading,
            note(
                "No audit of this plan was given. ",
                tag("code", "bs.audit(result.plan)"),
                " attacks it through its own code; give its answer as audit=. The library's tests "
                "audit every method and every mechanism.",
            ),
        )
    rows = [
        ("Claimed", f"mu = {round_up(found.claimed_mu, 4)}", "by the plan"),
        (
            "Measured",
            f"mu ≥ {rounded(found.lower_bound_mu, 4)}",
            f"with confidence {found.confidence:g}, from {found.pairs:,} trials ({found.attack})",
        ),
        (
            "Expected",
            f"mu ≥ {rounded(found.expected_lower_bound_mu, 4)}",
            "of a correct program, with as many trials",
        ),
        ("Verdict", found.verdict, found.reason),
    ]
    if found.membership is not None:
        got = f"mu ≥ {rounded(found.membership.lower_bound_mu, 4)}"
        rows.insert(3, ("From parameters alone", got, str(found.membership)))
    return section(
        heading,
        "An attack with worst-case records through the real code: what it measured is a lower bound on "
        "the true mu, so it must not be above the claim.",
        facts(rows),
    )


def outcome(content: Content) -> Html:
    """How the run went, where its result is at hand."""
    if content.outcome is None:
        return Html()
    return section(
        "How the run went", content.outcome, note("From what it released: this costs nothing more.")
    )


def answer(content: Content) -> Html:
    """The learned parameters: all of them where they are few, else the size of each part."""
    heading, parts = "The learned parameters", content.params
    if parts is None:
        return section(
            heading,
            note(
                "Not shown: this page was made without the answer. ",
                tag("code", "bs.report(result, path)"),
                " shows them; `blindstep train` saves them as params.npz.",
            ),
        )
    number = sum(part.size for part in parts.values())
    said = (
        f"{number:,} number{'' if number == 1 else 's'}: the answer to use. They were computed from "
        "releases alone, so what is promised above holds for them."
    )
    if number <= _ALL_OF_THEM:
        rows = [
            (None, (f"{name}[{', '.join(map(str, at))}]" if at else name, f"{float(value):.6g}"))
            for name, part in parts.items()
            for at, value in np.ndenumerate(part)
        ]
        return section(heading, said, table(("", "value"), rows))
    sizes: list[tuple[None, tuple[object, ...]]] = []
    for name, part in parts.items():
        values = np.asarray(part, np.float64)
        extent = float(values.min()), float(values.max()), float(np.sqrt(np.mean(values**2)))
        sizes.append((None, (name, "×".join(map(str, part.shape)) or "1", *map(rounded, extent))))
    columns = ("", "shape", "smallest", "largest", "root mean square")
    return section(heading, said, table(columns, sizes))


def noise(content: Content) -> Html:
    """Noise against signal over the steps."""
    released, heading = content.gradient_norm, "Noise against signal"
    if released.size == 0:
        return section(heading, note("No step has been saved yet."))
    added = noise_norms(content.plan, released.size)
    total, ours = float(np.mean(released**2)), float(np.mean(added**2))
    share = min(1.0, ours / total) if total > 0 else 1.0
    said = (
        "Nearly all of it is noise: progress comes from averaging over many steps."
        if share > 0.9
        else "The rest is signal, and the error of random directions and batches."
    )
    return section(
        heading,
        f"Over the run, {share:.0%} of the squared length of the released gradients is the noise "
        f"that was added for privacy. {said}",
        figure(
            noise_against_signal(released, added),
            tag("span", css="key"),
            "released gradient ",
            Html("&ensp;"),
            tag("span", css="key second"),
            "noise in it, known from the plan. Root mean squares of norms; both are public.",
            css="wide",
        ),
        *_loss(content),
    )


def _loss(content: Content) -> list[Html]:
    """The curve of the mean loss, where the run released one that began above 0."""
    if content.loss.size < 2 or not content.loss[0] > 0:
        return []
    return [
        paragraph(
            "The mean loss around the points of each round, as it was released: with noise, in the "
            "same budget, each record counting with at most twice the usual loss."
        ),
        figure(
            loss_by_round(content.loss),
            tag("span", css="key"),
            "mean loss, as a share of the first round's",
            css="wide",
        ),
    ]


def stationarity(content: Content) -> Html:
    """What the theorem promises, beside what a certificate measured."""
    plan, made = content.plan, content.certificate
    promised = "nothing" if plan.tolerance is None else rounded_up(plan.tolerance, 4)
    about = obstacle(plan) or (
        f"by the theorem, for F = {plan.certifies}: in expectation, at radius {plan.radius:g}, for the "
        "mean of a round chosen at random"
    )
    if plan.vacuous:
        about += "; vacuous: no better than the Lipschitz bound, so every point meets it"
    rows = [("Promised", promised, about)]
    after: list[Html] = []
    if made is None:
        after.append(
            note(
                "Nothing was measured. ",
                tag("code", "bs.certificate(loss, result.params, data, radius, public=True)"),
                " measures it on data declared public; with privacy= and ledger= on private data, "
                "which are then charged. Give it to the report as certificate=.",
            )
        )
    else:
        sure = "certain" if made.confidence == 1 else f"confidence {made.confidence:.4g}"
        where = "public records" if made.public else "private records"
        how = f"at radius {made.radius:g}, {sure}; by {made.method} from {made.records:,} {where}"
        rows.append(("Measured", f"≤ {rounded_up(made.norm_bound, 4)}", how))
        after.extend(note(f"Assumes that {each}.") for each in made.assumes)
        if made.privacy is not None:
            after.append(
                paragraph(
                    "The certificate read private records and cost epsilon "
                    f"{rounded_up(made.privacy.epsilon)} of its own (mu = "
                    f"{round_up(made.privacy.mu, 4)}). {_together(content.privacy, made.privacy)}"
                )
            )
    return section(
        "How stationary the answer is",
        "The Goldstein norm is the length of the shortest average of gradients within a radius of "
        "the answer. It is 0 at a minimum, smooth or not, and it is what the theory bounds.",
        facts(rows),
        *after,
    )


def utility(content: Content) -> Html:
    """How good the answer is: only what the user computed on public data."""
    heading = "How good the answer is"
    if not content.public_utility:
        return section(
            heading,
            note(
                "Not shown. A loss or an accuracy on private records would be a release of its own, "
                "and this report adds none. Numbers computed on public data can be given: ",
                tag("code", "bs.report(result, path, public_utility={...})"),
                ".",
            ),
        )
    rows = [
        (None, (name, value if isinstance(value, str) else rounded(float(value), 4)))
        for name, value in content.public_utility.items()
    ]
    return section(
        heading,
        "Computed by the author of this run on data declared public.",
        table(("", "value"), rows),
    )


def plan(content: Content) -> Html:
    """The plan and what binds."""
    return section(
        "The plan, and what binds",
        listed(content.plan.notes) if content.plan.notes else "",
        facts(content.plan.rows()),
    )


def _together(run: Statement, certificate: Statement) -> str:
    """What a run and a certificate cost together, if they are about the same unit."""
    try:
        both = compose_statements([run, certificate])
    except InvalidArgument as error:
        return f"It is not added to the run's: {error}"
    return (
        f"On the same records, run and certificate together are {round_up(both.mu, 4)}-Gaussian "
        f"differentially private: epsilon {rounded_up(both.epsilon)} at delta = "
        f"{scientific(both.delta)}."
    )


def ledger(content: Content) -> Html:
    """What each run has spent on these records."""
    spending, heading = content.spending, "The ledger"
    if spending is None:
        return section(
            heading,
            note(
                "No ledger was given for this report. A person whose record is used in several runs "
                "is protected by their sum, which only a ledger knows."
            ),
        )
    rows: list[tuple[str | None, tuple[object, ...]]] = []
    for run in spending["runs"]:
        mine = run["run"] == content.run
        name = tag("span", tag("code", run["run"]), " (this run)" if mine else "")
        since, steps = tag("span", run["since"], css="date"), f"{run['steps_begun']:,}"
        spent = round_up(run["mu"], 4), rounded_up(run["epsilon"]), scientific(run["delta"])
        rows.append(("here" if mine else None, (name, since, steps, *spent)))
    for title, prefix, css in (
        ("All runs", "", "total"),
        ("Budget", "budget_", None),
        ("Remaining", "remaining_", None),
    ):
        mu, epsilon = spending[prefix + "mu"], spending[prefix + "epsilon"]
        numbers = ("no limit", "", "")
        if mu is not None:
            numbers = (round_up(mu, 4), rounded_up(epsilon), scientific(spending["delta"]))
        rows.append((css, (title, "", "", *numbers)))
    return section(
        heading,
        f"What every run on the people of {spending['cohort']} has spent, written down before "
        "each release. Epsilons do not add up; mu does, in squares. Each epsilon is at the delta "
        "beside it: a run's own, or the largest of them for the totals.",
        table(("run", "since", "steps", "mu", "epsilon", "delta"), rows, words=2),
    )


def reproduce(content: Content) -> Html:
    """Versions, the plan as JSON, and how to run it again."""
    code = (
        "import blindstep as bs\n\n"
        'plan = bs.Plan.from_json(open("plan.json").read())  # the JSON below\n'
        "result = bs.minimize(loss, params, data, method=plan)"
    )
    anew = "Its numbers will differ, as they must: the noise is secret and drawn anew."
    if content.privacy.seeded:
        anew = "With the seed as well, its numbers come out the same."
    return section(
        "How to reproduce it",
        f"With the loss, the records and the plan, the same kind of run is this. {anew}",
        tag("pre", code),
        tag("details", tag("summary", "The plan as JSON"), tag("pre", content.plan.to_json())),
        ", ".join(f"{name} {number}" for name, number in content.versions.items()) + ".",
    )


def cite(content: Content) -> Html:
    """Whom to cite."""
    return section(
        "How to cite",
        PAPER,
        f"The blindstep authors. blindstep {content.versions['blindstep']}: differentially "
        f"private optimization from function values alone, {content.made.year}. Software.",
    )


def footer(content: Content) -> Html:
    """Where the report comes from."""
    made = content.made.strftime("%d %B %Y").lstrip("0")
    return tag(
        "footer",
        f"Made by blindstep on {made} from {content.source}. It holds public quantities only: no "
        "record, no key, and of losses the noisy means that were released. This file loads nothing "
        "from elsewhere.",
    )
