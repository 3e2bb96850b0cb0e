"""Which record answers in which step: disjoint batches, counted, not assumed.

A *block* is one prefix-sum run: one GRAD batch and `period - 1` DIFF batches. A *pass* lays blocks one
after the other over a random order of the records, as many as fit; so within a pass each record is in
at most one batch of one block. The run takes as many passes as its blocks need, each in a fresh
order, and no record takes part more often than there are passes. Orders are public and independent of
the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Int, Key

from blindstep.errors import InvalidArgument, count
from blindstep.trusted.randomness import public_stream

# Noise and accounting of a block are worked out release by release, in memory.
_MOST_RELEASES = 2**22


def require_period(period: int) -> None:
    """Raise on more releases in a block than can be accounted for in a few hundred megabytes."""
    if count("period", period) > _MOST_RELEASES:
        raise InvalidArgument(
            f"a block of {period} releases is past the most that is planned for, {_MOST_RELEASES}: fix "
            "a shorter period or horizon, or larger batches."
        )


@dataclass(frozen=True)
class Schedule:
    """The partition of the records.

    Attributes:
        records: number of records (privacy units) there are.
        first_batch: records of a block's GRAD.
        diff_batch: records of each of a block's DIFFs.
        period: releases in a block; the first is a GRAD.
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
        require_period(self.period)
        if self.block_size > self.records:
            raise InvalidArgument(
                f"one block of {self.block_size} records (first_batch {self.first_batch} + "
                f"{self.period - 1} x diff_batch {self.diff_batch}) does not fit into "
                f"{self.records} records: use a shorter period, smaller batches or more records."
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
        """How often the records are gone through: no record takes part more often than this."""
        return -(-self.blocks // self.blocks_per_pass)

    def order(self, public: Key[Array, ""], pass_index: int) -> Int[np.ndarray, " records"]:
        """The order of records in a pass: a permutation of 0 .. records-1, by sorting random words.

        NumPy keeps the raw stream of a bit generator stable between releases, so that a run can be
        resumed and reproduced; of its permutations it makes no such promise.
        """
        key = jax.random.fold_in(public_stream(public, "order of records"), pass_index)
        low, high = (int(word) for word in jax.random.key_data(key))
        words = np.random.Philox(key=low | high << 32).random_raw(self.records)
        return np.argsort(words, kind="stable")

    def rows(self, order: Int[np.ndarray, " records"], block: int) -> Int[np.ndarray, " size"]:
        """The records of block number `block` of the run, in the order of its pass."""
        if not 0 <= block < self.blocks:
            raise InvalidArgument(f"block {block} is not one of the {self.blocks} of the run.")
        start = block % self.blocks_per_pass * self.block_size
        return order[start : start + self.block_size]

    def split(
        self, rows: Int[np.ndarray, " size"]
    ) -> tuple[Int[np.ndarray, " first"], Int[np.ndarray, "diffs batch"]]:
        """The rows of a block as GRAD batch (first_batch) and DIFF batches (period-1, diff_batch)."""
        rest = rows[self.first_batch :]
        return rows[: self.first_batch], rest.reshape(self.period - 1, self.diff_batch)
