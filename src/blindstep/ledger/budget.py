"""The budget that a user asks for.

A wish, not a promise: what a run really costs is worked out from the terms of its gate
(`private.terms`), and `Terms.within` refuses terms that cost more than was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from blindstep.errors import InvalidArgument, answers_typos, positive, probability
from blindstep.private import accounting
from blindstep.private.terms import REPLACE, check_neighbours

DEFAULT_DELTA = 1e-5
_ROOM = 1e-3  # the share of delta that secret batches may take


@dataclass(frozen=True)
class Privacy:
    """A privacy budget, in one of three currencies.

        Privacy(epsilon=4, delta=1e-5)  # (epsilon, delta)-DP
        Privacy(mu=1)                   # mu-Gaussian-DP
        Privacy(zcdp=0.5)               # zero-concentrated DP, which many people call rho

    A run spends `mu`: zCDP is mu^2 / 2. Of epsilon and delta, mu is the largest that meets them,
    rounded down. Given mu or zcdp, delta is only where epsilon is quoted. Choose delta well below 1 /
    records: the default serves up to 10,000 records, and a run with more says so.

    A budget is about *neighbours*: two data sets, of which one has any other record in the place of one
    ("replace", the default), or nothing in its place ("zero-out", which is what Opacus and jax-privacy
    mean by epsilon). The second promises half as much: mu for "zero-out" is 2 mu for "replace".

        Privacy(epsilon=1, delta=1e-5, neighbours="zero-out")
    """

    epsilon: float
    delta: float
    mu: float
    neighbours: str
    spends_delta: ClassVar[bool]  # no field: it is not part of what a plan's file says

    @answers_typos
    def __init__(
        self,
        epsilon: float | None = None,
        delta: float = DEFAULT_DELTA,
        *,
        mu: float | None = None,
        zcdp: float | None = None,
        neighbours: str = REPLACE,
    ) -> None:
        check_neighbours(neighbours)
        if sum(each is not None for each in (epsilon, mu, zcdp)) != 1:
            raise InvalidArgument(
                f"give one of epsilon, mu and zcdp, got epsilon={epsilon!r}, mu={mu!r} and "
                f"zcdp={zcdp!r}: Privacy(epsilon=4, delta=1e-5), Privacy(mu=1) or Privacy(zcdp=0.5)."
            )
        delta, spent = probability("delta", delta), epsilon is not None
        if epsilon is not None:
            epsilon = positive("epsilon", epsilon)
            mu = accounting.mu_for_epsilon(epsilon, delta)
        else:
            mu = positive("mu", mu) if zcdp is None else accounting.mu_for_zcdp(zcdp)
            epsilon = accounting.epsilon(mu, delta)
        made = {"epsilon": epsilon, "delta": delta, "mu": mu, "neighbours": neighbours}
        self.__dict__.update(made, spends_delta=spent)  # frozen

    @property
    def room(self) -> float:
        """The secrecy that all secret batches of a run may cost: a thousandth of delta."""
        return _ROOM * self.delta

    @property
    def mu_beside_room(self) -> float:
        """The mu of the budget that is left beside secret batches which cost `room`.

        Guarantee: with a secrecy of at most `room` it meets epsilon and delta, if these were given.
        """
        if not self.spends_delta:
            return self.mu
        return accounting.mu_for_epsilon(self.epsilon, self.delta, _ROOM)
