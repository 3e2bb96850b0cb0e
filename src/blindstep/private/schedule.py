"""Who answers when: disjoint batches, counted, not assumed.

A *release* is one noisy vector. A *block* is `period` releases: a GRAD of `first_batch` records, then
DIFFs of `diff_batch` records each. A *pass* lays blocks over a random order of the records, as many as
fit; so within a pass each record is in at most one batch. A run takes as many passes as its blocks
need, each in a fresh order. Orders are public: functions of the public key, never of the data.

In *windows* a step is a stretch of time, and whoever comes in it answers. Sums are divided by the
planned number all the same. Whoever takes the answers lets nobody answer twice in a pass.

In *secret batches* the secret key puts each record, independently and uniformly, into one of the t
steps of a pass. Sums are divided by the public number records / t, and who answered, or how many did,
is never released. `secret_batches` says what that costs.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Int, Key

from blindstep.errors import InvalidArgument, count
from blindstep.private.noise import NoiseKey, public_stream, secret_steps
from blindstep.private.secret_batches import LEAST_SECRECY

MOST_RELEASES_IN_A_BLOCK = 2**22  # noise and accounting of a block are worked out in memory
UNLIKELY = 2.0**-200  # the probability that a secret batch has more records than places
MOST_IN_A_WINDOW = 2**24  # vectors: so many are added without rounding
MOST_RELEASES = 2**31 - 1  # they are numbered by 32-bit integers, which also address the noise


class Kind(enum.Enum):
    """What a release is about: a gradient at a point, or how it changed since the point before."""

    GRAD = "grad"
    DIFF = "diff"


@dataclass(frozen=True)
class Schedule:
    """The partition of the records into batches."""

    records: int  # number of records (privacy units) there are
    first_batch: int  # records of a block's GRAD; of secret ones about so many, of windows expected
    diff_batch: int  # records of each of a block's DIFFs
    period: int  # releases in a block
    blocks: int  # blocks in the whole run
    secrecy: float = 0.0  # of secret batches, what hiding a presence in a pass costs beside its mu
    windows: bool = False  # whether whoever comes answers

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
                f"{self.releases} releases cannot be numbered: use larger batches."
            )
        if self.secrecy and (self.period > 1 or not LEAST_SECRECY <= self.secrecy < 1.0):
            raise InvalidArgument(
                f"secret batches of a block of {self.period} releases with a secrecy of "
                f"{self.secrecy!r}: where releases share their noise, a record must be known to be in "
                f"one of them. Take the independent mechanism, and at least {LEAST_SECRECY:g}."
            )
        if self.windows and (self.period > 1 or self.secrecy):
            raise InvalidArgument("windows have public batches of their own: fix period 1.")

    @property
    def secret(self) -> bool:
        """Whether nobody outside knows which records answer when."""
        return self.secrecy > 0.0

    @property
    def block_size(self) -> int:
        """Records that one block consumes."""
        return self.first_batch + self.diff_batch * (self.period - 1)

    @property
    def blocks_per_pass(self) -> int:
        """Blocks that fit into the records without touching one twice.

        Of secret batches a power of two, at most as many: so each record's step is exactly uniform.
        """
        fit = self.records // self.block_size
        return 1 << (fit.bit_length() - 1) if self.secret else fit

    @property
    def passes(self) -> int:
        """How often the records are gone through. No record answers in more releases than this."""
        return -(-self.blocks // self.blocks_per_pass)

    @property
    def blocks_made(self) -> int:
        """The most blocks of a pass that the run makes: all, unless it ends within its first pass."""
        return min(self.blocks, self.blocks_per_pass)

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
        """Places for the records that answer in a release of this kind.

        Secret batches leave some empty. There are so many that more records than places come up with
        probability 2^-200 at most (Bernstein's inequality for a binomial number).
        """
        if not self.secret:
            return self.first_batch if kind is Kind.GRAD else self.diff_batch
        mean, log = self.records / self.blocks_per_pass, -math.log(UNLIKELY)
        places = mean + log / 3 + math.sqrt(log * log / 9 + 2 * log * mean)
        return min(self.records, math.ceil(places))

    def most_of(self, kind: Kind) -> int:
        """Vectors that a release of this kind may add up: of a window more than are expected."""
        return MOST_IN_A_WINDOW if self.windows else self.batch_of(kind)

    def divisor_of(self, kind: Kind) -> float:
        """What the sum of a release of this kind is divided by: public, whoever answers."""
        if self.secret:  # exact: a division by a power of two
            return self.records / self.blocks_per_pass
        return float(self.batch_of(kind))

    def order(
        self, public: Key[Array, ""], secret: NoiseKey, pass_index: int
    ) -> Int[np.ndarray, " records"]:
        """Who answers when in a pass, for `rows`: the order of the records, or each one's secret step.

        Guarantee: public batches depend on the public key alone. Secret ones depend on the noise key
        alone, which shows nothing of them; in each pass they are drawn anew.
        """
        if self.secret:
            return secret_steps(secret.words(), pass_index, self.records, self.blocks_per_pass)
        key = jax.random.fold_in(public_stream(public, "order of records"), pass_index)
        low, high = (int(word) for word in jax.random.key_data(key))
        # NumPy promises a stable raw stream, which a resumed run needs, and no stable permutations.
        words = np.random.Philox(key=low | high << 32).random_raw(self.records)
        return np.argsort(words, kind="stable")

    def rows(self, order: Int[np.ndarray, " records"], release: int) -> Int[np.ndarray, " batch"]:
        """The records that answer in release number `release`, given `order` of its pass.

        Guarantee: two releases of one pass have no row in common.
        """
        if not 0 <= release < self.releases:
            raise InvalidArgument(f"release {release} is not one of the run's {self.releases}.")
        if self.windows:
            raise InvalidArgument("nobody is assigned to a window: blindstep.serve runs this plan.")
        block, place = divmod(release, self.period)
        turn = block % self.blocks_per_pass
        if self.secret:
            return np.flatnonzero(order == turn)
        start = turn * self.block_size
        if place == 0:
            return order[start : start + self.first_batch]
        start += self.first_batch + (place - 1) * self.diff_batch
        return order[start : start + self.diff_batch]
