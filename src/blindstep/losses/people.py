"""People with several rows: one person is one record, whatever the number of rows.

Rows are grouped by an identifier, before anything else sees them. What a driver then takes for a record
is a person: at most `rows` of their rows, and how many of these slots count (`portable.PersonLoss`).
Gate, schedule and accounting protect a record, so they protect a person.

*Neighbours* are two tables with the same identifiers in which one person's rows are replaced by any
other rows, in any number from 1 on, anywhere in the table. For the guarantee of one record, every other
person's record and place must stay as they are:

- People are ordered by identifier, not by first appearance, which one person's rows could change. Who
  takes part is public: a newcomer takes the place, and the identifier, of a person who left.
- Which rows of a person are used is a fixed public function of the person's place, and of each row's
  place among their own rows. It is no function of other people's rows, and the same on resuming.
- Everybody has `rows` slots. A number that follows from the data would let one person set the shapes of
  the program, and so the last bits of everybody's values.

Rows are copied into slots, so workers get the rows of their people and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import ArrayLike

from blindstep.errors import InvalidArgument, count
from blindstep.estimate.directions import mix
from blindstep.losses import pytrees
from blindstep.losses.error_checks import voiding
from blindstep.losses.portable import PersonLoss, VectorizedPersonLoss
from blindstep.losses.pytrees import Loss, check_loss, count_records
from blindstep.losses.streams import in_slots, with_streams
from blindstep.private.accounting import PERSON, RECORD

# Averaging 8 rows leaves an eighth of the variance within a person. A constant: a number that was taken
# from the data would be a release.
ROWS = 8


@dataclass(frozen=True, eq=False)
class People:
    """Whose row it is, where people have several rows.

        bs.minimize(loss, params, data, privacy, people=identifiers)
        bs.minimize(loss, params, data, privacy, people=bs.People(identifiers, rows=4))

    Then a person is one record, whose loss is the mean over their rows, and what is guaranteed is for
    all of them together. Who takes part is public; how many rows a person has is not.

    Attributes:
        identifiers: an identifier for each row: whole numbers, or text.
        rows: the most rows of a person that are used; if there are more, a public rule chooses. The
            loss is evaluated equally often for everybody.
    """

    identifiers: ArrayLike
    rows: int = ROWS

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", count("rows", self.rows))

    @property
    def unit(self) -> str:
        """What is protected."""
        return f"{PERSON} (all rows of one identifier are one record, at most {self.rows} of them used)"

    def grouped(self, number: int) -> Grouped:
        """Which of `number` rows each person's slots hold."""
        return grouped(self.identifiers, number, self.rows)


def people_of(given: People | ArrayLike | None) -> People | None:
    """The people, where identifiers may have been given alone."""
    return given if given is None or isinstance(given, People) else People(given)


class Grouped(NamedTuple):
    """Which rows of the table each person's slots hold, people in the order of their identifiers."""

    row: Int[np.ndarray, "people rows"]  # row numbers; from `used` on, the first one again
    used: Int[np.ndarray, " people"]  # how many slots count, at least 1


class _CompiledPersonLoss(eqx.Module):
    """`PersonLoss` for a JAX function; slots are the leading axis of each leaf.

    A module, so that JAX sees through it: people with the same loss share a compiled program.
    """

    loss: Loss

    def __call__(self, params: PyTree, person: tuple[PyTree, Int[Array, ""]]) -> Float[Array, ""]:
        slots, used = person
        # Each row has checks of its own: one that fails in a slot that does not count voids nobody.
        values = jax.vmap(voiding(self.loss), in_axes=(None, 0))(params, slots)
        counts = jnp.arange(len(values)) < used
        return jnp.sum(jnp.where(counts, values, 0)) / used


def by_person(
    loss: Loss, params: PyTree, data: PyTree, people: People | None
) -> tuple[Loss, PyTree, str]:
    """Loss and data of people for the compiled driver, and the unit that is protected.

    Without `people` they are what was given, and the unit is a record.
    """
    loss, data = with_streams(loss, data)
    if people is None:
        return loss, data, RECORD
    with jax.enable_x64(True):
        count_records(data)
        check_loss(
            loss, params, data
        )  # of one row, so that messages are about the user's own shapes
    index, used = people.grouped(count_records(data))
    slots = in_slots(loss, jax.tree.map(lambda leaf: _taken(leaf, index), data), index)
    spread = (leaf for leaf in jax.tree.leaves(slots) if pytrees.over_records(leaf) is not None)
    shard = next((leaf.sharding for leaf in spread), None)
    counts = used if shard is None else jax.device_put(used, shard)
    return _CompiledPersonLoss(loss), (slots, counts), people.unit


