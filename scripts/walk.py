"""Which modules one record's value passes through, in order, by each driver.

    python scripts/walk.py

Real calls of the drivers are followed, by what depends on the value and not by who calls whom. In a
compiled program, the value is marked where the loss gives it, and every operation of its step that
depends on it counts for the module it was written in. In plain Python, every function of the package
that is given the value or gives it back counts for its module. The walk ends at the next point that the
run asks about; of a network, where its space takes the gradient, since the next point is its weights.
The service seals a vote and keeps it in its database meanwhile. A walk passes at most 14 modules and
enters no room twice; else this exits with 1.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.extend.core as core
import numpy as np

import blindstep as bs
from blindstep.run import ask_tell, compiled

MOST_MODULES = 14
SOURCE = str(pathlib.Path(bs.__file__).parent)
# The loss of one record, told from all others: no sum or rounding gives this number.
VALUE = 0.7318309886183791
DATA = np.arange(24.0)
Walk = list[str]


def plan_of(sharing: str) -> bs.Plan:
    """A small plan in which every kind of step takes part."""
    method = bs.Tight(
        radius=0.5, bounds=bs.Bounds(clip=1.0, diff_clip=0.5), rounds=1, horizon=2, period=2,
        first_batch=4, diff_batch=2, directions=2, mechanism="tree", sharing=sharing,
    )  # fmt: skip
    return bs.plan(method, records=24, dim=3, privacy=bs.Privacy(mu=1.0))


def room(module: str) -> str:
    """The room of a module: the first part of its name."""
    return module.split(".")[0]


def rooms(walk: Walk) -> list[str]:
    """The rooms in the order in which they are entered."""
    names = [room(module) for module in walk]
    return [name for place, name in enumerate(names) if place == 0 or names[place - 1] != name]


def once(walk: Walk) -> Walk:
    """The modules by first appearance."""
    return list(dict.fromkeys(walk))


def module_of(path: str) -> str | None:
    """The name of the module in this file, such as run.host; None outside of the package."""
    if not path.startswith(SOURCE):
        return None
    return path[len(SOURCE) + 1 :].removesuffix(".py").replace("/", ".")


# --- in a compiled program -------------------------------------------------------------------------


@jax.jit
def value_of_a_record(value: Any) -> Any:
    """Does nothing; its name shows in the program."""
    return value


def in_program(jaxpr: Any, marked: Sequence[bool], *, step: bool = False) -> list[Walk]:
    """The walks that begin in this program: at marked inputs, or where the loss gives a value.

    `step` says whether the whole program is one step.
    """
    walks: list[Walk] = [[]]
    _follow(jaxpr, marked, step, walks)
    return [walk for walk in walks if walk]


def _follow(jaxpr: Any, marked: Sequence[bool], step: bool, walks: list[Walk]) -> list[bool]:
    """Add what depends on the marked inputs to the last walk; say which outputs do.

    `step` says whether all of this program is part of one step.
    """
    found = {variable for variable, mark in zip(jaxpr.invars, marked, strict=True) if mark}
    for equation in jaxpr.eqns:
        inputs = [not isinstance(v, core.Literal) and v in found for v in equation.invars]
        outputs = _outputs(equation, inputs, step, walks)
        found |= {v for v, mark in zip(equation.outvars, outputs, strict=True) if mark}
    return [not isinstance(v, core.Literal) and v in found for v in jaxpr.outvars]


def _outputs(equation: Any, inputs: list[bool], step: bool, walks: list[Walk]) -> list[bool]:
    frames, bodies = _frames(equation), _bodies(equation)
    if equation.params.get("name") == value_of_a_record.__name__:
        walks[-1].append(frames[0][0])
        return [True]
    step = step or any(name in ("take_step", "step_of_window") for _, name in frames)
    if not step:
        # The driver's own loop over steps: each turn is a walk of its own, and ends with it.
        for body, _ in bodies:
            _follow(body, [False] * len(body.invars), step, walks)
            walks.append([])
        return [False] * len(equation.outvars)
    loop = equation.primitive.name in ("scan", "while", "cond")
    if bodies and (_holds_value(equation) or (loop and any(inputs))):
        outcomes = [_follow(body, inputs[skipped:], step, walks) for body, skipped in bodies]
        return [any(each) for each in zip(*outcomes, strict=True)]
    if any(inputs):
        walks[-1].append(frames[0][0])
    return [any(inputs)] * len(equation.outvars)


def _bodies(equation: Any) -> list[tuple[Any, int]]:
    """The programs inside an operation, each with the number of inputs that it does not get."""
    params, name = equation.params, equation.primitive.name
    if name == "cond":
        return [(branch.jaxpr, 1) for branch in params["branches"]]
    if name == "while":
        return [(params["body_jaxpr"].jaxpr, params["cond_nconsts"])]
    inner = [v for v in params.values() if isinstance(v, core.ClosedJaxpr | core.Jaxpr)]
    return [(getattr(body, "jaxpr", body), 0) for body in inner]


def _holds_value(equation: Any) -> bool:
    if equation.params.get("name") == value_of_a_record.__name__:
        return True
    return any(_holds_value(inner) for body, _ in _bodies(equation) for inner in body.eqns)


def _frames(equation: Any) -> list[tuple[str, str]]:
    """Module and function of the package's lines that wrote the operation, innermost first.

    Of an operation inside a loop, the lines outside of the loop are with the loop.
    """
    found = (
        (module_of(f.file_name), f.function_name) for f in equation.source_info.traceback.frames
    )
    return [(module, name.split(".")[-1]) for module, name in found if module is not None]


# --- in plain Python -------------------------------------------------------------------------------


def is_plain(thing: Any) -> bool:
    """Whether this is an array of numbers that are known."""
    if isinstance(thing, jax.core.Tracer) or not isinstance(thing, jax.Array | np.ndarray):
        return False
    return thing.dtype == np.float64


def holds(thing: Any, depth: int = 3) -> bool:
    """Whether the value is in this number, array or small container."""
    if isinstance(thing, float):
        return thing == VALUE
    if isinstance(thing, np.ndarray):
        return thing.dtype == np.float64 and bool(np.any(thing == VALUE))
    if isinstance(thing, jax.Array) and not isinstance(thing, jax.core.Tracer):
        return thing.dtype == np.float64 and bool(np.any(np.asarray(thing) == VALUE))
    if depth and isinstance(thing, list | tuple):
        return any(holds(each, depth - 1) for each in thing)
    if depth and isinstance(thing, dict):
        return any(holds(each, depth - 1) for each in thing.values())
    return False


@contextlib.contextmanager
def watched() -> Iterator[Walk]:
    """The modules of all functions that are given the value, or give it back, in order."""
    walk: Walk = []

    def see(frame: Any, event: str, result: Any) -> None:
        module = module_of(frame.f_code.co_filename)
        if module is None:
            return
        if event == "call" and holds(list(frame.f_locals.values())):
            walk.append(module)
        if event == "return" and holds(result):
            caller = module_of(frame.f_back.f_code.co_filename)
            walk.extend([module] if caller is None else [module, caller])

    sys.setprofile(see)
    try:
        yield walk
    finally:
        sys.setprofile(None)


# --- the drivers -----------------------------------------------------------------------------------


class Followed(Exception):
    """The program that takes the value has been traced: there is no need to run it."""


@contextlib.contextmanager
def traced(module: Any, name: str) -> Iterator[list[list[Walk]]]:
    """The walks in the program that a driver compiles under this name; it is not run."""
    real, walks = getattr(module, name), []

    def call(*arguments: Any) -> Any:
        sys.setprofile(None)
        program, *_ = eqx.filter_make_jaxpr(real.__wrapped__)(*arguments)
        marked = [holds(leaf) for leaf in jax.tree.leaves(eqx.filter(arguments, eqx.is_array))]
        walks.append(in_program(program.jaxpr, marked))
        raise Followed

    setattr(module, name, call)
    try:
        with contextlib.suppress(Followed):
            yield walks
    finally:
        setattr(module, name, real)


def by_compiled(plan: bs.Plan) -> tuple[list[Walk], Walk]:
    """`minimize`: the walks of a round's steps."""

    def loss(x: Any, z: Any) -> Any:
        return value_of_a_record(x @ x - z)

    with traced(compiled, "run_part") as walks:
        bs.minimize(loss, np.zeros(3), DATA, method=plan, seed=1)
    return walks[0], []


