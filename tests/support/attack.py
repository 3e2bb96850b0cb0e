"""Records that attack their neighbours, at places 1, 20 and 40 of a batch: what engines' tests share.

The loss is made inside a function, so that it travels by value: workers need not know this file.
"""

import math

import numpy as np

from blindstep.losses.engines import Engine, Host, Task, Work, perform
from blindstep.losses.isolation import seal
from blindstep.losses.pytrees import ParameterSpace

KINDS = ("spins", "grips", "sleeps", "hoards", "exits", "crashes", "interrupts", "meddles")
PLACES = (0, 19, 39)
BATCH, EACH, SIZE = 40, 2, 4
# Far above what a call takes, here a few microseconds, on a machine that does other things, too.
TIMEOUT = 1.5
SPACE = ParameterSpace.of(np.zeros(2))
DATA = np.random.default_rng(1).normal(size=(BATCH, 2))
POINTS = np.random.default_rng(2).normal(size=(BATCH, EACH, 2))


def make_loss():
    """A distance that needs some memory, but for records whose third number says how they attack."""
    held = []

    def loss(x, z):
        import itertools
        import os
        import signal
        import sys
        import time
        import warnings

        kind = KINDS[int(z[2]) - 1] if z[2] else None
        if kind:
            print("42.4242", flush=True)
            os.write(2, b"42.4242")
            warnings.warn("42.4242", stacklevel=1)
        if kind == "spins":
            while True:
                pass
        elif kind == "grips":  # spins without ever letting another thread run
            all(itertools.repeat(True))
        elif kind == "sleeps":
            time.sleep(3600)
        elif kind == "hoards":
            np.held = held  # never let go
            while True:
                held.append(np.empty(2**27))
        elif kind == "exits":
            os._exit(0)
        elif kind == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif kind == "interrupts":
            raise KeyboardInterrupt("42.4242")
        elif kind == "meddles":  # leaves an interpreter in which no neighbour can be evaluated
            np.sqrt = None
            warnings.simplefilter("error")
            sys.setrecursionlimit(sys.getrecursionlimit() // 10)
            return math.nan
        room = np.empty(2**22)
        room[0] = np.sqrt(np.sum((x - z[:2]) ** 2))
        return float(room[0])

    return loss


class ByName:
    """The same loss for pools that find what they call by its name."""

    def __call__(self, x, z):
        return make_loss()(x, z)


def records(kind=None, places=PLACES):
    """The batch, with hostile records at these places."""
    kinds = np.zeros((BATCH, 1))
    if kind is not None:
        kinds[list(places)] = KINDS.index(kind) + 1
    return np.concatenate([DATA, kinds], axis=1)


def tasks(data, timeout=TIMEOUT, loss=None):
    """The batch in pieces, as the driver cuts it."""
    loss = loss or make_loss()
    if timeout is not None:
        loss = seal(loss, np.zeros(2), data[:0])
    work = Work(loss, SPACE, False, timeout)
    cuts = [slice(start, start + SIZE) for start in range(0, BATCH, SIZE)]
    return [Task(work, POINTS[cut], data[cut], SIZE) for cut in cuts]


def check(kinds=KINDS, timeout=TIMEOUT, places=PLACES, loss=None, **how):
    """Each kind in a batch of its own: the others' values are bit for bit those without it."""
    quiet = np.concatenate([perform(task) for task in tasks(records(), None)])
    assert np.all(np.isfinite(quiet))
    others = [place for place in range(BATCH) if place not in places]
    engine = Engine(Host(**how))
    try:
        for kind in kinds:
            values = np.concatenate(engine.perform(tasks(records(kind, places), timeout, loss)))
            assert np.array_equal(values[others], quiet[others]), kind
            assert np.all(np.isnan(values[list(places)])), kind
    finally:
        engine.close()
