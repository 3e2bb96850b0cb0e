"""A small run that the tests of resuming share, and children that run it until they are killed."""

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import blindstep as bs
from blindstep.drivers import compiled
from blindstep.drivers.session import SavingInterval, Session
from losses import capped_distance

DATA = np.random.default_rng(0).normal(size=(96, 2))
HORIZON = 4
CHOICES = {"preset": "tight", "privacy": bs.Privacy(rho=1.0), "radius": 0.5, "lipschitz": 1.0}
CHOICES |= {"oracle": "variance-reduced", "horizon": HORIZON, "period": HORIZON, "passes": 2}
CHOICES |= {"first_batch": 6, "diff_batch": 2, "directions": 2, "sampler": "haar"}


def small_run(directory=None, *, loss=capped_distance, data=DATA, start=None, seed=7, **choices):
    """The run: 16 epochs of 4 steps in two passes."""
    start = np.zeros(2) if start is None else start
    return bs.minimize(loss, start, data, checkpoint=directory, seed=seed, **CHOICES | choices)


def same(one, two):
    """Whether two results are the same, bit for bit (the clock apart)."""
    pairs = [(one.means, two.means), (one.params, two.params), (one.final, two.final)]
    pairs += [(one.last, two.last), (one.history.gradient_norm, two.history.gradient_norm)]
    pairs += [(one.history.move_norm, two.history.move_norm)]
    return one.privacy == two.privacy and all(np.array_equal(a, b) for a, b in pairs)


class Killed(Exception):
    """What stands for kill -9 inside one process."""


def evaluations(monkeypatch):
    """A list that grows with every epoch that is evaluated."""
    epochs, real = [], compiled.run_epoch

    def run_epoch(*arguments):
        epochs.append(1)
        return real(*arguments)

    monkeypatch.setattr(compiled, "run_epoch", run_epoch)
    return epochs


def cut_after(monkeypatch, directory, epochs, *, share, before_saving=False, **changes):
    """Run, and stop as by a crash after so many epochs of this session."""
    left, real = [epochs], Session.after
    with monkeypatch.context() as patch:
        patch.setattr(SavingInterval, "due", lambda interval: share == 1)

        def after(session, state, position, collect):
            left[0] -= 1
            if left[0] == 0 and before_saving:
                raise Killed
            real(session, state, position, collect)
            if left[0] == 0:
                raise Killed

        patch.setattr(Session, "after", after)
        with pytest.raises(Killed):
            small_run(directory, **changes)


NURSERY = f"""
import hashlib, os, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import jax
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
from blindstep.drivers.session import Session
from resume_helpers import HORIZON, small_run

def work(directory):
    after = Session.after
    def tell(self, state, position, collect):
        os.write(1, b"epoch %d\\n" % (position // HORIZON))  # the release
        after(self, state, position, collect)
    Session.after = tell
    result = small_run(directory)
    parts = (result.means, result.params, result.final, result.history.gradient_norm)
    digest = hashlib.sha256(b"".join(bytes(memoryview(jax.device_get(p))) for p in parts))
    os.write(1, b"done %s\\n" % digest.hexdigest().encode())

for line in sys.stdin:
    child = os.fork()  # JAX is imported, but has started no thread yet
    if child == 0:
        code = 1
        try:
            work(line.strip())
            code = 0
        finally:
            os._exit(code)
    os.write(1, b"pid %d\\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""


class Nursery:
    """One process that has imported everything, and forks a child for each run."""

    def __init__(self, cache: Path) -> None:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", NURSERY, str(cache)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def run(self, directory, kill_after=None, patience=0.0):
        """Run in a child; kill -9 it `patience` seconds after its line number `kill_after`.

        Returns the lines it printed: "epoch N" after each, "done HASH" at the end.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{directory}\n".encode())
        process.stdin.flush()
        lines, pid = [], None
        while not lines or lines[-1] != "dead":
            if kill_after is not None and pid is not None and len(lines) > kill_after:
                self._wait(patience)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                kill_after = None
            lines.append(process.stdout.readline().decode().strip())
            assert lines[-1], "the nursery died"
            if lines[-1].startswith("pid"):
                pid = int(lines[-1].split()[1])
        return [line for line in lines if line.startswith(("epoch", "done"))]

    def _wait(self, seconds):
        """Sleep, but no longer than until there is news: a child that ended cannot be killed."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self._process.stdout], [], [], min(left, 0.002))[0]:
                time.sleep(min(left, 0.002))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def moments(kills, seed):
    """Random moments: while it starts, and around any epoch's evaluation, entry and checkpoint."""
    chance = random.Random(seed)
    for _ in range(kills):
        early = chance.random() < 0.25
        yield (0, chance.random()) if early else (chance.randrange(1, 7), 0.005 * chance.random())