def by_host(plan: bs.Plan) -> tuple[list[Walk], Walk]:
    """`evaluate=Host()`: first in Python, then in the program that takes the answers."""

    def run(record: int, directory: str) -> None:
        def loss(x: np.ndarray, z: float) -> float:
            return VALUE if z == record else z

        # The loss is no function of the parameters, and a rehearsal would refuse it.
        options = {"evaluate": bs.Host(), "seed": 1, "checkpoint": directory, "rehearse": False}
        bs.minimize(loss, np.zeros(3), DATA, method=plan, **options)

    return _from_outside(plan, run)


def by_ask_and_tell(plan: bs.Plan) -> tuple[list[Walk], Walk]:
    """`Optimizer`: the answers come from outside."""

    def run(record: int, directory: str) -> None:
        opt = bs.Optimizer(plan, np.zeros(3), seed=1, checkpoint=directory)
        query = opt.ask()
        opt.tell(query, [VALUE if r == record else 0.0 for r in query.record])

    return _from_outside(plan, run)


def _from_outside(plan: bs.Plan, run: Callable[[int, str], None]) -> tuple[list[Walk], Walk]:
    """The walks of a value that enters from outside, and where it goes on the side."""
    first = int(bs.Optimizer(plan, np.zeros(3), seed=1).ask().rows[0])
    with (
        tempfile.TemporaryDirectory() as directory,
        traced(ask_tell, "step_from_answers") as walks,
        watched() as seen,
    ):
        run(first, directory)
    return _parted(seen, walks[0], ("run", "losses"))


