"""Parameters of `mechanisms.BLT`, made by `scripts/blt_parameters.py`.

Only accuracy rests on them, never privacy: `columns` computes what they make of C. Each group has one
number of buffers and serves horizons up to its last row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Values = tuple[float, ...]


class Row(NamedTuple):
    """Time constants 1 / (1 - theta) and scales omega for one horizon."""

    steps: int
    times: Values
    scales: Values


# For each number of buffers, a line for each horizon: time constants first, then scales.
_TEXT = """
1 1.10693 3.5259 0.000494082 0.489653
2 1.10693 3.5259 0.000494082 0.489653
4 1.10693 3.5259 0.00049411 0.520052
8 1.10641 6.19813 0.0575627 0.460231
16 1.58869 11.6841 0.14867 0.363613
32 2.18087 21.8772 0.225509 0.279919
64 2.90855 39.7336 0.278583 0.216554

64 1.48937 4.61017 45.4405 0.115598 0.193381 0.195276
128 1.87011 7.99619 89.7806 0.180581 0.180253 0.140721
256 2.28155 13.1563 173.113 0.22974 0.16543 0.102886
512 2.76376 20.9871 326.592 0.267301 0.149172 0.0761944
1024 3.34472 32.9103 607.042 0.295204 0.132662 0.0569027
2048 4.05163 51.0454 1117.29 0.314592 0.116777 0.0427256

2048 2.36055 13.8746 101.855 1418.48 0.237336 0.157829 0.0651992 0.0359271
4096 2.71634 19.6761 172.973 2707.97 0.26454 0.147753 0.0539973 0.0263148
8192 3.13053 27.6878 289.84 5119.34 0.286688 0.136571 0.0447232 0.019389
16384 3.61124 38.7347 480.741 9608.18 0.304071 0.125097 0.0370261 0.0143483
32768 4.1734 53.9674 791.686 17946.6 0.31699 0.113762 0.0306237 0.010648

32768 2.68814 19.1524 161.814 1434.79 22360.3 0.262736 0.148549 0.0536418 0.0187904 0.0091143
65536 3.00696 25.1439 245.39 2488.94 42653.6 0.281008 0.1398 0.0464383 0.0150589 0.0066695
131072 3.37098 32.9458 370.027 4287.54 80971.2 0.296315 0.130614 0.0400974 0.0120773 0.00489438
262144 3.77899 43.0187 555.274 7346.29 153157 0.308668 0.121512 0.0345676 0.00968673 0.00359937
524288 4.24624 56.1182 830.288 12531.2 288897 0.31827 0.112465 0.0297379 0.00776761 0.00265128
1048576 4.77557 73.1003 1237.56 21288.6 543714 0.325312 0.103717 0.0255365 0.00622739 0.00195554
"""


def _row(line: str) -> Row:
    steps, *values = line.split()
    numbers, half = tuple(map(float, values)), len(values) // 2
    return Row(int(steps), numbers[:half], numbers[half:])


TABLE = [[_row(line) for line in group.split("\n")] for group in _TEXT.strip().split("\n\n")]


def parameters(steps: int) -> tuple[Values, Values]:
    """theta and omega for a run of `steps` releases.

    The table has rows for powers of 2: time constants 1 / (1 - theta) and omega. Both are linear in
    `steps` between two rows; past the last row it is used unchanged.
    """
    rows = next((group for group in TABLE if steps <= group[-1].steps), TABLE[-1])
    low = [row for row in rows if row.steps <= steps][-1]
    high = next((row for row in rows if row.steps > steps), low)
    fraction = (steps - low.steps) / max(high.steps - low.steps, 1)
    times = _between(low.times, high.times, fraction)
    return tuple(1 - 1 / time for time in times), _between(low.scales, high.scales, fraction)


def _between(low: Sequence[float], high: Sequence[float], fraction: float) -> Values:
    return tuple(a + fraction * (b - a) for a, b in zip(low, high, strict=True))
