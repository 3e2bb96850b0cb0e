"""Who answers when: disjoint batches, counted, not assumed.

A *release* is one noisy vector. A *block* is `period` releases: a GRAD of `first_batch` records, then
DIFFs of `diff_batch` records each. A *pass* lays blocks over a random order of the records, as many as
fit; so within a pass each record is in at most one batch. A run takes as many passes as its blocks
need, each in a fresh order. Orders are public: functions of the public key, never of the data.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Int, Key

from blindstep.errors import InvalidArgument, count
from blindstep.private.noise import public_stream

# Noise and accounting of a block are worked out release by release, in memory.
MOST_RELEASES_IN_A_BLOCK = 2**22
# Releases are numbered by 32-bit integers, which also address the noise.
MOST_RELEASES = 2**31 - 1


class Kind(enum.Enum):
    """What a release is about: a gradient at a point, or how it changed since the point before."""

    GRAD = "grad"
    DIFF = "diff"


@dataclass(frozen=True)
class Schedule:
    """The partition of the records into batches.

    Attributes:
        records: number of records (privacy units) there are.
        first_batch: records of a block's GRAD.
        diff_batch: records of each of a block's DIFFs.
        period: releases in a block.
        blocks: blocks in the whole run.
    """

    records: int
    first_batch: int
    diff_batch: int
    period: int
    blocks: int

    def __post_init__(self) -> None:
        for name in ("records", "first_batch", "diff_batch", "period", "blocks"):
            count(name, getattr(self, name))
        if self.period > MOST_RELEASES_IN_A_BLOCK:
            raise InvalidArgument(
                f"a block of {self.period} releases is past the most that is planned for, "
                f"{MOST_RELEASES_IN_A_BLOCK}: fix a shorter period or horizon, or larger batches."
            )
        if self.block_size > self.records:
            raise InvalidArgument(
                f"one block of {self.block_size} records (first_batch {self.first_batch} + "
                f"{self.period - 1} x diff_batch {self.diff_batch}) does not fit into "
                f"{self.records} records: use a shorter period, smaller batches or more records."
            )
        if self.releases > MOST_RELEASES:
            raise InvalidArgument(
                f"{self.releases} releases cannot be numbered: use larger batches or fewer passes."
            )

    @property
    def block_size(self) -> int:
        """Records that one block consumes."""
        return self.first_batch + self.diff_batch * (self.period - 1)

    @property
    def blocks_per_pass(self) -> int:
        """Blocks that fit into the records without touching one twice."""
        return self.records // self.block_size

    @property
    def passes(self) -> int:
        """How often the records are gone through. No record answers in more releases than this."""
        return -(-self.blocks // self.blocks_per_pass)

    @property
    def releases(self) -> int:
        """Releases in the whole run."""
        return self.blocks * self.period

    @property
    def releases_per_pass(self) -> int:
        """Releases in one whole pass."""
        return self.blocks_per_pass * self.period

    def kind_of(self, release: int) -> Kind:
        """The kind of release number `release`, counted from 0 over the run."""
        return Kind.GRAD if release % self.period == 0 else Kind.DIFF

    def batch_of(self, kind: Kind) -> int:
        """Records that answer in a release of this kind."""
        return self.first_batch if kind is Kind.GRAD else self.diff_batch

    def order(self, public: Key[Array, ""], pass_index: int) -> Int[np.ndarray, " records"]:
        """The order of the records in a pass: a permutation of 0 .. records - 1, by sorting words.

        NumPy promises a stable raw stream, which a resumed run needs, and no stable permutations.
        """
        key = jax.random.fold_in(public_stream(public, "order of records"), pass_index)
        low, high = (int(word) for word in jax.random.key_data(key))
        words = np.random.Philox(key=low | high << 32).random_raw(self.records)
        return np.argsort(words, kind="stable")

    def rows(self, order: Int[np.ndarray, " records"], release: int) -> Int[np.ndarray, " batch"]:
        """The records that answer in release number `release`, given the order of its pass.

        Guarantee: two releases of one pass have no row in common.
        """
        if not 0 <= release < self.releases:
            raise InvalidArgument(f"release {release} is not one of the run's {self.releases}.")
        block, place = divmod(release, self.period)
        start = block % self.blocks_per_pass * self.block_size
        if place == 0:
            return order[start : start + self.first_batch]
        start += self.first_batch + (place - 1) * self.diff_batch
        return order[start : start + self.diff_batch]
