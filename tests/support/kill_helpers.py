"""Children that run the small run by any driver until they are killed."""

import contextlib
import hashlib
import math
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from blindstep.ledger.ledger import read_ledger

# A child says what it has released, and which answers it knows to be on the disk:
#   opened POSITION ANSWERS    where it goes on
#   told POSITION ANSWERS      a tell has returned
#   released POSITION DIGEST   the release before POSITION has been seen, here by printing it
#   done DIGEST                of the result
NURSERY = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import jax
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
from blindstep.run.ask_tell import Optimizer
from blindstep.ledger.session import Session
import one_noise
one_noise.everywhere()
from kill_helpers import digest_of, digest_of_result
from driver_runs import HORIZON, run

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def then(cls, name, report):
    real = getattr(cls, name)
    def wrapped(self, *arguments, **named):
        out = real(self, *arguments, **named)
        report(self)
        return out
    setattr(cls, name, wrapped)

def snapshot(opt):
    answered = 0 if opt.done else len(opt.ask()) - len(opt.unanswered())
    return opt.round * HORIZON + opt.step, answered

then(Optimizer, "__init__", lambda opt: say("opened", *snapshot(opt)))
then(Optimizer, "tell", lambda opt: say("told", *snapshot(opt)))
after = Session.after
def seen(self, state, position, *others):
    say("released", position, digest_of(state.path.position, state.path.point))
    return after(self, state, position, *others)
Session.after = seen

for line in sys.stdin:
    child = os.fork()  # JAX is imported, but has started no thread yet
    if child == 0:
        code = 1
        try:
            driver, directory = line.split()
            say("done", digest_of_result(run(driver, directory)))
            code = 0
        finally:
            os._exit(code)
    say("pid", child)
    os.waitpid(child, 0)
    say("dead")
"""


def digest_of(*arrays):
    content = b"".join(np.asarray(array).tobytes() for array in arrays)
    return hashlib.sha256(content).hexdigest()


def digest_of_result(result):
    return digest_of(result.means, result.params, result.history.gradient_norm)


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

    def run(self, driver, directory, kill_after=None, patience=0.0):
        """Run in a child; kill -9 it `patience` seconds after its line number `kill_after`.

        Returns what it said, line by line, as words.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{driver} {directory}\n".encode())
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
        return [line.split() for line in lines if not line.startswith(("pid", "dead"))]

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


def moments(driver, kills, seed):
    """Random moments: while it starts, and around any evaluation, ledger entry and checkpoint."""
    chance = random.Random(seed)
    lines, seconds = (4, 0.005) if driver == "compiled" else (40, 0.05)
    for _ in range(kills):
        early = chance.random() < 0.25
        yield (
            (0, chance.random())
            if early
            else (chance.randrange(1, lines), seconds * chance.random())
        )


class Watched:
    """What is known of one run, over all its lives: each must agree with those before."""

    def __init__(self, directory):
        self.directory, self.released, self.told, self.result = directory, {}, (0, 0), None

    def hear(self, lines):
        for word, *rest in lines:
            if word == "done":
                assert self.result in (None, rest[0])
                self.result = rest[0]
            elif word == "released":
                position, digest = int(rest[0]), rest[1]
                assert self.released.setdefault(position, digest) == digest  # never other noise
            else:
                standing = int(rest[0]), int(rest[1])
                assert standing >= self.told  # what a tell returned from is never lost
                self.told = standing
        if self.released:
            self.check_ledger()

    def check_ledger(self):
        account = read_ledger(self.directory / "ledger.jsonl")
        (run,) = (run for run in account.runs.values() if run.next_step)
        per_pass, last = run.identity.mu_per_pass, max(self.released)
        assert run.next_step >= last
        passes = math.ceil(last / run.identity.steps_per_pass)
        assert account.spent() >= per_pass * math.sqrt(passes) * (1 - 1e-12)
        assert len(run.attempts) == 1  # nothing was paid twice
        assert account.spent() <= per_pass * math.sqrt(run.identity.passes) * (1 + 1e-12)


def kill_and_resume(nursery, tmp_path, driver, expected, kills, seed):
    """Kill -9 at random moments; return at how many of them the run was really under way."""
    hit, number, run = 0, 0, Watched(tmp_path / f"{driver}-0")
    for after, patience in moments(driver, kills, seed):
        run.hear(nursery.run(driver, run.directory, after, patience))
        hit += run.result is None
        if run.result is not None:
            assert run.result == expected
            run.hear(nursery.run(driver, run.directory))  # of a finished run, the same again
            number += 1
            run = Watched(tmp_path / f"{driver}-{number}")
    run.hear(nursery.run(driver, run.directory))
    assert run.result == expected
    return hit
