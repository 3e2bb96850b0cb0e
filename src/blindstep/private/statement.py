"""What is promised, in words and numbers: the budget a user asks for, and what a run really gave.

One function makes each sentence, so that statement, report and README cannot differ.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, Context
from typing import ClassVar

from blindstep.errors import InvalidArgument, count, positive, probability
from blindstep.private import accounting
from blindstep.private.accounting import PERSON, RECORD
from blindstep.private.clip import Scalar
from blindstep.private.secret_batches import exceeds_with, group
from blindstep.private.terms import PRESENCES, REPLACE, Terms

DEFAULT_DELTA = 1e-5
# The share of delta that secret batches may take.
_ROOM = 1e-3
RELEASED = "every noisy vector of every step, so all iterates, means of rounds and what follows"
ARITHMETIC = (
    "exact: sums and discrete Gaussian noise are whole multiples of a public lattice width, rounding "
    "is part of the sensitivity, and the last bits of a release tell nothing"
)
SECRECY = (
    "The noise comes from the ChaCha20 cipher under a 256-bit key: its secrecy is computational, "
    "against anyone who does not hold the key and cannot break the cipher."
)
SEEDED = (
    "WARNING: made with a user's seed. NOT private against anyone who knows or can guess the seed."
)


@dataclass(frozen=True)
class Privacy:
    """A privacy budget, in one of three currencies.

        Privacy(epsilon=4, delta=1e-5)  # (epsilon, delta)-DP
        Privacy(mu=1)                   # mu-Gaussian-DP
        Privacy(zcdp=0.5)               # zero-concentrated DP, which many people call rho

    All are the same to a run, which spends `mu`: zCDP is mu^2 / 2. Given epsilon and delta, mu is the
    largest that meets them, rounded down, and delta is spent. Given mu or zcdp, delta is only where
    epsilon is quoted. Choose delta well below 1 / records: the default serves up to 10,000 records,
    and a run with more says so.

    All three are about *neighbours*: two data sets, of which one has any other record in the place of
    one ("replace", the default), or nothing in its place ("zero-out"). The second is what Opacus and
    jax-privacy mean by epsilon. It promises half as much: mu for "zero-out" is 2 mu for "replace".

        Privacy(epsilon=1, delta=1e-5, neighbours="zero-out")

    Attributes:
        epsilon: the epsilon of (epsilon, delta)-DP.
        delta: the delta of (epsilon, delta)-DP.
        mu: the Gaussian-DP parameter.
        neighbours: which change of one record is hidden: "replace" or "zero-out".
    """

    epsilon: float
    delta: float
    mu: float
    neighbours: str
    spends_delta: ClassVar[bool]  # no field: it is not part of what a plan's file says

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float = DEFAULT_DELTA,
        *,
        mu: float | None = None,
        zcdp: float | None = None,
        neighbours: str = REPLACE,
    ) -> None:
        if neighbours not in PRESENCES:
            raise InvalidArgument(
                f"neighbours must be one of {', '.join(PRESENCES)}, got {neighbours!r}."
            )
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
        return accounting.mu_for_epsilon(self.epsilon, self.delta * (1 - 2 * _ROOM))


@dataclass(frozen=True)
class Statement:
    """What a run guarantees. Computed from the terms of its gate, not from what anybody wished.

    Attributes:
        mu: Gaussian-DP parameter of everything released.
        epsilon: the epsilon of (epsilon, delta)-DP at `delta`, exact and rounded up.
        delta: where epsilon is quoted.
        exceeds: the probability that the privacy loss is above epsilon; larger than delta.
        unit: what is protected: one of these may be changed as `neighbours` says.
        released: what an adversary is assumed to see.
        enforced: what holds for every record, whatever the loss does.
        arithmetic: the numbers that sums and noise are made of.
        slack: total variation up to which all this holds; in epsilon already.
        seeded: whether a user's seed made the noise.
        neighbours: "replace" if any other may stand in its place, "zero-out" if it may be left out.
        secrecy: what secret batches cost beside mu (`secret_batches`); in epsilon already.
        windows: whether it is private, too, who took part and how many did.
    """

    mu: float
    epsilon: float
    delta: float
    exceeds: float
    unit: str
    released: str
    enforced: tuple[str, ...]
    arithmetic: str
    slack: float
    seeded: bool
    neighbours: str = REPLACE
    secrecy: float = 0.0
    windows: bool = False

    def to_dict(self) -> dict[str, object]:
        """All fields, ready for JSON."""
        return asdict(self)

    def for_rows(self, rows: int) -> Statement:
        """The statement for `rows` records of one person together; for whole people, this one.

        Guarantee: changing k records is k mu-Gaussian-DP (Dong, Roth & Su 2022, Theorem 2.14), and
        costs the secrecy that `secret_batches.group` says.
        """
        if count("rows", rows) == 1 or self.unit.startswith(PERSON):
            return self
        if not self.unit.startswith(RECORD):
            raise InvalidArgument(f"this is about {self.unit}: ask the run's own statement.")
        secrecy, rest = self.secrecy, self.unit.removeprefix(RECORD)
        mu = rows * self.mu
        if secrecy:
            mu, secrecy = group(self.mu, secrecy, rows)
        unit = f"{rows} records of one person together{rest}"
        return replace(self, unit=unit, **_quoted(mu, self.delta, self.slack, secrecy))

    def sentences(self) -> list[str]:
        """The whole statement, one sentence or two to a line."""
        lines = [
            gaussian_sentence(self.mu),
            delta_sentence(self.epsilon, self.delta, self.exceeds),
            unit_sentence(self.unit, self.neighbours, self.windows),
            f"Released: {self.released}.",
            f"Enforced on every record, whatever the loss returns: {'; '.join(self.enforced)}.",
            arithmetic_sentence(self.arithmetic, self.slack),
            SECRECY,
            *([secrecy_sentence(self.secrecy)] if self.secrecy else []),
        ]
        return [*lines, SEEDED] if self.seeded else lines

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return "".join(f"<p>{html.escape(each)}</p>" for each in self.sentences())


def gaussian_sentence(mu: float) -> str:
    """The promise in Gaussian differential privacy, which is exact; the others follow from it."""
    return (
        f"This run is {round_up(mu)}-Gaussian differentially private: telling two neighbouring data "
        "sets apart from all it released is at least as hard as telling a draw of N(0, 1) from one "
        f"of N({round_up(mu)}, 1). That is {round_up(mu**2 / 2)}-zCDP, and (alpha, alpha mu^2 / 2)-"
        "Renyi-DP for every alpha > 1, up to the total variation (and secrecy) below."
    )


def delta_sentence(epsilon: float, delta: float, exceeds: float) -> str:
    """The promise in epsilon and delta, and what delta is not."""
    return (
        f"It is ({round_up(epsilon)}, {round_up(delta)})-DP: changing one protected unit makes no "
        f"event likelier than e^{round_up(epsilon)} times its probability plus {round_up(delta)}. "
        "Delta is that additive slack; the probability that the privacy loss is above epsilon is up "
        f"to {round_up(exceeds, 2)}."
    )


def unit_sentence(unit: str, neighbours: str = REPLACE, windows: bool = False) -> str:
    """Who is protected, and between which data sets."""
    if windows:
        change = (
            "replaced by any other, or by nobody (which is half of this mu)"
            if neighbours == REPLACE
            else "who comes or stays away (replacing one by another is twice this mu)"
        )
        return f"Protected: {unit}, {change}. How many came is not public; the planned number is."
    if neighbours == REPLACE:
        return f"Protected: {unit}, replaced by any other. The number of records is public."
    return (
        f"Protected: {unit}, left out or added (zero-out neighbours: replacing one by another is "
        "twice this mu). The number of records is public."
    )


def arithmetic_sentence(arithmetic: str, slack: float) -> str:
    """Which numbers all this is about, and how far the noise is from what is promised."""
    return f"Arithmetic: {arithmetic}. Up to a total variation of {round_up(slack, 1)}."


def secrecy_sentence(secrecy: float) -> str:
    """What secret batches rest on."""
    return (
        "Batches are secret: this holds against anyone who does not see when a record is read, up to "
        f"an additive {round_up(secrecy, 2)}, which is in delta already."
    )


def _quoted(mu: float, delta: float, slack: float, secrecy: float) -> dict[str, float]:
    """A cost of (mu, secrecy) with epsilon at delta, and how often the privacy loss exceeds it.

    The profile is at most slack (1 + e^epsilon) + secrecy + delta_mu(epsilon), which is what
    `accounting.epsilon` inverts.
    """
    epsilon = accounting.epsilon(mu, delta, slack, secrecy)
    exceeds = exceeds_with(mu, secrecy, epsilon) if secrecy else accounting.exceeds(mu, epsilon)
    return {"mu": mu, "epsilon": epsilon, "exceeds": exceeds, "secrecy": secrecy}


def statement(terms: Terms, delta: float, *, seeded: bool, unit: str = RECORD) -> Statement:
    """The statement for every release that a gate with these terms makes in a whole run."""
    slack, passes = terms.slack(), terms.schedule.passes
    clips = f"a record's vector counts with norm at most {round_up(terms.first_clip)}"
    if terms.schedule.period > 1:
        clips += f" in a gradient and {round_up(terms.diff_clip)} in a difference"
    often = f"a record answers in at most {passes} release" + ("s" if passes > 1 else "")
    if terms.schedule.secret:
        often += f", one of {terms.schedule.blocks_per_pass} in a pass, by a secret key"
    return Statement(
        **_quoted(terms.mu(), delta, slack, terms.secrecy()),
        delta=delta,
        unit=unit,
        released=RELEASED,
        enforced=(clips, "a record whose loss is not finite counts 0", often),
        arithmetic=ARITHMETIC,
        slack=slack,
        seeded=seeded,
        neighbours=terms.neighbours,
        windows=terms.schedule.windows,
    )


def compose_statements(statements: Sequence[Statement]) -> Statement:
    """What several runs on the same records guarantee together.

    Guarantee: runs that are mu_1-, .., mu_k-Gaussian-DP, each whatever the others released, are
    sqrt(sum mu_i^2)-Gaussian-DP together. What holds up to total variations slack_i holds up to their
    sum, and secrecies add up as well. What is enforced is listed part by part: a number of releases is
    that of its part alone.
    """
    first = statements[0]
    if len(statements) == 1:
        return first
    units = {f"{each.unit} ({each.neighbours})" for each in statements}
    if len(units) > 1:
        raise InvalidArgument(f"runs about different units do not add up: {', '.join(units)}.")
    mu = accounting.compose(each.mu for each in statements)
    slack, secrecy = (
        sum(getattr(each, name) for each in statements) for name in ("slack", "secrecy")
    )
    parts: list[str] = []
    for each in statements:
        several = [line.partition(", ")[2] for line in each.enforced if line.startswith("in part ")]
        parts += several or [", ".join(each.enforced)]
    return replace(
        first,
        **_quoted(mu, first.delta, slack, secrecy),
        released="; ".join(dict.fromkeys(each.released for each in statements)),
        enforced=tuple(f"in part {at}, {line}" for at, line in enumerate(parts, 1)),
        slack=slack,
        seeded=any(each.seeded for each in statements),
    )


def round_up(value: Scalar, digits: int = 6) -> str:
    """So many digits of `value`, never rounded down: what is printed must hold as well."""
    above = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))
    return f"{float(above):.{digits}g}"
