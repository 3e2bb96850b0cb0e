"""Two processes of one run (`jax.distributed`), each forked from a nursery that has imported all.

    python company_child.py CACHE        then lines on stdin: RANK PORT FOLDER HOLD TASK...

A child works in FOLDER/RANK, which stands for a host of its own: paths are relative, and the run's
files are where process 0 is. After HOLD releases, unless that is 0, it waits to be killed. It says what
it releases and what it is refused:

    released POSITION DIGEST      the state at POSITION
    done DIGEST                   of the result of the task "run"
    refused TASK KIND: TEXT       the error that a task ended with
"""

import contextlib
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
import traceback

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import blindstep as bs
import one_noise
from blindstep.ledger.session import Session
from kill_helpers import digest_of, digest_of_result
from losses import capped_distance
from plans import plan_of

# 16 rounds of 2 steps in 16 passes over 24 records.
DATA = np.random.default_rng(0).normal(size=(24, 2))
PLAN = plan_of(
    **{"records": 24, "dim": 2, "privacy": bs.Privacy(mu=1.0), "radius": 0.5},
    **{
        "bounds": bs.Bounds(clip=1.0),
        "horizon": 2,
        "period": 1,
        "first_batch": 12,
        "directions": 1,
    },
    **{"sharing": "block", "passes": 16},
)
START = np.zeros(2)
_TOLD = re.compile("(released [0-9]+|done) [0-9a-f]{64}")


def minimize(data, checkpoint=None, start=START, **options):
    options = {"method": PLAN, "seed": 7, "rehearse": False, **options}
    return bs.minimize(capped_distance, start, data, checkpoint=checkpoint, **options)


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def spread(rank):
    """The records over both processes: no process holds all of them."""
    everyone = NamedSharding(jax.make_mesh((2,), ("people",)), PartitionSpec("people"))
    return jax.make_array_from_process_local_data(everyone, DATA[12 * rank : 12 * (rank + 1)])


TASKS = {
    "run": lambda rank: say("done", digest_of_result(minimize(spread(rank), "run"))),
    "whole": lambda rank: say("done", digest_of_result(minimize(DATA, "run"))),
    "budget": lambda rank: minimize(spread(rank), "poor", budget=bs.Privacy(mu=0.5)),
    "params": lambda rank: minimize(spread(rank), "other", start=START + rank),
    "path": lambda rank: minimize(spread(rank), "here" if rank == 0 else "there"),
    "data": lambda rank: minimize(DATA + rank),
    "held": lambda rank: minimize(spread(rank), "second", ledger="held.jsonl"),
    "killed": lambda rank: os.kill(os.getpid(), signal.SIGKILL) if rank == 0 else minimize(DATA),
}


def child(rank, port, folder, hold, *tasks):
    rank, left = int(rank), [int(hold)]
    os.makedirs(f"{folder}/{rank}", exist_ok=True)
    os.chdir(f"{folder}/{rank}")
    limits = {"initialization_timeout": 20, "heartbeat_timeout_seconds": 10}
    jax.distributed.initialize(f"localhost:{port}", 2, rank, **limits)
    after = Session.after

    def seen(self, state, position, *others):
        say("released", position, digest_of(state.path.position, state.path.point))
        left[0] -= 1
        if left[0] == 0:
            signal.pause()
        return after(self, state, position, *others)

    Session.after = seen
    for task in tasks:
        try:
            TASKS[task](rank)
        except bs.errors.BlindstepError as error:
            say("refused", task, f"{type(error).__name__}: {error}")
    jax.distributed.shutdown()


def nursery(cache):
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    for line in sys.stdin:
        pid = os.fork()  # JAX is imported, but has started no thread yet
        if pid == 0:
            code = 1
            try:
                child(*line.split())
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        say("pid", pid)
        os.waitpid(pid, 0)
        say("dead")


class Pair:
    """A nursery for each of two processes; a life is one start of both, until both have ended."""

    def __init__(self, cache):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
        self._nurseries = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, str(cache)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                bufsize=0,
            )
            for _ in range(2)
        ]

    def live(self, folder, *tasks, kill=None, after=0, patience=None):
        """What both said; process `kill` is killed right after its release number `after`.

        Or, with `patience`, so many seconds later, wherever it then is.
        """
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        said, pids = ([], []), [0, 0]
        for rank, each in enumerate(self._nurseries):
            hold = after if rank == kill and patience is None else 0
            each.stdin.write(f"{rank} {port} {folder} {hold} {' '.join(tasks)}\n".encode())
        alive = dict(enumerate(self._nurseries))
        while alive:
            for stream in select.select([each.stdout for each in alive.values()], [], [])[0]:
                rank = next(rank for rank, each in alive.items() if each.stdout is stream)
                line = stream.readline().decode(errors="replace").strip()
                said[rank].append(line)
                if line.startswith("pid "):
                    pids[rank] = int(line.split()[1])
                if line == "dead":
                    del alive[rank]
            due = kill is not None and pids[kill] and kill in alive
            if due and len(released(said[kill])) >= after:
                time.sleep(patience or 0.0)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[kill], signal.SIGKILL)
                kill = None
        return said

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for each in self._nurseries:
            each.stdin.close()
            each.stdout.close()
            each.wait()


def released(lines):
    return [line for line in lines if line.startswith("released")]


def refused(lines):
    return [line.removeprefix("refused ") for line in lines if line.startswith("refused")]


def hear(run, said):
    """Check what both processes said of a run against all its earlier lives (`kill_helpers`)."""
    for lines in said:  # among them the source lines of a traceback
        run.hear([line.split() for line in lines if _TOLD.fullmatch(line)])


def moments(kills, seed):
    """Whom to kill, after how many releases, and how much later: any time from the start on."""
    chance = random.Random(seed)
    for _ in range(kills):
        early = chance.random() < 0.2
        patience = 2.0 * chance.random() if early else 0.01 * chance.random()
        yield chance.randrange(2), 0 if early else chance.randrange(1, 12), patience


if __name__ == "__main__":
    one_noise.everywhere()
    nursery(*sys.argv[1:])
