"""Online learners: one contract for all of them, their regret, their reach, and the twin's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from blindstep import errors
from blindstep.optimize.learners import (
    AdaptiveStep,
    ConstantStep,
    Falling,
    Heeding,
    Pace,
    learner_from_dict,
    learner_to_dict,
    move_norm,
)
from blindstep.optimize.machine import FlatSpace
from blindstep.optimize.momentum import Momentum

SPACE = FlatSpace()
LEARNERS = [ConstantStep(), AdaptiveStep(), Falling(), Falling(nearest=1.0), Heeding(), Momentum()]
WITHIN_REACH = [each for each in LEARNERS if not isinstance(each, Heeding)]
PACE = Pace(reach=0.5, steps=20, step=0.2)


def follow(learner, gradients, pace):
    """Each move, and its recorded length, of a learner that sees these gradients."""
    dim = gradients.shape[1]
    state, path = learner.begin(dim, pace), SPACE.begin(jnp.zeros(dim))
    for gradient in map(jnp.asarray, gradients):
        seen = SPACE.see(path, gradient)
        choice = learner.update(state, seen, pace)
        state, path = choice.state, SPACE.advance(path, gradient, choice, 1.0)
        yield np.asarray(path.move), float(move_norm(seen, choice))


def regret(learner, gradients, pace):
    moves = [np.zeros(gradients.shape[1]), *(move for move, _ in follow(learner, gradients, pace))]
    total = sum(float(g @ move) for g, move in zip(gradients, moves[:-1], strict=True))
    return total + pace.reach * np.linalg.norm(gradients.sum(0))


@pytest.mark.parametrize("seed", range(3))
def test_learners_meet_their_regret_bounds(seed):
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(50, 4)) + rng.normal(size=4)
    root, reach = np.sqrt(np.sum(gradients**2)), 0.3
    constant = regret(ConstantStep(), gradients, Pace(reach, 50, reach / root))
    assert constant <= reach * root
    adaptive = regret(AdaptiveStep(), gradients, Pace(reach, 50))
    assert adaptive <= 2 * np.sqrt(2) * reach * root


@pytest.mark.parametrize("reach", [0.5, 50.0])
def test_constant_step_is_the_twins(reach):
    rng = np.random.default_rng(1)
    gradients = rng.normal(size=(5, 4))
    move, pace = np.zeros(4), Pace(reach, 5, 0.2)
    for gradient, (ours, norm) in zip(
        gradients, follow(ConstantStep(), gradients, pace), strict=True
    ):
        move = reference.osd(move, gradient, 0.2, reach)
        np.testing.assert_allclose(ours, move, atol=1e-14)
        np.testing.assert_allclose(norm, np.linalg.norm(move), rtol=1e-12)


# -- the contract, which every learner meets ------------------------------------------------------


@pytest.mark.parametrize("learner", WITHIN_REACH)
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0, 1e9])
def test_moves_reach_no_further_than_they_may(learner, scale):
    gradients = scale * np.random.default_rng(2).normal(size=(20, 7))
    for move, norm in follow(learner, gradients, PACE):
        assert np.linalg.norm(move) <= PACE.reach * (1 + 1e-13)
        np.testing.assert_allclose(norm, np.linalg.norm(move), rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("learner", LEARNERS)
def test_compiled_or_not_a_learner_chooses_the_same(learner):
    gradients = np.random.default_rng(3).normal(size=(4, 3))
    state, path = learner.begin(3, PACE), SPACE.begin(jnp.ones(3))
    for gradient in map(jnp.asarray, gradients):
        seen = SPACE.see(path, gradient)
        eager = learner.update(state, seen, PACE)
        both = jax.jit(lambda s, p, g: learner.update(s, SPACE.see(p, g), PACE))(
            state, path, gradient
        )
        for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(both), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14)
        state, path = eager.state, SPACE.advance(path, gradient, eager, 1.0)


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_file_gives_the_same_learner_back(learner):
    assert learner_from_dict(learner_to_dict(learner)) == learner


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "nobody"}, "no learner 'nobody'"),
        ({"name": "falling"}, "has the settings"),
        ({"name": "falling", "nearest": float("nan")}, "nearest"),
        ({"name": "constant", "nearest": 1.0}, "has the settings"),
    ],
)
def test_a_file_with_another_learner_is_refused(given, said):
    with pytest.raises(errors.InvalidArgument, match=said):
        learner_from_dict(given)


def test_a_constant_step_needs_one():
    with pytest.raises(errors.InvalidArgument, match="give lipschitz"):
        next(follow(ConstantStep(), np.ones((1, 2)), Pace(1.0, 1)))


def test_a_step_that_takes_back_the_move_ends_at_0():
    before = np.random.default_rng(3).normal(size=9)
    before *= 0.4 / np.linalg.norm(before)
    moves = list(follow(ConstantStep(), np.stack([-before / 0.2, before / 0.2]), PACE))
    np.testing.assert_allclose(moves[0][0], before, atol=1e-15)
    np.testing.assert_allclose(moves[1][0], 0.0, atol=1e-15)
    assert moves[1][1] < 1e-7


def test_falling_steps_fall_to_0_and_probes_to_their_nearest():
    learner, gradients = Falling(nearest=0.25), np.ones((20, 2))
    lengths = [norm for _, norm in follow(learner, gradients, PACE)]
    np.testing.assert_allclose(lengths, 0.5 * (1 - np.arange(20) / 20))
    near = [float(learner.probing(jnp.asarray(float(step)), PACE)) for step in (0, 10, 19, 20)]
    np.testing.assert_allclose(near, [1.0, 0.5, 0.25, 0.25])


# -- steps that heed whether gradients agree ------------------------------------------------------


def lengths(gradients, pace, learner=None):
    """The length of each move of a heeding learner, as a share of what falling steps would have."""
    moves = follow(learner or Heeding(), gradients, pace)
    falling = 1.0 - np.arange(len(gradients)) / pace.steps
    return np.array([norm for _, norm in moves]) / (pace.reach * falling)


def descent(slope, start, pace):
    """Where a heeding learner gets to on a loss with this slope."""
    learner = Heeding()
    path = SPACE.begin(jnp.asarray(start))
    state = learner.begin(len(start), pace)
    for _ in range(pace.steps):
        gradient = jnp.asarray(slope(np.asarray(path.point)))
        choice = learner.update(state, SPACE.see(path, gradient), pace)
        state, path = choice.state, SPACE.advance(path, gradient, choice, 1.0)
    return np.asarray(path.point)


def test_steps_double_while_gradients_agree():
    np.testing.assert_allclose(lengths(np.ones((8, 3)), PACE), 2.0 ** np.arange(8), rtol=1e-9)


def test_steps_halve_while_gradients_point_back():
    back = np.outer(np.resize([1.0, -1.0], 8), np.ones(3))
    np.testing.assert_allclose(lengths(back, PACE), 0.5 ** np.arange(8), rtol=1e-9)


def test_what_may_be_noise_changes_no_length():
    gradients = np.random.default_rng(5).normal(size=(20, 4))
    loud = Pace(reach=0.5, steps=20, noise=10.0)
    np.testing.assert_allclose(np.ptp(lengths(gradients, loud)), 0.0, atol=1e-9)
    blurred = Pace(reach=0.5, steps=20, blur=0.3)
    np.testing.assert_allclose(lengths(gradients, blurred), 1.0, rtol=1e-9)
    # The power twin: without noise the same gradients change them.
    assert np.ptp(lengths(gradients, PACE)) > 0.1


def test_steps_along_nothing_but_noise_make_a_short_walk():
    """Of T steps of full length in d dimensions few lead anywhere; their walk is sqrt(T) steps long."""
    chance, pace = np.random.default_rng(9), Pace(reach=1.6, steps=64, noise=0.3)
    noise, deaf = 0.3 * chance.normal(size=(64, 60)), {"sure": 1e9}
    least = 0.8 * np.sqrt(60 / 64) / 1.6
    np.testing.assert_allclose(lengths(noise, pace, Heeding(**deaf)), least, rtol=0.05)
    # The power twins: steps are whole where something is heard, and where any walk will do.
    signal = noise + np.eye(60)[0] * 100.0
    assert np.min(lengths(signal, pace, Heeding(**deaf))) > 0.99
    np.testing.assert_allclose(lengths(noise, pace, Heeding(walk=1e9, **deaf)), 1.0)


@pytest.mark.parametrize("away", [1e-3, 1.0, 1e3])
def test_an_answer_at_any_distance_is_reached(away):
    pace = Pace(reach=1.6, steps=64)
    found = descent(lambda x: x - away, np.zeros(3), pace)
    assert np.max(np.abs(found - away)) < 0.02 * max(away, 0.1)
    kinked = descent(lambda x: np.sign(x - away), np.zeros(3), pace)
    assert np.max(np.abs(kinked - away)) < 0.05 * max(away, 0.3)


def test_the_heeding_learner_sees_the_units_of_nothing():
    gradients, units = np.random.default_rng(6).normal(size=(20, 4)), 1e6
    plain = lengths(gradients, Pace(reach=0.5, steps=20, noise=0.2))
    other = lengths(units * gradients, Pace(reach=0.5, steps=20, noise=0.2 * units))
    np.testing.assert_allclose(plain, other, rtol=1e-9)


@pytest.mark.parametrize("shown", [True, False])
def test_a_move_onto_a_plateau_is_taken_back_where_the_loss_is_shown(shown):
    learner, pace = Heeding(), Pace(reach=100.0, steps=64, value_noise=0.01)
    chance = np.random.default_rng(7)
    state, path = learner.begin(1, pace), SPACE.begin(jnp.zeros(1))
    for _ in range(pace.steps):
        off = float(path.point[0]) - 1.0
        near = abs(off) < 3.0
        gradient = jnp.asarray([np.sign(off) if near else 1e-9 * chance.normal()])
        seen = SPACE.see(path, gradient)
        if shown:
            seen.value = min(abs(off), 3.0) + pace.value_noise * chance.normal()
        choice = learner.update(state, seen, pace)
        state, path = choice.state, SPACE.advance(path, gradient, choice, 1.0)
    # The twin, which sees no loss, never comes back.
    assert (abs(float(path.point[0]) - 1.0) < 0.1) == shown


def test_a_rise_that_may_be_noise_takes_no_move_back():
    learner, pace = Heeding(), Pace(reach=1.0, steps=20, value_noise=1.0)
    path = SPACE.begin(jnp.zeros(2))
    state, kept = learner.begin(2, pace), []
    # A rise within the noise, one where the gradient is as long as it was, and one onto a plateau.
    for value, slope in ((0.0, 1.0), (4.0, 0.1), (9.0, 0.1), (14.0, 0.01)):
        gradient = jnp.asarray([slope, 0.0])
        seen = SPACE.see(path, gradient)
        seen.value = value
        choice = learner.update(state, seen, pace)
        state, path = choice.state, SPACE.advance(path, gradient, choice, 1.0)
        kept.append(float(choice.keep))
    assert kept == [0.0, 0.0, 0.0, -1.0]


def braked(values, noise=0.1, **settings):
    """How much of its length each step of a `Momentum` has left that is shown these losses."""
    learner, pace = Momentum(**settings), Pace(reach=1.0, steps=1000, value_noise=noise)
    state, path, shares = learner.init(), SPACE.begin(jnp.zeros(2)), []
    for step, value in enumerate(values):
        gradient = jnp.asarray([1.0, 0.5])
        seen = SPACE.see(path, gradient)
        seen.value = value
        choice = learner.update(state, seen, pace)
        shares.append(float(move_norm(seen, choice)) / (1.0 - step / pace.steps))
        state, path = choice.state, SPACE.advance(path, gradient, choice, 1.0)
    return np.array(shares)


def test_momentum_is_braked_where_the_loss_rises_beyond_its_noise():
    chance = np.random.default_rng(8)
    # With all of the noise that it is told of, one run in thirteen would be braked by chance.
    flat = 2.0 + 0.07 * chance.normal(size=200)
    falling = flat - np.linspace(0.0, 1.0, 200)
    np.testing.assert_allclose(braked(flat), 1.0, rtol=1e-6)
    np.testing.assert_allclose(braked(falling), 1.0, rtol=1e-6)
    np.testing.assert_allclose(braked(np.full(200, np.nan)), 1.0, rtol=1e-6)
    rising = flat + np.where(np.arange(200) < 50, 0.0, 1.0)
    shares = braked(rising)
    # Not before, and then once in each ten steps: the mean has to forget what was before.
    np.testing.assert_allclose(shares[:50], 1.0, rtol=1e-6)
    assert shares[60] == pytest.approx(0.5)
    changes = np.flatnonzero(np.abs(np.diff(shares)) > 1e-6)
    assert np.all(np.diff(changes) >= 10)
    # The twin, which does not brake.
    np.testing.assert_allclose(braked(rising, brake=1.0), 1.0, rtol=1e-6)
