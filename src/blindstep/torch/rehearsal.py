"""The model and its loss are looked at, and tried on made-up records, before anything is charged.

Guarantee: of the data only shapes and types enter, which are public; no value is read.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch

from blindstep.drivers.silence import interrupt, silence
from blindstep.errors import InvalidArgument, LossNotFinite, RunsInEvaluationMode
from blindstep.torch.evaluate import Loss, one_each
from blindstep.torch.records import KINDS, Batch, Records

# How much the loss of a record may change with the records beside it: roundings, in shares of it.
_ROUNDING = 1e-2
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
        warnings.warn(
            f"the model runs in evaluation mode: {'; '.join(said)}.",
            RunsInEvaluationMode,
            stacklevel=4,
        )


def rehearse(model: torch.nn.Module, loss: Loss, records: Records, batch: int) -> None:
    """Try the loss on made-up records: one number for each, whoever is beside it.

    Raises:
        InvalidArgument: it raised for all kinds of made-up records, gave anything but a number for each
            record, or numbers that depend on the other records. One that gave numbers, none of them
            finite, is a warning (`LossNotFinite`).
    """
    device = next(model.parameters()).device
    kinds = [_told(model, loss, records.made_up(batch, device, [kind])) for kind in KINDS]
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
        warnings.warn(
            "the loss is not finite for any made-up record (zeros, ones, random numbers), and a record "
            f"whose loss is not finite counts 0. {_SWITCH}",
            LossNotFinite,
            stacklevel=4,
        )
    mixed = _told(model, loss, records.made_up(batch, device, KINDS))
    if not isinstance(mixed, torch.Tensor):
        return  # some kind of made-up record fails, and takes the others with it
    for row in range(len(mixed)):
        alone = kinds[row % len(kinds)]
        if isinstance(alone, torch.Tensor) and not torch.allclose(
            alone[row], mixed[row], _ROUNDING, _ROUNDING, equal_nan=True
        ):
            raise InvalidArgument(
                "the loss of a record depends on the records beside it: made-up records get other "
                "numbers in other company. Then one record could speak for all, and nothing would be "
                "private. Look for means over the batch, or layers that normalise over it."
            )


def _told(model: torch.nn.Module, loss: Loss, batch: Batch) -> torch.Tensor | BaseException:
    """What the loss gives for a batch, or what it raises. The user's own Ctrl-C goes on."""
    with silence(worker=False), interrupt.watched(here=True), torch.inference_mode():
        found: torch.Tensor | BaseException
        try:
            with np.errstate(all="ignore"):
                found = one_each(loss(model, batch.rows), batch).double().cpu()
        except BaseException as error:
            found = error
        interrupt.passed_on()
    return found