def _parted(seen: Walk, walks: list[Walk], own: tuple[str, ...]) -> tuple[list[Walk], Walk]:
    """The way through the driver's own rooms, joined to the program's; and what is on the side.

    Answers are saved and named in the ledger before they are used: that leads nowhere else.
    """
    before = [module for module in seen if room(module) in own]
    aside = [module for module in seen if room(module) not in own]
    return [before + walk for walk in walks], once(aside)


def by_torch(_: bs.Plan) -> tuple[list[Walk], Walk]:
    """PyTorch: the losses of a model, then the program of a release, then the machine."""
    import torch

    import blindstep.torch
    from blindstep.torch import replay, run

    model = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
    rows = torch.arange(24.0, dtype=torch.float64)

    def loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        x = batch["x"]
        changed = model(x[:, None] * torch.ones(1, 3, dtype=x.dtype))[:, 0]
        # In the steps, the first record always loses the same.
        return torch.where((x == 1.0) & torch.tensor(following), VALUE + 0.0 * changed, changed)

    following, after = False, Walk()
    begin, lift, release = run._along_signs, replay.ModelSpace.lift, run._release

    def steps(*arguments: Any) -> Any:
        nonlocal following
        following = True
        return begin(*arguments)

    def walked(*arguments: Any) -> Any:
        sys.setprofile(None)
        program, *_ = eqx.filter_make_jaxpr(release.__wrapped__)(*arguments)
        # The losses are in the run's units here, so they are told by their place.
        leaves = jax.tree.leaves(eqx.filter(arguments, eqx.is_array))
        marked = [leaf is arguments[-2] for leaf in leaves]
        walks.extend(in_program(program.jaxpr, marked, step=True))
        out = release(*arguments)
        # What was released is followed on, by the modules that have it in hand.
        numbers = np.asarray(out[1])

        def see(frame: Any, event: str, _: Any) -> None:
            module = module_of(frame.f_code.co_filename)
            if event == "call" and module and room(module) == "optimize":
                sys.setprofile(None)
                given = [v for v in frame.f_locals.values() if is_plain(v)]
                if any(np.any(np.asarray(v) == numbers[0]) for v in given):
                    after.append(module)
                sys.setprofile(see)

        sys.setprofile(see)
        return out

    def end(*_: Any) -> None:
        sys.setprofile(None)
        raise Followed

    walks: list[Walk] = []
    with _patched((run, "_along_signs", steps), (run, "_release", walked)), watched() as seen:
        replay.ModelSpace.lift = end
        try:
            budget = bs.Privacy(epsilon=2, delta=1e-4)
            with contextlib.suppress(Followed):
                blindstep.torch.minimize(
                    model, loss, {"x": rows}, budget, batch=8, seed=1, rehearse=False,
                    method=bs.Auto(evaluations=4096, directions=2),
                )  # fmt: skip
        finally:
            replay.ModelSpace.lift = lift
    on = [module for module in after if room(module) == "optimize"]
    before = [module for module in seen if room(module) == "torch"]
    aside = [module for module in seen if room(module) != "torch"]
    return [before + walk + on for walk in walks], once(aside)


