"""The audit's attack on secret batches: the adversary sees all releases, and not who answered when.

A *trial* is one pass with records that push one coordinate of every release that they are in, up in one
data set and down in the other. The adversary knows the plan and the vectors, not the secret steps. Its
score is the likelihood ratio of the two mixtures, with S+ and S- the means over the t steps i of
exp(+- c y_i - c^2 / 2), where y_i is the coordinate in standard deviations of the noise; a step that
the run does not reach adds 1:

    score = log S+ - log S-,        or log S+ where the record is left out in the other data set.

It does not believe what the code claims of its noise: it learns the length of noise and of the push
from the first third of the keys. Every release comes from the plan's own gate, with allocations and
noise of a new key for each pass. Coordinates have independent noise and records independent steps, so
each pass gives a trial for each coordinate.
"""

from __future__ import annotations

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import stats
from scipy.special import logsumexp

from blindstep.estimate.vectors import worth_a_call
from blindstep.insight.audit_bounds import Trials, group_size, mu_lower_bound
from blindstep.insight.audit_scene import Scene
from blindstep.private.gate import Contributions, Gate, Memory, Permit
from blindstep.private.noise import NoiseKey
from blindstep.private.schedule import Kind
from blindstep.private.terms import REPLACE

_LANES = 64
# Passes that are made for the two data sets, at most.
_PASSES = 3000
# Places of the batches that are held at once.
_NUMBERS = 2**22
# A correct program fails a check of chance with this probability.
_CHANCE = 1e-9

Seen = Float[np.ndarray, "keys steps lanes"]


def secret_keys_needed(scene: Scene, pairs: int) -> int:
    """Noise keys for `pairs` counted trials and half as many to learn from, within the budget."""
    return max(30, min(_PASSES, math.ceil(1.5 * pairs / _lanes(scene, 1))))


