"""What a notebook shows of a result, a plan, a tuned choice and a private mean.

Public quantities alone, as in the report. The colours are those of the notebook's theme where it names
them.
"""

from __future__ import annotations

import math
from functools import singledispatch

import jax
import numpy as np

from blindstep.insight.report_markup import (
    Html,
    facts,
    figure,
    listed,
    loss_by_round,
    note,
    paragraph,
    rounded,
    rounded_up,
    scientific,
    table,
    tag,
    trade_off_curve,
)
from blindstep.planning.plan import Plan
from blindstep.planning.statement import SEEDED, Statement, unit_sentence
from blindstep.run.result import Reportable, Result
from blindstep.run.tune import Tuned
from blindstep.run.value import Value

_STYLE = (
    "--ink-soft: var(--jp-ui-font-color2, #5d6068); --rule: var(--jp-border-color2, #e4e1da); "
    "--accent: var(--jp-brand-color1, #2f5bb7); --second: #b4541f; "
    "--surface: var(--jp-layout-color0, #fff); max-width: 46rem"
)
# Parameters that are shown one by one.
_MOST = 24


@singledispatch
def shown(value: object) -> Html:
    """What a notebook shows of a value."""
    if isinstance(value, Reportable):  # of a network: its weights are in the model
        return _framed("A private run", str(value.outcome), *_cost(value.privacy))
    return _framed(type(value).__name__, str(value))


@shown.register
def _(plan: Plan) -> Html:
    notes = listed(plan.notes) if plan.notes else Html()
    return _framed("A plan", facts(plan.rows()), notes)


@shown.register
def _(value: Value) -> Html:
    rows = [
        ("mean", f"{value.mean:.4g}", "the mean loss, with noise"),
        ("std", f"{value.std:.2g}", "one standard deviation of that noise"),
        ("largest", f"{value.largest:.3g}", "losses count with at most this"),
    ]
    return _framed("A private mean", facts(rows), *_cost(value.privacy, pictures=False))


@shown.register
def _(tuned: Tuned) -> Html:
    rows = [
        ("chosen" if number == tuned.chosen else None, (str(number + 1), f"{value:.4g}"))
        for number, value in enumerate(tuned.values)
    ]
    return _framed(
        f"Candidate {tuned.chosen + 1} of {len(tuned.values)}",
        table(("candidate", "mean score"), rows),
        note(f"Smaller is better; the noise on each score is {tuned.std:.2g}."),
        paragraph(tuned.best.outcome),
        *_answer(tuned.best),
        *_cost(tuned.privacy),
    )


@shown.register
def _(result: Result) -> Html:
    return _framed(
        "A private run", paragraph(result.outcome), *_answer(result), *_cost(result.privacy)
    )


def _answer(result: Result) -> list[Html]:
    """The parameters, if they are few, and the curve of the loss, if it was released."""
    leaves = jax.tree.leaves(result.params)
    flat = np.concatenate([np.ravel(np.asarray(leaf)) for leaf in leaves])
    parts = [note(f"{flat.size:,} parameters, in result.params.")]
    if flat.size <= _MOST:
        said = ", ".join(rounded(float(number), 4) for number in flat)
        parts = [paragraph(tag("b", "params "), tag("code", said))]
    loss, std = result.history.loss, result.history.loss_std
    if loss is not None and std is not None and len(loss) > 1 and np.mean(loss[0]) > 0:
        drawn = loss_by_round(np.mean(loss, axis=1))
        share = std / math.sqrt(loss.shape[1]) / float(np.mean(loss[0]))
        said = f"with noise, whose standard deviation is {share:.1%} of the first."
        parts.append(figure(drawn, note(f"The mean loss of each round, as released: {said}")))
    return parts


def _cost(privacy: Statement, *, pictures: bool = True) -> list[Html]:
    """What a run cost."""
    delta = scientific(privacy.delta)
    rows = [
        ("epsilon", rounded_up(privacy.epsilon), f"of (epsilon, delta)-DP at delta = {delta}"),
        ("mu", rounded_up(privacy.mu, 4), "Gaussian differential privacy"),
        ("zCDP", rounded_up(privacy.mu**2 / 2, 4), "mu² / 2"),
    ]
    parts = [facts(rows), note(unit_sentence(privacy.unit, privacy.neighbours, privacy.windows))]
    if privacy.seeded:
        parts.append(paragraph(tag("b", SEEDED)))
    if pictures:
        parts.append(
            figure(trade_off_curve(privacy.mu), note("The two errors of the best attack."))
        )
    return parts


def _framed(title: str, *parts: object) -> Html:
    inside = "".join(part if isinstance(part, Html) else paragraph(part) for part in parts)
    # A picture fills its place on a page; in a notebook that would be the whole width.
    inside = inside.replace("<svg ", '<svg style="max-width: 22rem" ')
    return Html(f'<div style="{_STYLE}">{tag("h4", title)}{inside}</div>')
