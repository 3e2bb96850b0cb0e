"""A tuned model as a file of kilobytes: what was released, and which model it belongs to.

One line of JSON that ends with its own SHA-256. Released numbers are little-endian float64 in base64,
so that they come back bit for bit.
"""

from __future__ import annotations

import base64
import os
from typing import Any, NamedTuple

import numpy as np

from blindstep.errors import InvalidArgument
from blindstep.ledger import durable, sealed_json
from blindstep.optimize.plan import Plan
from blindstep.torch.course import Course
from blindstep.torch.weights import Weights

_KIND, _VERSION = "blindstep tuned model", 1


class Tuned(NamedTuple):
    """All that a tuned model is, beside its base model. Public."""

    base: str  # fingerprint of the model that the run started from
    tuned: str  # and of the tuned one
    names: tuple[str, ...]  # the tuned parameters
    sizes: tuple[int, ...]  # how many numbers each has
    round: int  # the model is at the mean of this round's points
    course: Course
    privacy: str  # the statement, for people


def write(path: str | os.PathLike[str], tuned: Tuned) -> None:
    """Write the file, whole or not at all."""
    course = tuned.course
    body = {
        "kind": _KIND,
        "version": _VERSION,
        "base": tuned.base,
        "tuned": tuned.tuned,
        "names": list(tuned.names),
        "sizes": list(tuned.sizes),
        "round": tuned.round,
        "public_key": [int(word) for word in course.public],
        "plan": course.plan.to_json(),
        "lengths": _text(course.lengths),
        "unit": course.unit,
        "jumps": course.jumps,
        "widening": course.widening,
        "releases": _text(np.stack(course.releases)),
        "factors": _text(np.array(course.factors)),
        "privacy": tuned.privacy,
    }
    durable.put_file(os.fspath(path), sealed_json.seal(body) + b"\n")


def read(path: str | os.PathLike[str]) -> Tuned:
    """The content of such a file; refused if it is damaged, or of another kind."""
    try:
        with open(path, "rb") as file:
            body, _ = sealed_json.unseal(file.read().rstrip(b"\n"))
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


def apply(tuned: Tuned, weights: Weights) -> None:
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
        for move in tuned.course.to_round(tuned.round):
            weights.move(move)
        if weights.fingerprint() != tuned.tuned:
            raise InvalidArgument(
                "the moves in the file do not lead to the model that it was saved from: get another "
                "copy, or use the versions of blindstep and PyTorch that wrote it."
            )
    except BaseException:
        weights.put_back(start)
        raise


def _tuned(body: dict[str, Any]) -> Tuned:
    plan = Plan.from_json(body["plan"])
    releases = _numbers(body["releases"]).reshape(plan.schedule.releases, plan.directions)
    course = Course(
        plan,
        np.array(body["public_key"], np.uint32),
        _numbers(body["lengths"]),
        float(body["unit"]),
        bool(body["jumps"]),
        float(body["widening"]),
        list(releases),
        [float(each) for each in _numbers(body["factors"])],
    )
    counts = len(course.factors) == course.steps and len(course.lengths) == len(body["names"])
    finite = all(np.all(np.isfinite(each)) for each in (releases, course.factors, course.lengths))
    if not counts or not finite or not 0 <= int(body["round"]) < plan.rounds:
        raise ValueError("its numbers do not belong together")
    names, sizes = tuple(body["names"]), tuple(body["sizes"])
    return Tuned(
        body["base"], body["tuned"], names, sizes, int(body["round"]), course, body["privacy"]
    )


def _text(numbers: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers, "<f8").tobytes()).decode("ascii")


def _numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f8").astype(np.float64)