def run_secret_trials(scene: Scene, mu: float, pairs: int, entropy: np.ndarray) -> Trials:
    """Attack secret batches of the plan of `scene`, whose claim is `mu`."""
    terms, schedule = scene.terms, scene.terms.schedule
    group = min(group_size(scene.plan, mu, schedule.records), max(1, schedule.records // 2))
    lanes = _lanes(scene, group)
    group = min(group, schedule.records // lanes)
    worlds = (-1.0, 1.0) if terms.neighbours == REPLACE else (0.0, 1.0)
    seen, steps = _passes(scene, entropy, lanes, group, worlds)
    checks = _checks(scene, seen, worlds, steps, group)
    if not checks["every release is finite"]:
        return Trials(np.zeros(1), np.zeros(1), group, checks)
    learned = len(entropy) // 3
    push = _pushes(seen, worlds)[:learned]
    alone = seen[0, :learned] - worlds[0] * push
    noise = math.sqrt(float(np.mean(alone**2)) + 1e-300)
    one = float(np.mean(np.sum(push, axis=1))) / group
    about = (one / noise, schedule.blocks_per_pass, terms.neighbours)
    scores = np.stack([_score(part / noise, *about) for part in seen])
    low, high = _against_threshold(*scores.reshape(2, -1), learned=learned * lanes)
    return Trials(low[:pairs], high[:pairs], group, checks)


def expected_scores(
    scene: Scene, group: int, counted: int, rng: np.random.Generator
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Scores of as many trials of a correct program: the mixture as the accountant has it."""
    terms, several = scene.terms, scene.terms.schedule.blocks_per_pass
    reached = min(several, scene.terms.schedule.releases)
    c = float(terms.first_clip) / terms.schedule.divisor_of(Kind.GRAD) / float(terms.noise_std)
    trials = counted * 3 // 2
    noise = rng.standard_normal((trials, reached))
    at = rng.integers(several, size=(trials, group))
    push = np.stack([np.bincount(each, minlength=several)[:reached] for each in at]) * c
    low = -push if terms.neighbours == REPLACE else 0.0 * push
    about = (c, several, terms.neighbours)
    first, second = (_score((noise + p)[..., None], *about) for p in (low, push))
    return _against_threshold(first.ravel(), second.ravel(), learned=trials // 3)


def _against_threshold(
    low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"], learned: int
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """The scores to be counted, less the threshold that tells most of those that are learned from.

    Mixtures differ most in their tails: half-way between them is not the best place.
    """
    own = np.concatenate([low[:learned], high[:learned]])
    tried = np.quantile(own, np.linspace(0.005, 0.995, 80))
    bounds = [mu_lower_bound(low[:learned] - each, high[:learned] - each) for each in tried]
    best = tried[int(np.argmax(bounds))]
    return low[learned:] - best, high[learned:] - best


def _lanes(scene: Scene, group: int) -> int:
    """Coordinates that are pushed at once, each by records of its own."""
    return max(1, min(_LANES, scene.terms.size, scene.terms.schedule.records // (2 * group)))


def _score(seen: Seen, c: float, several: int, neighbours: str) -> Float[np.ndarray, "keys lanes"]:
    """The logarithm of the ratio of the two mixtures, for one record that pushes by c."""
    left = several - seen.shape[1]
    unseen = np.full((len(seen), 1, seen.shape[2]), math.log(left) if left else -math.inf)

    def log_mean(pushed: Seen) -> Float[np.ndarray, "keys lanes"]:
        every = np.concatenate([pushed - c * c / 2, unseen], axis=1)
        return np.asarray(logsumexp(every, axis=1)) - math.log(several)

    up = log_mean(c * seen)
    return up - log_mean(-c * seen) if neighbours == REPLACE else up


def _passes(
    scene: Scene, entropy: np.ndarray, lanes: int, group: int, worlds: tuple[float, float]
) -> tuple[Float[np.ndarray, "worlds keys steps lanes"], Int[np.ndarray, "keys records"]]:
    """The releases of a pass under each key, along the coordinates that are pushed; and who answers."""
    schedule, seen, steps = scene.terms.schedule, [], []
    number = min(schedule.blocks_per_pass, schedule.releases)
    some = max(1, _NUMBERS // (number * schedule.batch_of(Kind.GRAD)))
    for start in range(0, len(entropy), some):
        permits = [
            scene.permit(0, number, NoiseKey(words)) for words in entropy[start : start + some]
        ]
        steps += [_steps_of(permit, lanes * group) for permit in permits]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *permits)
        both = [
            _many_passes(
                stacked, Gate.first_memory(scene.terms), number, lanes, group, jnp.asarray(z)
            )
            for z in worlds
        ]
        seen.append(np.stack([np.asarray(each) for each in both]))
    return np.concatenate(seen, axis=1), np.stack(steps)


@eqx.filter_jit
def _many_passes(
    permits: Permit, memory: Memory, number: int, lanes: int, group: int, z: Float[Array, ""]
) -> Float[Array, "keys steps lanes"]:
    return eqx.filter_vmap(lambda permit: _one_pass(permit, memory, number, lanes, group, z))(
        permits
    )


def _one_pass(
    permit: Permit, memory: Memory, number: int, lanes: int, group: int, z: Float[Array, ""]
) -> Float[Array, "steps lanes"]:
    terms = permit.terms
    far = 2.0 * terms.first_clip * z

    def of(rows: Int[Array, " some"], _: Int[Array, " some"]) -> Float[Array, "some size"]:
        pushed = jax.nn.one_hot(rows // group, terms.size, dtype=jnp.float64)
        return far * jnp.where((rows < lanes * group)[:, None], pushed, 0.0)

    given = Contributions(worth_a_call(terms.schedule, Kind.GRAD), of)

    def step(memory: Memory, _: None) -> tuple[Memory, Array]:
        memory, release = permit.release(memory, Kind.GRAD, given)
        return memory, release[:lanes]

    return jax.lax.scan(step, memory, length=number)[1]


def _steps_of(permit: Permit, records: int) -> Int[np.ndarray, " records"]:
    """The steps in which the first records answer, as the permit says; -1 for none."""
    rows, held = np.asarray(permit.grad_rows), np.asarray(permit.held)
    steps = np.full(permit.table, -1)
    for step, (some, number) in enumerate(zip(rows, held, strict=True)):
        steps[some[:number]] = step
    return steps[:records]


def _pushes(
    seen: Float[np.ndarray, "worlds keys steps lanes"], worlds: tuple[float, float]
) -> Float[np.ndarray, "keys steps lanes"]:
    """How far the records of each coordinate move each release, for z from 0 to 1."""
    return (seen[1] - seen[0]) / (worlds[1] - worlds[0])


def _checks(
    scene: Scene,
    seen: Float[np.ndarray, "worlds keys steps lanes"],
    worlds: tuple[float, float],
    steps: Int[np.ndarray, "keys records"],
    group: int,
) -> dict[str, bool]:
    """What must hold of a pass of secret batches, exactly or but for a chance of `_CHANCE`."""
    terms, schedule = scene.terms, scene.terms.schedule
    lattice = seen / (float(terms.noise_std) / scene.lattice_std)
    number = seen.shape[2]
    at = steps.reshape(len(steps), -1, group)
    often = np.stack([np.sum(at == step, axis=2) for step in range(number)], axis=1)
    most = float(terms.first_clip) / schedule.divisor_of(Kind.GRAD)
    moved = np.abs(_pushes(seen, worlds))
    rounding = 2 * float(terms.noise_std) / scene.lattice_std
    several = schedule.blocks_per_pass
    counts = np.bincount(steps[steps >= 0].ravel(), minlength=several)[:number]
    usual = steps.size / several
    uniform = stats.chi2.sf(np.sum((counts - usual) ** 2 / usual), number)
    first, again = secret_passes(scene)
    return {
        "every release is finite": bool(np.isfinite(seen).all()),
        "every release lies on the lattice": bool(
            np.all(np.abs(lattice - np.rint(lattice)) < 1e-5)
        ),
        "a record moves the one release that it is in, by no more than is declared": bool(
            np.all(moved <= often * most * (1 + 1e-6) + rounding)
        ),
        "each step is as likely as any other": bool(uniform > _CHANCE),
        "steps follow the secret key": not np.all(steps == steps[:1]),
        "steps are drawn anew in each pass": not np.array_equal(first, again),
    }


def secret_passes(scene: Scene) -> list[Int[np.ndarray, " records"]]:
    """The rows that answer in two passes under one key, step by step, as the schedule says."""
    schedule = scene.terms.schedule
    longer = replace(schedule, blocks=2 * schedule.blocks_per_pass)
    secret, several = NoiseKey(np.arange(8, dtype=np.uint32)), schedule.blocks_per_pass
    orders = [longer.order(scene.public, secret, turn) for turn in (0, 1)]
    return [
        np.concatenate([longer.rows(order, turn * several + step) for step in range(several)])
        for turn, order in enumerate(orders)
    ]
