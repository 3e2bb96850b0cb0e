"""The privacy a user asks for, and the statement of what a run really gave."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from blindstep.errors import InvalidArgument, positive, probability
from blindstep.trusted import accounting
from blindstep.trusted.oracle import Oracle

DEFAULT_DELTA = 1e-5


@dataclass(frozen=True)
class Privacy:
    """A privacy budget: `Privacy(epsilon=4, delta=1e-5)` or `Privacy(rho=1)`.

    `rho` is the Gaussian-DP parameter (the paper's rho): the run is at least as private as one draw
    of N(0, 1) against N(rho, 1). Given epsilon and delta, rho is the largest that meets them,
    rounded down. `delta` is where epsilon is quoted.
    """

    epsilon: float
    delta: float
    rho: float

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float = DEFAULT_DELTA,
        *,
        rho: float | None = None,
    ) -> None:
        if (epsilon is None) == (rho is None):
            raise InvalidArgument(
                f"give either epsilon or rho, got epsilon={epsilon!r} and rho={rho!r}: "
                "Privacy(epsilon=4, delta=1e-5) or Privacy(rho=1)."
            )
        delta = probability("delta", delta)
        if rho is None:
            rho = accounting.mu_for_epsilon(positive("epsilon", epsilon), delta)
        else:
            rho = positive("rho", rho)
            epsilon = accounting.epsilon(rho, delta)
        object.__setattr__(self, "epsilon", float(epsilon))  # pyright: ignore[reportArgumentType]
        object.__setattr__(self, "delta", delta)
        object.__setattr__(self, "rho", rho)


@dataclass(frozen=True)
class Statement:
    """What a run guarantees, in words and numbers. Computed from the oracle itself, not from a plan.

    Attributes:
        mu: Gaussian-DP parameter of everything released (the paper's rho).
        epsilon: the epsilon of (epsilon, delta)-DP at `delta`, exact and rounded up.
        delta: where epsilon is quoted.
        zcdp: mu^2 / 2.
        unit: what is protected.
        neighbours: between which data sets.
        released: what an adversary is assumed to see.
        enforced: the bounds that hold whatever the loss does.
        seeded: whether a user's seed made the noise.
        arithmetic: the numbers that sums and noise are made of.
        slack: total variation up to which all this holds; in epsilon already.
    """

    mu: float
    epsilon: float
    delta: float
    zcdp: float
    unit: str
    neighbours: str
    released: str
    enforced: tuple[str, ...]
    seeded: bool
    arithmetic: str
    slack: float

    def to_dict(self) -> dict[str, object]:
        """All fields, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"This run is {self.mu:.6g}-Gaussian differentially private: "
            f"({self.epsilon:.6g}, {self.delta:g})-DP, {self.zcdp:.6g}-zCDP, "
            "(alpha, alpha mu^2 / 2)-Renyi-DP for every alpha > 1.",
            f"Protected: {self.unit}. Neighbouring data sets: {self.neighbours}.",
            f"Released: {self.released}.",
            "Enforced on every record, whatever the loss returns: "
            + "; ".join(self.enforced)
            + ".",
            f"Arithmetic: {self.arithmetic}"
            + (f". Up to a total variation of {self.slack:.1g}." if self.slack else "."),
        ]
        if self.seeded:
            lines.append(
                "WARNING: made with a user's seed. NOT private against anyone who knows the seed."
            )
        return "\n".join(lines)


def statement(oracle: Oracle, delta: float, *, seeded: bool) -> Statement:
    """The statement for every release `oracle` makes in a whole run."""
    mu = oracle.mu()
    return Statement(
        mu=mu,
        epsilon=accounting.epsilon(mu, delta, oracle.slack()),
        delta=delta,
        zcdp=accounting.zcdp(mu),
        unit="one record",
        neighbours="one record replaced by any other; the number of records is public",
        released="every noisy gradient of every step, so every iterate, every epoch mean and all "
        "that is computed from them",
        enforced=(
            *oracle.estimator.bounds.describe(),
            "a record whose loss is not finite counts 0",
            f"a record answers in at most {oracle.schedule.passes} step"
            + ("s" if oracle.schedule.passes > 1 else ""),
        ),
        seeded=seeded,
        arithmetic=oracle.arithmetic.sentence,
        slack=oracle.slack(),
    )
