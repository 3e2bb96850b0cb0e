"""What a run on a network returns, and its file of kilobytes: what was released, and from which model.

The file is one line of JSON that ends with its own SHA-256. Released numbers are little-endian float64
in base64, so that they come back bit for bit.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from blindstep.display import Displayed
from blindstep.errors import InvalidArgument
from blindstep.ledger import files
from blindstep.planning.plan import Plan
from blindstep.private.statement import Statement
from blindstep.run.outcome import outcome_of
from blindstep.run.result import History
from blindstep.torch.replay import ModelPath, Replay
from blindstep.torch.weights import Weights


@dataclass(frozen=True)
class TunedModel(Displayed):
    """The answer of a run; the model that was given has been changed to it.

    Attributes:
        privacy: the privacy statement.
        plan: the plan that was run.
        history: public quantities over the run.
        best_round: the model is at the mean of this round's points: the last round's, unless an
            earlier one has a lower loss beyond doubt.
        base: the fingerprint of the model that it started from.
        tuned: the fingerprint of the model as it is now.
        names: the tuned parameters.
        sizes: how many numbers each has.
    """

    privacy: Statement
    plan: Plan
    history: History
    best_round: int
    base: str
    tuned: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    _replay: Replay = field(repr=False)
    _path: ModelPath = field(repr=False)

    @property
    def outcome(self) -> str:
        """How the run went and what would help, in a sentence or two, from releases alone."""
        return outcome_of(self.plan, self.history, None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tuned model as a small file: `blindstep.torch.load` makes it from the base model.

        It holds public numbers alone: key, plan, units and released numbers, and no weight.
        """
        about = (self.base, self.tuned, self.names, self.sizes, self.best_round)
        write(path, TunedFile(*about, self._replay, self._path, str(self.privacy)))

    def __str__(self) -> str:
        return (
            f"{self.plan.schedule.releases} steps of {self.plan.directions} directions; the model is "
            f"at the mean of round {self.best_round + 1} of {self.plan.rounds}.\n{self.outcome}\n"
            f"{self.privacy}"
        )


_KIND, _VERSION = "blindstep tuned model", 2
# The arrays of a path: a row for each step.
_OF_STEPS = ("releases", "keep", "along", "fraction", "kept")


class TunedFile(NamedTuple):
    """All that a tuned model is, beside its base model. Public."""

    base: str  # fingerprint of the model that the run started from
    tuned: str  # and of the tuned one
    names: tuple[str, ...]  # the tuned parameters
    sizes: tuple[int, ...]  # how many numbers each has
    round: int  # the model is at the mean of this round's points
    replay: Replay
    path: ModelPath
    privacy: str  # the statement, for people


def write(path: str | os.PathLike[str], tuned: TunedFile) -> None:
    """Write the file, whole or not at all."""
    replay = tuned.replay
    body = {
        **{"kind": _KIND, "version": _VERSION, "base": tuned.base, "tuned": tuned.tuned},
        **{"names": list(tuned.names), "sizes": list(tuned.sizes), "round": tuned.round},
        "public_key": [int(word) for word in replay.public],
        "plan": replay.plan.to_json(),
        "lengths": _text(replay.lengths),
        **{name: getattr(replay, name) for name in ("unit", "jumps", "widening")},
        **{name: _text(np.asarray(getattr(tuned.path, name))) for name in _OF_STEPS},
        "privacy": tuned.privacy,
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
    if weights.fingerprint() != tuned.base:
        raise InvalidArgument(
            "the file belongs to another base model: names and shapes agree, and numbers or types do "
            "not. Load the weights, in the dtype, that the run started from."
        )
    start = weights.copies()
    try:
        for move in tuned.replay.to_round(tuned.path, tuned.round):
            weights.move(move)
        if weights.fingerprint() != tuned.tuned:
            raise InvalidArgument(
                "the moves in the file do not lead to the model that it was saved from: get another "
                "copy, or use the versions of blindstep and PyTorch that wrote it."
            )
    except BaseException:
        weights.put_back(start)
        raise


def _tuned(body: dict[str, Any]) -> TunedFile:
    plan = Plan.from_json(body["plan"])
    steps = plan.schedule.releases
    releases, *rest = (_numbers(body[name]) for name in _OF_STEPS)
    keep, along, fraction, kept = rest
    released = releases.reshape(steps, plan.directions)
    path = ModelPath(released, keep, along, fraction, kept, np.asarray(steps))
    public, lengths = np.array(body["public_key"], np.uint32), _numbers(body["lengths"])
    scales = float(body["unit"]), bool(body["jumps"]), float(body["widening"])
    replay = Replay(plan, public, lengths, *scales)
    counts = {len(each) for each in rest} == {steps} and len(replay.lengths) == len(body["names"])
    finite = all(np.all(np.isfinite(each)) for each in (releases, *rest, replay.lengths))
    if not counts or not finite or not 0 <= int(body["round"]) < plan.rounds:
        raise ValueError("its numbers do not belong together")
    names, sizes = tuple(body["names"]), tuple(body["sizes"])
    return TunedFile(
        body["base"], body["tuned"], names, sizes, int(body["round"]), replay, path, body["privacy"]
    )


def _text(numbers: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers, "<f8").tobytes()).decode("ascii")


def _numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f8").astype(np.float64)
