"""What is promised, in words: the numbers of `private.terms`, as people read them.

One function makes each sentence, so that statement, report and README cannot differ.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, Context

from blindstep.private.accounting import RECORD
from blindstep.private.clip import Scalar
from blindstep.private.terms import REPLACE, Promise, Terms, compose, promise

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


@dataclass(frozen=True, kw_only=True)
class Statement(Promise):
    """What a run guarantees: its numbers, and all that is said about them."""

    released: str = RELEASED  # what an adversary is assumed to see
    enforced: tuple[str, ...]  # what holds for every record, whatever the loss does
    arithmetic: str = ARITHMETIC  # the numbers that sums and noise are made of

    def to_dict(self) -> dict[str, object]:
        """All fields, ready for JSON."""
        return asdict(self)

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


def statement(terms: Terms, delta: float, *, seeded: bool, unit: str = RECORD) -> Statement:
    """The statement for every release that a gate with these terms makes in a whole run."""
    passes = terms.schedule.passes
    clips = f"a record's vector counts with norm at most {round_up(terms.first_clip)}"
    if terms.schedule.period > 1:
        clips += f" in a gradient and {round_up(terms.diff_clip)} in a difference"
    often = f"a record answers in at most {passes} release" + ("s" if passes > 1 else "")
    if terms.schedule.secret:
        often += f", one of {terms.schedule.blocks_per_pass} in a pass, by a secret key"
    numbers = promise(terms, delta, seeded=seeded, unit=unit)
    enforced = clips, "a record whose loss is not finite counts 0", often
    return Statement(**vars(numbers), enforced=enforced)


def compose_statements(statements: Sequence[Statement]) -> Statement:
    """What several runs on the same records guarantee together; what is enforced, part by part."""
    if len(statements) == 1:
        return statements[0]
    parts: list[str] = []
    for each in statements:
        several = [line.partition(", ")[2] for line in each.enforced if line.startswith("in part ")]
        parts += several or [", ".join(each.enforced)]
    return replace(
        compose(statements),
        released="; ".join(dict.fromkeys(each.released for each in statements)),
        enforced=tuple(f"in part {at}, {line}" for at, line in enumerate(parts, 1)),
    )


def round_up(value: Scalar, digits: int = 6) -> str:
    """So many digits of `value`, never rounded down: what is printed must hold as well."""
    above = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))
    return f"{float(above):.{digits}g}"
