"""The model and its loss are looked at, and tried on made-up records, before anything is charged.

Guarantee: of the data only shapes and types enter, which are public; no value is read.
"""

from __future__ import annotations

import numpy as np
import torch

from blindstep.errors import InvalidArgument, LossNotFinite, RunsInEvaluationMode, warn
from blindstep.losses.silence import interrupt, silence
from blindstep.torch.evaluate import Loss, ModelEvaluator, one_each
from blindstep.torch.records import KINDS, Batch, Records, leaves
from blindstep.torch.weights import Weights

# How much the loss of a record may change with the records beside it, as a share of all losses: shapes
# and places are the same, so that not even roundings differ.
_ROUNDING = 1e-5
_FAR, _OFTEN = 3.0, 8
_SWITCH = (
    "If the loss is right, and made-up values are what it cannot take, try it on a batch that you make "
    "up yourself, and give rehearse=False."
)


def look_over(model: torch.nn.Module) -> None:
    """Say what evaluation mode does to the model; refuse what mixes records even there."""
    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    if any(not each.track_running_stats or each.running_mean is None for each in norms):
        raise InvalidArgument(
            "a BatchNorm layer without running statistics normalises a record by the records beside "
            "it, so that one record would move all others: use running statistics, LayerNorm or "
            "GroupNorm."
        )
    kinds = torch.nn.modules.dropout._DropoutNd
    dropouts = [m for m in model.modules() if isinstance(m, kinds) and m.p > 0]
    said = []
    if norms:
        said.append(
            f"its {len(norms)} BatchNorm layers use the running statistics that they have, which are "
            "not updated: they would be sums over records, without noise"
        )
    if dropouts:
        said.append(f"its {len(dropouts)} dropout layers are off")
    if said:
        warn(
            f"the model runs in evaluation mode: {'; '.join(said)}.",
            RunsInEvaluationMode,
        )


def rehearse(weights: Weights, loss: Loss, records: Records, batch: int) -> None:
    """Try the loss on made-up records: one number for each, whoever is beside it.

    Raises:
        InvalidArgument: it raised for all kinds of made-up records, gave anything but a number for each
            record, or numbers that depend on the other records. One that gave numbers, none of them
            finite, is a warning (`LossNotFinite`).
    """
    device = next(weights.model.parameters()).device
    _refuse_writes(weights, loss, records.made_up(batch, device, KINDS))
    kinds = [_told(weights, loss, records.made_up(batch, device, [kind])) for kind in KINDS]
    errors = [each for each in kinds if isinstance(each, BaseException)]
    if len(errors) == len(kinds):
        raise InvalidArgument(
            f"the loss failed on a made-up batch of {batch} records, all zeros: "
            f"{type(errors[0]).__name__}: {errors[0]}. With ones and random numbers it failed, too, "
            f"and each record would count 0. A loss takes the model and a batch, and gives one number "
            f"for each record (reduction='none'). Nothing was spent. {_SWITCH}"
        )
    found = [each for each in kinds if isinstance(each, torch.Tensor)]
    if not any(bool(torch.isfinite(each).all()) for each in found):
        warn(
            "the loss is not finite for any made-up record (zeros, ones, random numbers), and a record "
            f"whose loss is not finite counts 0. {_SWITCH}",
            LossNotFinite,
        )
    mixed = _told(weights, loss, records.made_up(batch, device, KINDS))
    if not isinstance(mixed, torch.Tensor):
        return  # some kind of made-up record fails, and takes the others with it
    size = float(mixed.nan_to_num(0.0, 0.0, 0.0).abs().max())
    for row in range(len(mixed)):
        alone = kinds[row % len(kinds)]
        if isinstance(alone, torch.Tensor) and not torch.allclose(
            alone[row], mixed[row], rtol=0.0, atol=_ROUNDING * size, equal_nan=True
        ):
            raise InvalidArgument(
                "the loss of a record depends on the records beside it: made-up records get other "
                "numbers in other company. Then one record could speak for all, and nothing would be "
                "private. Look for means over the batch, or layers that normalise over it."
            )


def rehearse_shifts(evaluator: ModelEvaluator) -> None:
    """Try the loss as the run calls it: at shifted weights, several times for one batch.

    Raises:
        InvalidArgument: it fails there, or does not change with the tuned parameters, and would never
            learn anything.
    """
    # So far out that even a metric, which most shifts leave alone, changes for some record.
    shifts, found = evaluator.tried(_FAR, _OFTEN), []
    with silence(worker=False), interrupt.watched(here=True):
        for kind in KINDS:
            try:
                found.append(evaluator.of_made_up([kind], shifts))
            except Exception:  # some kinds of made-up records fail for good reasons
                continue
        interrupt.passed_on()
    if not found:
        raise InvalidArgument(
            "the loss works at the model's own weights, and fails at shifted ones: does it need "
            f"weights of a certain type, or change the batch? Nothing was spent. {_SWITCH}"
        )
    values = torch.stack(found)
    if bool(torch.all(values[..., 1:] == values[..., :1])):
        raise InvalidArgument(
            "the loss does not change with the parameters that are tuned (those that require a "
            "gradient), so there is nothing to learn: does the model compute with copies of them? "
            f"Nothing was spent. {_SWITCH}"
        )


def _refuse_writes(weights: Weights, loss: Loss, batch: Batch) -> None:
    """Raise if the loss writes to the tensors of its batch: the next evaluation would see that."""
    before = [leaf.clone() for leaf in leaves(batch.rows)]
    _told(weights, loss, batch)
    if any(not torch.equal(a, b) for a, b in zip(before, leaves(batch.rows), strict=True)):
        raise InvalidArgument(
            "the loss writes to its batch, which is evaluated several times: compute on copies."
        )


def _told(weights: Weights, loss: Loss, batch: Batch) -> torch.Tensor | BaseException:
    """What the loss gives for a batch, or what it raises. The user's own Ctrl-C goes on."""
    with silence(worker=False), interrupt.watched(here=True), torch.inference_mode():
        found: torch.Tensor | BaseException
        try:
            with np.errstate(all="ignore"), weights.untouched():
                found = one_each(loss, weights.model, batch).double().cpu()
        except BaseException as error:
            found = error
        interrupt.passed_on()
    return found
