"""What a run on a network returns, and its file: what was released, or else the weights themselves.

The file is one line of JSON that ends with its own SHA-256. Along signs it holds the released numbers,
little-endian float64 in base64, and from which model they lead where: kilobytes, bit for bit. A run on
gradients releases as many numbers in each step as there are parameters: its file holds the answer.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from blindstep.display import Displayed
from blindstep.errors import InvalidArgument
from blindstep.estimate.comparison import Comparison
from blindstep.ledger import files
from blindstep.planning.plan import Plan
from blindstep.planning.statement import Statement
from blindstep.run.outcome import Outcome, outcome_of
from blindstep.run.result import History
from blindstep.torch.first_order import Points
from blindstep.torch.replay import ModelPath, Replay, Signed
from blindstep.torch.weights import Weights


@dataclass(frozen=True)
class TunedModel(Displayed):
    """The answer of a run; the model that was given has been changed to it.

    Attributes:
        privacy: the privacy statement.
        plan: the plan that was run.
        history: public quantities over the run.
        best_round: the model is at the mean of this round's points; None: it is as it was at the
            start, because nothing better was found.
        base: the fingerprint of the model that it started from.
        tuned: the fingerprint of the model as it is now.
        names: the tuned parameters.
        sizes: how many numbers each has.
        comparison: by how much rounds were better than the start; None where that was not asked.
    """

    privacy: Statement
    plan: Plan
    history: History
    best_round: int | None
    base: str
    tuned: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    comparison: Comparison | None
    _road: Signed | Points = field(repr=False)
    _weights: tuple[bytes, ...] = field(repr=False)

    @property
    def outcome(self) -> Outcome:
        """How the run went and what would help, in a sentence or two, from releases alone."""
        return outcome_of(self.plan, self.history, self._road.means, self.comparison)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of the tuned parameters by name, for `load_state_dict(..., strict=False)`."""
        weights = self._road.group.weights
        if weights.fingerprint() != self.tuned:
            raise InvalidArgument(
                "the model has been changed since the run: save the result when the run is done, and "
                "`blindstep.torch.load` it."
            )
        pairs = zip(weights.names, weights.tensors, strict=True)
        return {name: each.detach().clone() for name, each in pairs}

    def at_round(self, number: int) -> TunedModel:
        """The same run with the mean of another round for an answer; the model is moved there.

        All means are released, so choosing one by public data costs nothing.
        """
        if not 0 <= number < len(self.history.move_norm):
            raise InvalidArgument(f"there are rounds 0 to {len(self.history.move_norm) - 1}.")
        weights = self._road.group.weights
        self._road.to(number)
        held = weights.as_bytes() if self._weights else ()
        return replace(self, best_round=number, tuned=weights.fingerprint(), _weights=held)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tuned model as a file: `blindstep.torch.load` makes it from the base model.

        It holds public numbers alone. After a run on values these are kilobytes: key, plan, units and
        released numbers, and no weight. After one on gradients it holds the tuned weights.
        """
        about = (self.base, self.tuned, self.names, self.sizes, self.best_round)
        signed = isinstance(self._road, Signed) and (self._road.replay, self._road.path)
        write(path, TunedFile(*about, signed or None, self._weights, str(self.privacy)))

    def __str__(self) -> str:
        plan, where = self.plan, "as it was at the start"
        if self.best_round is not None:
            where = f"at the mean of round {self.best_round + 1} of {plan.rounds}"
        of = "gradients" if plan.differentiates else f"{plan.directions} directions"
        return (
            f"{plan.schedule.releases} steps of {of}; the model is {where}.\n{self.outcome}\n"
            f"{self.privacy}"
        )


_KIND, _VERSION = "blindstep tuned model", 3
# The arrays of a path: a row for each step.
_OF_STEPS = ("releases", "keep", "along", "fraction", "kept")


class TunedFile(NamedTuple):
    """All that a tuned model is, beside its base model. Public."""

    base: str  # fingerprint of the model that the run started from
    tuned: str  # and of the tuned one
    names: tuple[str, ...]  # the tuned parameters
    sizes: tuple[int, ...]  # how many numbers each has
    round: int | None  # the model is at the mean of this round's points; None: at the start
    signed: tuple[Replay, ModelPath] | None  # the way there; None: the weights are here
    weights: tuple[bytes, ...]
    privacy: str  # the statement, for people


def write(path: str | os.PathLike[str], tuned: TunedFile) -> None:
    """Write the file, whole or not at all."""
    body = {
        **{"kind": _KIND, "version": _VERSION, "base": tuned.base, "tuned": tuned.tuned},
        **{"names": list(tuned.names), "sizes": list(tuned.sizes), "round": tuned.round},
        "weights": [base64.b64encode(each).decode("ascii") for each in tuned.weights],
        "privacy": tuned.privacy,
    }
    if tuned.signed is not None:
        replay, road = tuned.signed
        body |= {
            "public_key": [int(word) for word in replay.public],
            "plan": replay.plan.to_json(),
            "lengths": _text(replay.lengths),
            **{name: getattr(replay, name) for name in ("unit", "jumps", "widening")},
            **{name: _text(np.asarray(getattr(road, name))) for name in _OF_STEPS},
        }
    files.put_file(os.fspath(path), files.seal(body) + b"\n")


def read(path: str | os.PathLike[str]) -> TunedFile:
    """The content of such a file; refused if it is damaged, or of another kind."""
    try:
        with open(path, "rb") as file:
            body, _ = files.unseal(file.read().rstrip(b"\n"))
        if body["kind"] != _KIND:
            raise ValueError("it is of another kind")
        if body["version"] != _VERSION:
            raise ValueError(f"it is of version {body['version']}, and this one reads {_VERSION}")
        return _tuned(body)
    except FileNotFoundError:
        raise InvalidArgument(
            f"{os.fspath(path)} is not there: give the path of a file that `TunedModel.save` wrote."
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{os.fspath(path)} is not a tuned model that can be read ({error}): save it again, or get "
            "another copy."
        ) from error


def apply(tuned: TunedFile, weights: Weights) -> None:
    """Move a base model to the tuned one; refused if it is another base model."""
    if tuple(weights.names) != tuned.names or weights.sizes != tuned.sizes:
        theirs, ours = set(tuned.names), set(weights.names)
        raise InvalidArgument(
            f"the file tunes {len(theirs)} parameters ({sum(tuned.sizes):,} numbers), and of the "
            f"model {len(ours)} require a gradient ({weights.dim:,} numbers); {len(theirs & ours)} "
            "have the same names. Make the model as it was before the run, and choose the same "
            "parameters with requires_grad."
        )
    if tuned.signed is not None and weights.fingerprint() != tuned.base:
        raise InvalidArgument(
            "the file belongs to another base model: names and shapes agree, and numbers or types do "
            "not. Load the weights, in the dtype, that the run started from."
        )
    start = weights.copies()
    try:
        if tuned.signed is None:
            weights.from_bytes(tuned.weights)
        elif tuned.round is not None:
            replay, path = tuned.signed
            for move in replay.to_round(path, tuned.round):
                weights.move(move)
        if weights.fingerprint() != tuned.tuned:
            raise InvalidArgument(
                "the file does not lead to the model that it was saved from: get another copy, use the "
                "versions of blindstep and PyTorch that wrote it, and give a model in which all that "
                "is not tuned is as it was."
            )
    except BaseException:
        weights.put_back(start)
        raise


def _tuned(body: dict[str, Any]) -> TunedFile:
    names, sizes, round_ = tuple(body["names"]), tuple(body["sizes"]), body["round"]
    weights = tuple(base64.b64decode(each, validate=True) for each in body["weights"])
    signed = None if weights else _signed(body, len(names))
    if signed is not None and not (round_ is None or 0 <= int(round_) < signed[0].plan.rounds):
        raise ValueError("its numbers do not belong together")
    return TunedFile(
        body["base"], body["tuned"], names, sizes, round_, signed, weights, body["privacy"]
    )


def _signed(body: dict[str, Any], tensors: int) -> tuple[Replay, ModelPath]:
    plan = Plan.from_json(body["plan"])
    steps = plan.schedule.releases
    releases, *rest = (_numbers(body[name]) for name in _OF_STEPS)
    keep, along, fraction, kept = rest
    released = releases.reshape(steps, plan.directions)
    path = ModelPath(released, keep, along, fraction, kept, np.asarray(steps))
    public, lengths = np.array(body["public_key"], np.uint32), _numbers(body["lengths"])
    scales = float(body["unit"]), bool(body["jumps"]), float(body["widening"])
    replay = Replay(plan, public, lengths, *scales)
    counts = {len(each) for each in rest} == {steps} and len(replay.lengths) == tensors
    finite = all(np.all(np.isfinite(each)) for each in (releases, *rest, replay.lengths))
    if not counts or not finite:
        raise ValueError("its numbers do not belong together")
    return replay, path


def _text(numbers: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers, "<f8").tobytes()).decode("ascii")


def _numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f8").astype(np.float64)
