"""First-order DP beside `benchmarks.finetune`: clipped gradients of each record, and Adam.

At each of T steps every one of the n records gives its whole gradient, scaled to norm at most C, and

    released = (1/n) sum_i clip_C(grad_i) + N(0, sigma^2 I),    sigma = 2 C sqrt(T) / (n mu)

Replacing one record moves the mean by at most 2 C / n, so T releases are mu-Gaussian-DP: the same
accounting as for everybody else. Adam sees released gradients only. Its rate falls linearly to 0.

The noise comes from PyTorch's generator, seeded by the operating system. Good for benchmarks, not for
releasing anything: the generator is no cipher, its CPU version takes 32 bits of a seed, and sums are
ordinary floating-point numbers.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

import blindstep as bs

Records = Mapping[str, torch.Tensor]
Loss = Callable[[Any, Records], torch.Tensor]
Tensors = dict[str, torch.Tensor]


class _LossModule(nn.Module):
    """A loss as a module, whose parameters `functional_call` can replace."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, record: Records) -> torch.Tensor:
        """The loss of one record, which comes without the records' axis."""
        batch = {name: values.unsqueeze(0) for name, values in record.items()}
        return self.loss(self.model, batch).squeeze(0)


def noise_std(privacy: bs.Privacy, steps: int, clip: float, records: int) -> float:
    """Standard deviation of the noise on a mean gradient, so that all steps together are `privacy`."""
    return 2 * clip * math.sqrt(steps) / (records * privacy.mu)


def _clipped_sum(gradients: Tensors, clip: float) -> Tensors:
    """The sum over records of gradients scaled to norm at most `clip`, in float32.

    A record whose gradient is not finite counts 0, so that it cannot spoil the sum of all.
    """
    squares = [leaf.flatten(1).float().square().sum(1) for leaf in gradients.values()]
    norms = torch.stack(squares).sum(0).sqrt()
    factors = torch.where(norms.isfinite(), (clip / norms).clamp(max=1), 0)
    return {
        name: torch.tensordot(factors, leaf.float().nan_to_num(0, 0, 0), dims=1)
        for name, leaf in gradients.items()
    }


def clipped_mean(
    model: nn.Module, loss: Loss, data: Records, *, clip: float, microbatch: int
) -> Tensors:
    """The mean over all records of clipped gradients, by parameter of the model, without noise.

    Attention is computed by plain matrix products: they have rules for many records at once, the
    fused kernels' backward passes would be called for one record after another.
    """
    wrapped = _LossModule(model, loss)
    tuned = {
        name: values.detach() for name, values in wrapped.named_parameters() if values.requires_grad
    }

    def value(parameters: Tensors, record: Records) -> torch.Tensor:
        return functional_call(wrapped, parameters, (record,))

    each = vmap(grad(value), in_dims=(None, 0))
    total = {name: torch.zeros_like(values, dtype=torch.float32) for name, values in tuned.items()}
    records = len(next(iter(data.values())))
    with sdpa_kernel(SDPBackend.MATH):
        for start in range(0, records, microbatch):
            part = {name: values[start : start + microbatch] for name, values in data.items()}
            for name, summed in _clipped_sum(each(tuned, part), clip).items():
                total[name] += summed
    prefix = len("model.")
    return {name[prefix:]: summed.div_(records) for name, summed in total.items()}


def train(
    model: nn.Module,
    loss: Loss,
    data: Records,
    *,
    privacy: bs.Privacy,
    steps: int,
    clip: float,
    rate: float,
    microbatch: int,
) -> dict[str, Any]:
    """Train the parameters of `model` that require gradients, in place, and say what it took.

    Weights in bfloat16 keep a copy in float32, which the steps are added to: a step is often shorter
    than bfloat16 resolves.

    Args:
        model: the module; its dropout, if any, is switched off.
        loss: `loss(model, batch)` gives one number a record.
        data: tensors whose leading axis is the record. All records are in every step.
        privacy: of all steps together.
        steps: T.
        clip: C, the norm that a record's whole gradient is scaled to if it is longer.
        rate: of Adam, at the first step.
        microbatch: records whose gradients are held at once; each takes the memory of the parameters.

    Returns:
        `noise_std` and `norms`, the norms of the released gradients; `seconds`; and `peak_memory` in
        bytes, None without a GPU. All are functions of releases and public values.
    """
    model.eval()
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    device = next(iter(parameters.values())).device
    data = {name: values.to(device) for name, values in data.items()}
    sigma = noise_std(privacy, steps, clip, len(next(iter(data.values()))))
    noise = torch.Generator(device).manual_seed(int.from_bytes(os.urandom(8)))
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    # `float` copies nothing where weights are float32: the master copy is then the model itself.
    master = {name: p.detach().float() for name, p in parameters.items()}
    adam = torch.optim.Adam(list(master.values()), lr=rate, fused=True)
    norms = []
    for step in range(steps):
        released = clipped_mean(model, loss, data, clip=clip, microbatch=microbatch)
        for gradient in released.values():
            gradient += sigma * torch.randn(gradient.shape, generator=noise, device=device)
        norms.append(torch.stack([g.square().sum() for g in released.values()]).sum().sqrt())
        for name, values in master.items():
            values.grad = released[name]
        adam.param_groups[0]["lr"] = rate * (1 - step / steps)
        adam.step()
        adam.zero_grad()
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(master[name])
    if on_gpu:
        torch.cuda.synchronize(device)
    return {
        "noise_std": sigma,
        "norms": [float(norm) for norm in norms],
        "seconds": time.perf_counter() - began,
        "peak_memory": torch.cuda.max_memory_allocated(device) if on_gpu else None,
    }
