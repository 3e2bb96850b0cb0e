"""A small run without any driver: a session, its gate, and a program that walks towards the data."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from blindstep.ledger import fingerprints
from blindstep.ledger.session import Session
from blindstep.ledger.storage import SavingInterval, Storage
from blindstep.planning.noise import calibrated
from blindstep.private.gate import Contributions
from blindstep.private.mechanisms import BinaryTree
from blindstep.private.schedule import Schedule

# 6 blocks of 3 releases in two passes of 9.
SCHEDULE = Schedule(records=12, first_batch=2, diff_batch=1, period=3, blocks=6)
PLAN = {"records": 12, "dim": 2, "privacy": {"delta": 1e-6}, "notes": ["for people"]}
DATA = np.random.default_rng(0).normal(size=(12, 2))


def terms(mu=1.0):
    return calibrated(SCHEDULE, BinaryTree(3), 2, 1.0, 0.5, mu)


def start():
    return {"point": jnp.zeros(2), "norms": jnp.zeros(())}


def loss(point, record):
    return jnp.sum(jnp.abs(point - record))


def begin(
    directory=None,
    *,
    mu=1.0,
    data=DATA,
    of=loss,
    params=None,
    plan=PLAN,
    saving=True,
    seed=7,
    **where,
):
    """A session of the small run; `saving` says whether it is saved after everything, or never."""
    interval = SavingInterval()
    interval.due = lambda: saving
    params = np.zeros(2) if params is None else params
    return Session(
        terms(mu),
        plan,
        start(),
        Storage(directory, **where),
        lambda: fingerprints.of_run(of, params, data),
        seed=seed,
        interval=interval,
    )


@eqx.filter_jit
def releases(permit, memory, state, data, kinds):
    """Releases of these kinds, each a step of the point."""
    for kind in kinds:
        point = state["point"]
        of = Contributions(1, lambda rows, _, point=point: jnp.asarray(data)[rows] - point)
        memory, y = permit.release(memory, kind, of)
        state = {"point": point + 0.01 * y, "norms": state["norms"] + jnp.linalg.norm(y)}
    return memory, state


def go_on(session, times=18, count=3, seen=None):
    """Release `count` steps at a time: a block; `seen` is called after a charge, before its release."""
    for _ in range(times):
        if session.finished:
            break
        numbers = range(session.position, session.position + count)
        kinds = tuple(map(SCHEDULE.kind_of, numbers))

        def program(permit, memory, kinds=kinds):
            if seen is not None:
                seen()
            return releases(permit, memory, session.state, DATA, kinds)

        state = session.gate.through(program, count)
        session.after(state, session.position + count, lambda: {"norms": np.ones(2)})
    return session


def same(one, two):
    """Whether two states are the same, bit for bit."""
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(two)))


def finish(directory, **options):
    """The state at the end of the run."""
    with begin(directory, **options) as session:
        return go_on(session).state


def cut_after(directory, blocks, **options):
    """Run some blocks; what a killed process leaves is the disk as it is, and the lock free."""
    with begin(directory, **options) as session:
        go_on(session, blocks)


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


class Killed(Exception):
    """What stands for kill -9 inside one process."""


def kill(*_, **__):
    raise Killed
