"""`blindstep.minimize`: a private run on a loss and records that are here."""

from __future__ import annotations

import os
from collections.abc import Sequence

from jaxtyping import PyTree
from numpy.typing import ArrayLike

from blindstep.errors import InvalidArgument, answers_typos
from blindstep.ledger.budget import Privacy
from blindstep.ledger.storage import Storage
from blindstep.losses.engines import Host
from blindstep.losses.people import People, people_of
from blindstep.losses.pytrees import Loss
from blindstep.planning.method import Method
from blindstep.planning.plan import Plan
from blindstep.run.callbacks import Callback
from blindstep.run.compiled import run_compiled
from blindstep.run.host import run_on_host
from blindstep.run.planned import Call
from blindstep.run.progress import ends_in_one_line
from blindstep.run.result import Result


@answers_typos
@ends_in_one_line
def minimize(
    loss: Loss,
    params: PyTree,
    data: PyTree,
    privacy: Privacy | None = None,
    *,
    method: Method | Plan | None = None,
    people: People | ArrayLike | None = None,
    evaluate: Host | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    budget: Privacy | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    rehearse: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Minimize the mean of `loss(params, record)` over records, privately.

        import jax.numpy as jnp, numpy as np, blindstep as bs

        def loss(params, record):                    # nonsmooth, as 0/1 losses and votes are
            return jnp.abs(params - record).sum()

        data = np.random.default_rng(0).normal(3.0, 1.0, (2000, 2))
        result = bs.minimize(loss, np.zeros(2), data, bs.Privacy(epsilon=1, delta=1e-6))
        print(result.params, result.privacy)

    Values of the loss are enough: it may be nonsmooth and nonconvex, and anything that can only be
    evaluated. Nothing has to be known about it. To choose how the run is made, give a `method`.

    Args:
        loss: a function of parameters and one record, giving one number: in JAX, or any Python function
            with `evaluate=bs.Host()`. With a third argument `key` (on a host `seed`) it gets random
            draws that are the record's own, the same at every evaluation. A value that is not finite
            makes that record count 0 in that step, and so does an `equinox.error_if` that fails.
        params: where to start: a pytree of floating-point arrays.
        data: a pytree of arrays whose leading axis is the record: one row, one person, unless `people`
            says otherwise.
        privacy: the budget, such as Privacy(epsilon=4, delta=1e-5).
        method: how the run is made: `Auto()` (the default), `Tight(...)`, `Paper(...)`, `Klt(...)`, a
            method of your own, or a ready plan (`blindstep.plan`), which has the budget already.
        people: an identifier for each row, if people have several, or `People(identifiers, rows=)`.
            Then a person is one record, and what is guaranteed is for all of their rows together.
        evaluate: `Host(...)` for a loss that JAX cannot trace: any Python function, on NumPy arrays.
        checkpoint: a directory for the run. The same call goes on after a crash where it was, with
            the same releases bit for bit; of a finished run it returns the result and releases
            nothing. *The directory holds the noise key*, and with `evaluate` the answers of each step:
            keep it as secret as the data. All of `data` is read once more, for its fingerprint. A
            loss in JAX must give the same answer each time. Of several processes
            (`jax.distributed`) the first one alone uses it.
        ledger: a file in which several runs on the same people add up what they spend; left out,
            the run directory has its own.
        budget: what all runs in the ledger together may spend; a run that would spend more is
            refused before anything is evaluated.
        seed: for reproduction only: a seeded run is not private against anyone who knows or can
            guess the seed, and its privacy statement says so. Leave it out and the noise is from the
            operating system.
        progress: show progress: steps, privacy spent, time, and the mean loss where the plan
            has a share for it. None: on a terminal, for runs that find their own scales.
        rehearse: try the loss on made-up records first, of the shapes of `data` and with none of its
            values. A loss that gives no number for any of them is refused before anything is spent.
        callbacks: functions that are told what each step released (`blindstep.callbacks.Released`) and
            nothing else, so they cost no privacy. One that gives True ends the run with its round; the
            statement stays that of the whole plan.

    Returns:
        Parameters with their privacy statement, the plan and the history of public quantities.

    Raises:
        EngineLost: the workers of a `Host` are gone and cannot be replaced; the current step is not
            released.
    """
    storage = Storage(checkpoint, ledger, budget)
    call = Call(privacy, method, people_of(people), storage, seed, progress, rehearse, callbacks)
    if evaluate is None:
        return run_compiled(loss, params, data, call)
    if not isinstance(evaluate, Host):
        raise InvalidArgument(f"evaluate must be blindstep.Host(...), got {evaluate!r}.")
    return run_on_host(loss, params, data, call, evaluate)