def by_person_on_host(
    loss: Loss, data: PyTree, people: People | None, vectorized: bool
) -> tuple[Loss, PyTree, str]:
    """The same for the host driver: a slot is a tree of rows, as the user's function takes them."""
    loss, data = with_streams(loss, data, host=True)
    if people is None:
        return loss, data, RECORD
    index, used = people.grouped(count_records(data))
    taken = in_slots(loss, jax.tree.map(lambda leaf: np.asarray(leaf)[index], data), index)
    slots = tuple(
        jax.tree.map(lambda leaf, slot=slot: np.ascontiguousarray(leaf[:, slot]), taken)
        for slot in range(people.rows)
    )
    mean = VectorizedPersonLoss(loss) if vectorized else PersonLoss(loss)
    return mean, (slots, used), people.unit


def count_people(people: Any, number: int) -> int:
    """How many people a table of `number` rows is about: the public number of records."""
    return int(_places(people, number).max()) + 1


def grouped(people: Any, number: int, rows: int) -> Grouped:
    """The slots of each person in a table of `number` rows.

    Guarantee: given the identifiers, a person's slots are a function of how many rows this person
    has and where they are. With more than `rows`, each set of `rows` of them is as likely as any
    other, for a hash that is as good as random; it differs between people, so that a question which
    stands at the same place for everybody is not the only one that is asked.
    """
    person = _places(people, number)
    totals = np.bincount(person)
    starts = np.cumsum(totals) - totals
    own = np.argsort(person, kind="stable")  # person by person, in the order of the table
    among = np.arange(number) - np.repeat(starts, totals)
    # No two pairs of a person and a place have the same number, which `mix` makes look random.
    pair = person[own].astype(np.uint64) << np.uint64(32) | among.astype(np.uint64)
    chosen = own[np.lexsort((mix(pair + np.uint64(1)), person[own]))]
    used = np.minimum(totals, rows)
    slot = np.where(np.arange(rows) < used[:, None], np.arange(rows), 0)
    return Grouped(chosen[starts[:, None] + slot], used.astype(np.int32))


def _places(people: Any, number: int) -> Int[np.ndarray, " number"]:
    """Each row's person, as the place of the identifier among all of them in order."""
    identifiers = np.asarray(people)
    if identifiers.shape != (number,):
        raise InvalidArgument(
            f"people has shape {identifiers.shape}, but there are {number} rows: give one identifier "
            "for each row."
        )
    kind = identifiers.dtype.kind
    if kind == "T":  # NumPy's own text of any length
        identifiers, kind = identifiers.astype(object), "O"
    if kind == "O":
        if all(isinstance(each, str) for each in identifiers):
            identifiers, kind = identifiers.astype(str), "U"
        elif all(isinstance(each, Integral) and not isinstance(each, bool) for each in identifiers):
            kind = "i"
    elif kind == "f" and np.all(np.isfinite(identifiers)):
        kind = "i" if np.all(identifiers == np.rint(identifiers)) else "f"
    if kind not in "iuSU" or (kind in "SU" and np.any(np.char.str_len(identifiers) == 0)):
        # The message names no row: that one is wrong is a person's secret.
        raise InvalidArgument(
            f"people (dtype {np.asarray(people).dtype}) must be whole numbers, or text that is not "
            "empty, all of one kind and none missing. Rows whose person is unknown belong to nobody: "
            "leave them out; a common name for them would make them one person."
        )
    return np.unique(identifiers, return_inverse=True)[1].reshape(-1)


def _taken(leaf: Any, index: Int[np.ndarray, "people rows"]) -> Any:
    """The rows of a leaf in their slots; spread over the devices that the leaf is spread over."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise InvalidArgument(
            f"data are spread over {jax.process_count()} processes, and rows are grouped by person in "
            "one: make one record of each person before you spread them, and leave `people` out."
        )
    slots, sharding = np.asarray(leaf)[index], pytrees.over_records(leaf)
    if sharding is None:
        return slots
    devices = pytrees.place(leaf).sharding.mesh
    try:
        return jax.device_put(slots, NamedSharding(devices, sharding.spec))
    except ValueError:
        raise InvalidArgument(
            f"{len(index)} people cannot be spread evenly over {devices.size} devices: leave some out, "
            "or give data on one device."
        ) from None
