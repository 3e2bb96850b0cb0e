"""What the tests of ledgers, checkpoints and sessions share."""

import os
import random
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager

import blindstep
from blindstep.ledger.account import RunIdentity
from blindstep.ledger.ledger import Ledger

# Ledger and checkpoint need no JAX. A child that imports them past the package's own __init__ starts
# in a fraction of the time, and may fork without JAX's warning.
CHILD = f"""
import os, sys, types
package = types.ModuleType("blindstep")
package.__path__ = {list(blindstep.__path__)!r}
sys.modules["blindstep"] = package
sys.path.insert(0, {os.path.dirname(__file__)!r})
"""


def identity(run="first", **changes):
    fields = {"plan": "p" * 64, "data": "d" * 64, "noise_key": f"key of {run}", "delta": 1e-6}
    sizes = {"mu_per_pass": 0.5, "steps_per_pass": 4, "passes": 3}
    return RunIdentity(run=run, **{**fields, **sizes, **changes})


def open_ledger(path, **options):
    return Ledger.open(path, **{"cohort": "people", **options})


def write_some(path, steps=3, run="first", **options):
    """A small ledger: its bytes, its head and what it has spent."""
    with open_ledger(path, **options) as ledger:
        ledger.register(identity(run, steps_per_pass=2))
        for step in range(steps):
            ledger.begin(run, step)
        return path.read_bytes(), ledger.head, ledger.account.spent()


def flip(content, bit):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def overwrite(path, content):
    """Change a file in place: some file systems flush one that is emptied first, which is slow."""
    with open(path, "r+b") as file:
        file.write(content)
        file.truncate()


@contextmanager
def failing(monkeypatch, name, error, after=0):
    """Make os.`name` fail with `error` from its call number `after` on."""
    real, calls = getattr(os, name), iter(range(10**9))

    def fail(*args, **kwargs):
        if next(calls) >= after:
            raise OSError(error, os.strerror(error))
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        yield


@contextmanager
def full_disk(size):
    """The kernel's own limit on file size: a short write, then an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


NURSERY = """
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            work(sys.argv[1])
        finally:
            os._exit(1)
    os.write(1, b"pid %d\\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""


def kill_at_random(script, path, kills, seed):
    """Let `script`'s work(path) begin again and again, and kill -9 it at a random moment.

    Yields the lines that it printed. One process imports, and forks a worker for each turn.
    """
    moment = random.Random(seed)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD + script + NURSERY, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for _ in range(kills):
            nursery.stdin.write("go\n")
            nursery.stdin.flush()
            lines = [nursery.stdout.readline() for _ in range(moment.randrange(2, 40))]
            assert not {"dead\n", ""} & set(lines), lines
            pid = next(line for line in lines if line.startswith("pid"))
            # Somewhere in the next step, not just after a line: burn a random number of turns.
            for _ in range(moment.randrange(20_000)):
                pass
            os.kill(int(pid.split()[1]), signal.SIGKILL)
            while lines[-1] != "dead\n":
                lines.append(nursery.stdout.readline())
                assert lines[-1], "the nursery died"
            yield [line.strip() for line in lines[:-1] if line != pid]
