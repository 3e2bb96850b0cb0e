"""Models, data sets and collators of Hugging Face, by their names; it is imported if they are used."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from blindstep.errors import InvalidArgument
from blindstep.torch.records import Collate

# What a model calls the classes of a record.
LABELS = ("labels", "label", "label_ids")
_PLAIN = "blindstep"
# Tokens that are no part of the loss.
_NO_TOKEN = -100


def record_losses(
    scores: torch.Tensor, labels: torch.Tensor, *, shifted: bool = False
) -> torch.Tensor:
    """One number for each record, from scores and labels of the usual shapes.

    Classes: the cross-entropy; several at a time: the mean over them; one score: the squared error; a
    class for each token: the mean over its tokens, those labelled -100 left out. `shifted`: a score is
    about the next token.
    """
    if scores.ndim == labels.ndim + 1 and scores.shape[-1] > 1 and not labels.is_floating_point():
        if scores.ndim == 2:
            return cross_entropy(scores, labels, reduction="none")
        if shifted:
            scores, labels = scores[:, :-1], labels[:, 1:]
        each = cross_entropy(
            scores.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=_NO_TOKEN
        )
        counts = (labels != _NO_TOKEN).sum(1)
        return each.view(labels.shape).sum(1) / counts.clamp(min=1)
    if scores.numel() == labels.numel():
        if scores.ndim == 2 and scores.shape[1] > 1:
            return binary_cross_entropy_with_logits(
                scores, labels.to(scores.dtype), reduction="none"
            ).mean(1)
        one = scores.flatten(), labels.flatten().to(scores.dtype)
        return mse_loss(*one, reduction="none")
    raise ValueError(
        f"no loss is known for scores of shape {tuple(scores.shape)} and labels of shape "
        f"{tuple(labels.shape)} and type {labels.dtype}: give compute_loss_func"
    )


def taken_apart(rows: Any) -> tuple[dict[str, Any], torch.Tensor | None]:
    """What the model is called with, and the labels."""
    if not isinstance(rows, Mapping):
        raise ValueError("records are mappings from names to tensors, as a model's arguments are")
    inputs = dict(rows)
    found = [inputs.pop(name) for name in LABELS if name in inputs]
    return inputs, found[0] if found else None


def scores_of(outputs: Any) -> torch.Tensor:
    """The scores in a model's output: `logits`, or the first of a tuple."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    found = outputs["logits"] if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    return outputs[0] if found is None else found


def _base(model: torch.nn.Module) -> Any:
    """The model without an adapter's wrapper, whose arguments have no names."""
    found: Any = getattr(model, "get_base_model", None)
    return model if found is None else found()


def is_causal(model: torch.nn.Module) -> bool:
    """Whether a score is about the next token."""
    name = type(_base(model)).__name__
    return name.endswith(("ForCausalLM", "LMHeadModel"))


def collator(model: torch.nn.Module, collate: Collate | None, drops: bool) -> Collate:
    """The collator with one shape for what the model takes; columns it does not take are left out."""
    names = inspect.signature(_base(model).forward).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in names.values()) and len(names) == 1
    wanted = {*names, *LABELS}

    def tensors(records: list[Any]) -> Any:
        (record,) = records
        if isinstance(record, Mapping) and drops and not takes_all:
            record = {name: each for name, each in record.items() if name in wanted}
        if collate is not None:
            return dict(collate([record]))
        return {name: torch.as_tensor(each)[None] for name, each in record.items()}

    return tensors


def check_classes(model: torch.nn.Module, data: Any) -> None:
    """Refuse labels that the data set's own description says the model has no scores for.

    The description is public; labels are not, and nothing reads them here.
    """
    config, features = getattr(_base(model), "config", None), getattr(data, "features", None)
    scores: Any = getattr(config, "num_labels", None)
    if scores is None or not isinstance(features, Mapping):
        return
    for name in LABELS:
        classes: Any = getattr(features.get(name), "num_classes", None)
        if classes is not None and classes > scores > 1:
            raise InvalidArgument(
                f"the data set has {classes} classes in {name!r} and the model scores {scores}: make "
                f"it with num_labels={classes}. Nothing was spent."
            )


@contextmanager
def plain_attention(model: torch.nn.Module) -> Iterator[None]:
    """Attention by its formula, for a while, in models that let it be chosen.

    The usual ways look first whether anybody in the batch has padding. What a record gets would then
    depend, in the last bits, on the records beside it; and records could not go through as a batch of
    models, which their gradients want.
    """
    inner = _base(model)
    before = getattr(getattr(inner, "config", None), "_attn_implementation", None)
    if before is None:
        yield
        return
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(_PLAIN, _attention)
    AttentionMaskInterface.register(_PLAIN, _mask)
    inner.set_attn_implementation(_PLAIN)
    try:
        yield
    finally:
        inner.set_attn_implementation(before)


def _mask(*args: Any, **about: Any) -> torch.Tensor | None:
    from transformers.masking_utils import eager_mask

    return eager_mask(*args, **{**about, "allow_is_bidirectional_skip": False})


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None = None,
    **about: Any,
) -> tuple[torch.Tensor, None]:
    """softmax(scaling q k^T + mask) v, with heads that share keys."""
    if about.get("softcap") is not None or about.get("s_aux") is not None:
        raise ValueError("attention with a cap or a sink is not known here")
    shared = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(shared, 1) for each in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if mask is not None:
        scores = scores + mask[..., : key.shape[-2]]
    return (torch.softmax(scores, -1) @ value).transpose(1, 2).contiguous(), None