def by_service(_: bs.Plan) -> tuple[list[Walk], Walk]:
    """The service: an answer is sealed into its database, and comes back when its step closes."""

    from blindstep.serve import closing, voting
    from blindstep.serve.database import Database
    from blindstep.serve.keys import Address, Secrets
    from blindstep.serve.spec import StudySpec
    from blindstep.serve.studies import Studies
    from blindstep.serve.voting import Vote

    secrets = Secrets(bytes(range(32)))
    asked = {"name": "colours", "people": 96, "epsilon": 1, "despite_noise": True}
    asked["parameters"] = [{"name": "red", "low": -1, "high": 1}]
    with tempfile.TemporaryDirectory() as directory:
        database = Database(f"sqlite:///{directory}/votes.db")
        database.migrate()
        studies = Studies(database, secrets)
        number = studies.number(studies.create(StudySpec.model_validate(asked)))
        person = secrets.person(studies.row(number)["id"], "anna")
        voting.serve(database, number, [person], [])
        addresses = [Address(number, 0, person, part) for part in (0, 1)]
        studies.design(number).compile(1)
        program = studies.design(number).program
        with traced(program, "step_of_window") as walks, watched() as seen:
            sealed = [Vote(each, secrets.seal(each, VALUE)) for each in addresses]
            voting.serve(database, number, [], sealed)
            studies.end_window(studies.row(number)["id"])
            closing.freeze(studies, number, "a worker")
            closing.release(studies, number, "a worker")
        database.close()
    return _parted(seen, walks[0], ("serve",))


@contextlib.contextmanager
def _patched(*places: tuple[Any, str, Any]) -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, instead in places:
        setattr(module, name, instead)
    try:
        yield
    finally:
        for module, name, real in before:
            setattr(module, name, real)


DRIVERS = {
    "compiled": by_compiled,
    "host": by_host,
    "ask/tell": by_ask_and_tell,
    "torch": by_torch,
    "service": by_service,
}


def broken(walk: Walk) -> str | None:
    """What is wrong with a walk, if anything is."""
    if not walk:
        return "nothing was followed"
    if len(once(walk)) > MOST_MODULES:
        return f"{len(once(walk))} modules, at most {MOST_MODULES} allowed"
    entered = rooms(walk)
    twice = [name for name in dict.fromkeys(entered) if entered.count(name) > 1]
    return f"room {twice[0]} is entered twice: {' -> '.join(entered)}" if twice else None


def main() -> int:
    """Print the walks; 1 if one of them is too long or turns back."""
    wrong = 0
    for name, driver in DRIVERS.items():
        every, aside = driver(plan_of("block"))
        every = [*every, *driver(plan_of("record"))[0]] or [[]]
        longest = max(every, key=lambda walk: len(once(walk)))
        print(f"{name}: {' -> '.join(once(longest))}")
        if aside:
            print(f"    on the side, before the release: {' -> '.join(aside)}")
        for problem in dict.fromkeys(filter(None, map(broken, every))):
            print(f"    WRONG: {problem}")
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
