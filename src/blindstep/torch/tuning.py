"""`blindstep.torch.minimize`: private tuning of any PyTorch model, from its losses alone."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from blindstep.errors import InvalidArgument, answers_typos, count
from blindstep.ledger import fingerprints
from blindstep.ledger.budget import Privacy
from blindstep.ledger.storage import Storage
from blindstep.losses.people import People, people_of
from blindstep.planning.auto import Auto
from blindstep.planning.checks import check_delta, check_prospects
from blindstep.planning.method import Method, Problem
from blindstep.planning.networks import MOST_DIFFERENTIATED, advised
from blindstep.planning.plan import Plan
from blindstep.planning.planner import require_method
from blindstep.processes.jax_group import JaxGroup
from blindstep.run.callbacks import Callback
from blindstep.run.planned import Call, planned, problem_of, ready
from blindstep.run.progress import RunProgress, ends_in_one_line
from blindstep.torch import rehearsal, tuned_model
from blindstep.torch.evaluate import Loss, ModelEvaluator
from blindstep.torch.gradients import Differentiator, has_gradient
from blindstep.torch.group import ModelGroup
from blindstep.torch.records import Collate, Records
from blindstep.torch.run import AfterRound, run
from blindstep.torch.tuned_model import TunedModel
from blindstep.torch.weights import Weights

# How long a run takes unless the user says, in seconds, and the most evaluations of such a run.
_SECONDS, _MOST = 600.0, 2**21
_FEWEST = 2**12
_BATCH = 64


@answers_typos
@ends_in_one_line
def minimize(
    model: torch.nn.Module,
    loss: Loss,
    data: Any,
    privacy: Privacy | None = None,
    *,
    method: Method | Plan | None = None,
    collate: Collate | None = None,
    batch: int = _BATCH,
    people: People | ArrayLike | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    rehearse: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    budget: Privacy | None = None,
    callbacks: Sequence[Callback] = (),
    after_round: AfterRound | None = None,
) -> TunedModel:
    """Tune or train a model privately: from values of the loss alone, or from gradients of records.

        result = blindstep.torch.minimize(model, loss, data, bs.Privacy(epsilon=2, delta=1e-5))

    From values no gradient is needed, and as much memory as inference takes. A network that is trained
    from scratch wants gradients: `method=bs.Auto(estimate="gradient")`. The call says which of the two
    it would advise, in the plan's notes, and before anything is spent where progress is shown.

    The model is changed in place, to the answer, when the run is done; if it is cut short, or nothing
    better than the start was found, the model is as it was. While it runs, everything is evaluated in
    evaluation mode, and the model's own weights change between steps only.

    With `torch.distributed` initialized, all processes make the same call with the same model and data:
    they share the evaluations, and the first one keeps the gate, its checkpoint and its ledger.

    Args:
        model: any module. What requires a gradient is tuned, so adapters such as LoRA work.
        loss: a function of the model and a batch that gives one number for each record. It need not
            have a gradient. A value that is not finite makes that record count 0 in that step. *A
            record's number must not depend on the records beside it.*
        data: a mapping, tuple or tensor whose leading axis is the record; or a data set with a length,
            such as a `torch.utils.data.Dataset` or one of Hugging Face.
        privacy: the budget, such as Privacy(epsilon=2, delta=1e-5).
        collate: makes tensors of a list with one record of a data set. All records must come out in the
            same shapes: pad to a length that you choose.
        people: an identifier for each row if people have several rows, or `People(identifiers, rows=)`.
            Then a person is one record, whose loss is the mean over their rows.
        batch: how many records go through the model at a time. Memory and speed depend on it.
        method: `Auto(...)`, whose evaluations are forward passes of a record: as many as take ten
            minutes if left out, and at most 2^21. Or a ready plan (`blindstep.torch.plan`), which has
            the budget already.
        rehearse: try the loss on made-up records first, of the shapes of `data` and with none of its
            values. A loss that fails for all of them, or mixes records, is refused before anything is
            spent.
        seed: for reproduction only: a seeded run is not private against anyone who knows or can guess
            the seed.
        progress: show a progress bar. None: on a terminal.
        checkpoint: a directory for the run. The same call, with the model as it was at first, goes on
            after a crash where it was, with the same releases bit for bit. *The directory holds the
            noise key and losses of records*: keep it as secret as the data.
        ledger: a file in which several runs on the same people add up what they spend; left out, the
            run directory has its own.
        budget: what all runs in the ledger together may spend; a run that would spend more is refused
            before anything is evaluated.
        callbacks: functions that are told what each step released (`blindstep.callbacks.Released`) and
            nothing else. One that gives True ends the run with its round.
        after_round: called with the number of finished rounds, 0 at the start, while the model is at
            the mean of the last one's points: what would be the answer. If it gives True the run ends
            there, and the rest of its budget is not spent. *What it computes is not protected*: from
            public data alone.

    Returns:
        The privacy statement, the plan, the history of public quantities, `outcome`, and `save`.
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"model is a {type(model).__name__}: give a torch.nn.Module.")
    weights, records = Weights(model), Records(data, collate, people_of(people))
    size = min(count("batch", batch), records.number)
    storage = Storage(checkpoint, ledger, budget)
    call = Call(privacy, method, None, storage, seed, progress, rehearse)
    rehearsal.look_over(model)
    base = weights.fingerprint()
    with in_evaluation(model):
        if rehearse:
            rehearsal.rehearse(weights, loss, records, size)

        def effort() -> int:
            return _most(_rate(ModelEvaluator(weights, loss, records, size)))

        def first() -> tuple[Plan, int]:
            made = _plan_for(call, weights, records, effort)
            check_delta(budget, made.records, "budget")
            # Batches of one size, and no larger than the records of a step fill.
            number = -(-made.first_batch // size)
            return made, -(-made.first_batch // number)

        with ModelGroup(weights) as group:
            made, even = group.led("plan", first)
            group.require_alike(lambda: base + fingerprints.of_data(records.arrays))
            group.evaluator = ModelEvaluator(weights, loss, records, even)
            if made.differentiates:
                group.differentiator = Differentiator(weights, loss, records, even)
            fits = made.dim <= MOST_DIFFERENTIATED and not made.differentiates
            made = advised(made, fits and has_gradient(weights, loss, records))
            if rehearse:
                rehearsal.rehearse_shifts(group.evaluator)
            if not group.leads:
                return group.follow()
            seconds = None
            if progress or (progress is None and sys.stderr.isatty()):
                seconds = made.evaluations / _rate(group.evaluator)
            bar = RunProgress(made, show=progress, callbacks=callbacks, seconds=seconds)
            return group.finish(_lead(made, group, records, storage, base, seed, bar, after_round))


@answers_typos
def plan(
    model: torch.nn.Module, records: int, privacy: Privacy, method: Method | None = None
) -> Plan:
    """The plan of a run on this number of records, for `minimize`: see what it does beforehand.

        plan = blindstep.torch.plan(model, 5_000, bs.Privacy(epsilon=2, delta=1e-5))

    Args:
        model: the model; what requires a gradient is tuned.
        records: number of records, or of people.
        privacy: the budget.
        method: `Auto(...)`; without evaluations, 2^20 forward passes of a record are the most.
    """
    sizes, chosen = Weights(model).sizes, Auto() if method is None else method
    require_method(chosen)
    return advised(chosen.plan(Problem(sum(sizes), records, privacy, sizes, network=True)), None)


def load(model: torch.nn.Module, path: str | os.PathLike[str]) -> str:
    """Make the tuned model from the base model and the file that `TunedModel.save` wrote, bit for bit.

    The model is changed in place. It must be the base model of the run, in the same dtype and with the
    same parameters requiring a gradient; another one is refused. Gives the privacy statement.
    """
    tuned = tuned_model.read(path)
    tuned_model.apply(tuned, Weights(model))
    return tuned.privacy


def _lead(
    plan: Plan,
    group: ModelGroup,
    records: Records,
    storage: Storage,
    base: str,
    seed: int | None,
    bar: RunProgress,
    after_round: AfterRound | None,
) -> TunedModel:
    """The whole run, in the process that owns the gate; `base` is the fingerprint of the start."""
    # What must be the same on resuming; of data that are not to be stored, nothing is read.
    start = np.frombuffer(bytes.fromhex(base), np.uint8)
    known = fingerprints.of_questions(None, start, records.arrays if storage else ())
    if plan.differentiates and storage:
        known = replace(known, loss=group.differentiator.fingerprint())
    done = run(plan, group, storage, known, seed, records.unit, bar, after_round)
    weights = group.weights
    return TunedModel(
        privacy=plan.statement(seeded=done.seeded, unit=records.unit),
        plan=plan,
        history=done.history,
        best_round=done.best_round,
        base=base,
        tuned=weights.fingerprint(),
        names=tuple(weights.names),
        sizes=weights.sizes,
        comparison=done.comparison,
        _road=done.road,
        _weights=weights.as_bytes() if plan.differentiates else (),
    )


def _plan_for(call: Call, weights: Weights, records: Records, effort: Callable[[], int]) -> Plan:
    """The plan that was given, if it fits, or the one that the method makes."""
    if isinstance(call.method, Plan):
        made = ready(call.method, call)
    else:
        number = records.number
        problem = problem_of(call, weights.dim, number, weights.sizes, effort, network=True)
        made = planned(call, problem, JaxGroup())
        check_delta(made.privacy, made.records)
        check_prospects(made, 0.0)
    leaves = () if made.calibration is None else made.calibration.leaves
    fits = made.network and leaves in (weights.sizes, (weights.dim,))
    if not fits or made.records != records.number:
        raise InvalidArgument(
            f"the plan is for {made.records} records and {made.dim} parameters"
            f"{'' if made.network else ' of a flat vector'}, but there are {records.number} records "
            f"and {weights.dim} parameters in {len(weights.sizes)} tensors: make it with "
            "blindstep.torch.plan."
        )
    return made


def _rate(evaluator: ModelEvaluator) -> float:
    """Evaluations a second, of made-up records."""
    evaluator.try_out()
    began = time.perf_counter()
    return evaluator.try_out() / (time.perf_counter() - began)


def _most(rate: float) -> int:
    """Evaluations in about ten minutes; a power of two."""
    return 2 ** (int(min(max(_SECONDS * rate, _FEWEST), _MOST)).bit_length() - 1)


@contextlib.contextmanager
def in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    """The model in evaluation mode, for a while."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            if type(module).train is torch.nn.Module.train:
                module.training = training
            else:  # it does more than to remember the mode
                module.train(training)
