"""What test_mesh.py runs in processes of their own: eight virtual devices, or two processes."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import blindstep as bs
import one_noise
from blindstep.ledger import fingerprints
from blindstep.ledger.session import Session
from blindstep.ledger.storage import Storage
from blindstep.losses import pytrees
from blindstep.losses.pytrees import ParameterSpace
from blindstep.run import compiled
from plans import method_of, plan_of

RECORDS, DIM = 208, 3
DATA = {
    "place": np.random.default_rng(0).normal(size=(RECORDS, DIM)),
    "weight": np.random.default_rng(1).uniform(size=RECORDS),
}
BUDGET = {"privacy": bs.Privacy(mu=1.0), "radius": 0.5, "lipschitz": 1.0}
PLANS = {
    # Batches of 10 and 5, and of 203: nothing that eight devices could share evenly.
    "own": {
        **{"method": "paper", "gap": 1.0, "horizon": 4, "first_batch": 10, "diff_batch": 5},
        **{"rounds": 3},
    },
    "shared": {
        **{"horizon": 3, "period": 1, "first_batch": 203, "passes": 6, "smoothing": 0.1},
        **{"sharing": "block", "sampler": "haar", "directions": 3},
    },
    "gradients": {
        **{"estimate": "gradient", "lipschitz": None, "bounds": bs.Bounds(clip=1.0), "horizon": 3},
        **{"period": 1, "first_batch": 203, "passes": 6},
    },
}


def loss(x, z):
    return z["weight"] * jnp.minimum(jnp.sqrt(jnp.sum((x - z["place"]) ** 2)), 1.5)


def run(data, plan, **options):
    given = BUDGET | PLANS[plan]
    privacy, start = given.pop("privacy"), np.zeros(DIM)
    return bs.minimize(
        loss, start, data, privacy, method=method_of(**given), **{"seed": 3, **options}
    )


def flops(data, plan_name, sharding):
    """Operations that each device does in one round, counted by the compiler."""
    plan = plan_of(records=RECORDS, dim=DIM, **BUDGET | PLANS[plan_name])
    space = ParameterSpace.of(np.zeros(DIM))
    machine, found = compiled.prepare(plan.build(), space), []
    session = Session(plan.terms, plan.to_dict(), machine.begin(jnp.zeros(DIM)), Storage(), dict)

    def program(permit, memory):
        arguments = (machine, loss, space, permit, memory, session.state, data)
        lowered = compiled.run_part.lower(
            *arguments, session.gate.public, machine.horizon // machine.period, sharding
        )
        found.append(lowered.compile().compiled.cost_analysis()["flops"])
        raise KeyboardInterrupt  # it is not run

    try:
        session.gate.through(program, machine.horizon)
    except KeyboardInterrupt:
        return found[0]


def layouts():
    """Ways in which a user may have spread the records over eight devices."""
    devices = np.array(jax.devices())
    plain = NamedSharding(Mesh(devices, ("people",)), PartitionSpec("people"))
    grid = NamedSharding(Mesh(devices.reshape(4, 2), ("a", "b")), PartitionSpec(("b", "a")))
    explicit = NamedSharding(jax.make_mesh((8,), ("people",)), PartitionSpec("people"))
    return {
        "plain": jax.device_put(DATA, plain),
        "grid": jax.device_put(DATA, grid),
        "mixed": {**DATA, "place": jax.device_put(DATA["place"], explicit)},
    }


def eight_devices(folder):
    """One layout, and a run over a crash: the ledger and the mesh meet."""
    assert len(jax.devices()) == 8
    data = layouts()["plain"]
    out = {"whole": run(data, "shared").means, "resumed": resumed(data, f"{folder}/run")}
    np.savez(f"{folder}/out.npz", **out)


def every_layout(folder):
    out, whole = {}, fingerprints.of_data(DATA)
    for name, data in layouts().items():
        assert fingerprints.of_data(data) == whole
        for plan in PLANS if name == "plain" else ["own"]:
            out[f"{plan}-{name}"] = run(data, plan).means
    data = layouts()["plain"]
    sharding = pytrees.over_records(pytrees.place(data))
    for plan in PLANS:
        out[f"flops-{plan}"] = np.array([flops(DATA, plan, None), flops(data, plan, sharding)])
    np.savez(f"{folder}/out.npz", **out)


def resumed(data, directory):
    """Cut after two rounds, before the second is saved."""
    after, left = Session.after, [2]

    def cut(session, state, position, *others):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        after(session, state, position, *others)

    Session.after = cut
    try:
        run(data, "shared", checkpoint=directory)
    except KeyboardInterrupt:
        Session.after = after
    return run(data, "shared", checkpoint=directory).means


def two_processes(folder, rank, port):
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=int(rank))
    mine = slice(RECORDS // 2 * int(rank), RECORDS // 2 * (int(rank) + 1))
    everyone = jax.make_mesh((jax.device_count(),), ("people",))
    sharding = NamedSharding(everyone, PartitionSpec("people"))
    data = jax.tree.map(
        lambda leaf: jax.make_array_from_process_local_data(sharding, leaf[mine]), DATA
    )
    out = {"seeded": run(data, "own"), "secret": run(data, "own", seed=None)}
    out["kept"] = run(data, "own", checkpoint=f"{folder}/run")
    # Looks and steps, each in a session of its own.
    method = bs.Auto(evaluations=2**12)
    scaled = {"privacy": bs.Privacy(epsilon=4), "method": method, "seed": 3}
    for name in ("scaled", "again"):
        checkpoint = f"{folder}/scaled"
        out[name] = bs.minimize(loss, np.zeros(DIM), data, checkpoint=checkpoint, **scaled)
    means = {name: result.means for name, result in out.items()}
    np.savez(f"{folder}/out-{rank}.npz", **means)


if __name__ == "__main__":
    one_noise.everywhere()
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_enable_x64", True)
    tasks = {"eight": eight_devices, "layouts": every_layout, "two": two_processes}
    tasks[sys.argv[1]](*sys.argv[2:])
