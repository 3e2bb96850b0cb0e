"""Secret batches in the schedule and in the gate: who answers, what one record moves, what is shown."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from blindstep.errors import InvalidArgument
from blindstep.planning.noise import calibrated
from blindstep.planning.statement import statement
from blindstep.private import noise as noise_module
from blindstep.private.clip import clip, unit_of
from blindstep.private.mechanisms import MECHANISMS, Independent
from blindstep.private.noise import STD, fresh_keys, secret_steps
from blindstep.private.schedule import UNLIKELY, Kind, Schedule
from blindstep.private.secret_batches import presence_mu
from blindstep.private.terms import EFFECTIVE, PRESENCES, REPLACE, ZERO_OUT, Terms
from gates import block_of, lattice, make_gate, permit_of, releases_of
from hostile import tables
from matrices import OURS, dense

GRAD = Kind.GRAD
PUBLIC = fresh_keys(3).public
RECORDS, STEPS, SIZE = 40, 8, 3


def secret_terms(records=RECORDS, steps=STEPS, blocks=None, noise_std=0.7, neighbours=REPLACE):
    schedule = Schedule(records, records // steps, 1, 1, blocks or steps, secrecy=1e-8)
    return Terms(schedule, Independent(1), SIZE, 1.0, 1.0, noise_std, neighbours)


def orders(schedule, passes, seed=1):
    key = fresh_keys(seed).noise
    return np.stack([schedule.order(PUBLIC, key, turn) for turn in range(passes)])


# -- who answers -----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.integers(1, 30), st.integers(1, 40), st.integers(0, 2**32))
def test_each_record_answers_once_in_a_pass(records, batch, blocks, seed):
    schedule = Schedule(records, min(batch, records), 1, 1, blocks, secrecy=1e-9)
    steps, fit = schedule.blocks_per_pass, records // min(batch, records)
    assert steps & (steps - 1) == 0
    assert steps <= fit < 2 * steps
    assert schedule.passes == -(-blocks // steps)
    drawn = np.random.default_rng(seed).integers(steps, size=(schedule.passes, records))
    taken = np.zeros((schedule.passes, records), int)
    for release in range(schedule.releases):
        turn = release // schedule.releases_per_pass
        rows = schedule.rows(drawn[turn], release)
        assert schedule.batch_of(GRAD) <= records
        np.add.at(taken[turn], rows, 1)
    assert taken.max() <= 1
    assert np.all(taken[: blocks // steps] == 1)  # whole passes leave nobody out


def test_steps_follow_the_secret_key_and_nothing_else():
    schedule = Schedule(200, 25, 1, 1, 80, secrecy=1e-9)
    key = fresh_keys(1).noise
    first = schedule.order(PUBLIC, key, 0)
    np.testing.assert_array_equal(schedule.order(fresh_keys(9).public, key, 0), first)
    other = Schedule(200, 25, 9, 1, 8, secrecy=1e-5)
    np.testing.assert_array_equal(other.order(PUBLIC, key, 0), first)
    assert np.mean(schedule.order(PUBLIC, fresh_keys(2).noise, 0) == first) < 0.3
    # A change of any bit of the key is another allocation.
    words = key.words().copy()
    words[7] ^= 1
    assert np.mean(secret_steps(words, 0, 200, 8) == first) < 0.3


def test_steps_are_uniform_independent_and_drawn_anew_in_each_pass():
    schedule = Schedule(16_384, 2048, 1, 1, 1, secrecy=1e-9)
    steps, number = orders(schedule, 12), schedule.records
    assert schedule.blocks_per_pass == 8
    pairs = [(steps[turn], np.roll(steps[turn], shift)) for turn in range(3) for shift in (1, 16)]
    # A record in two passes; beside another one; across the words of a block of the cipher.
    pairs += [(steps[one], steps[two]) for one in range(4) for two in range(one)]
    for one, two in pairs:
        seen = np.histogram2d(one, two, bins=8)[0]
        statistic = np.sum((seen - number / 64) ** 2 / (number / 64))
        assert 1e-7 < stats.chi2.sf(statistic, 63) < 1 - 1e-7
    # Power: one allocation for two passes, or one that moves on by a step.
    for two in (steps[0], (steps[0] + 1) % 8):
        seen = np.histogram2d(steps[0], two, bins=8)[0]
        assert stats.chi2.sf(np.sum((seen - number / 64) ** 2 / (number / 64)), 63) < 1e-100


def test_steps_and_noise_read_different_parts_of_the_stream(monkeypatch):
    """Their nonces differ in the first word, whatever the release and the pass."""
    seen, real = [], noise_module.chacha20

    def noted(key, nonce, blocks):
        seen.append(np.asarray(nonce).reshape(3, -1))
        return real(key, nonce, blocks)

    monkeypatch.setattr(noise_module, "chacha20", noted)
    monkeypatch.setattr(noise_module, "_stream", noted)
    key = fresh_keys(1).noise.words()
    for number in range(3):
        secret_steps(key, number, 20, 4)
        with jax.enable_x64(True):
            noise_module.lattice_noise(jnp.asarray(key), jnp.asarray(number), 2)
    steps, noise = seen[::2], seen[1::2]
    assert len({int(each[0, 0]) for each in steps}) == len({int(each[0, 0]) for each in noise}) == 1
    assert steps[0][0, 0] != noise[0][0, 0]
    assert len({int(each[1, 0]) for each in steps}) == 3


def test_the_number_of_steps_is_a_power_of_two():
    for steps in (0, 3, 12, 2**33):
        with pytest.raises(InvalidArgument, match="a power of two gives each record the same"):
            secret_steps(fresh_keys(1).noise.words(), 0, 10, steps)


@pytest.mark.parametrize("records", [10, 1000, 100_000, 10_000_000])
@pytest.mark.parametrize("batch", [1, 8, 500])
def test_there_are_places_for_all_who_may_come(records, batch):
    schedule = Schedule(records, min(batch, records // 2), 1, 1, 4, secrecy=1e-9)
    share, places = 1 / schedule.blocks_per_pass, schedule.batch_of(GRAD)
    assert places == records or stats.binom.logsf(places, records, share) < math.log(UNLIKELY)
    # Not many more than that needs.
    mean = records * share
    assert places <= mean + 93 + 17 * math.sqrt(mean)
    assert schedule.divisor_of(GRAD) == mean


@pytest.mark.parametrize("period", [2, 4])
def test_noise_that_releases_share_is_refused_with_the_reason(period):
    with pytest.raises(InvalidArgument, match="where releases share their noise"):
        Schedule(100, 5, 5, period, 4, secrecy=1e-9)
    for secrecy in (1e-51, 1.0, -1e-9):
        with pytest.raises(InvalidArgument, match="at least 1e-50"):
            Schedule(100, 5, 5, 1, 4, secrecy=secrecy)
    assert not Schedule(100, 5, 5, period, 4).secret


# -- what is released ------------------------------------------------------------------------------


def rounded_sum(vectors, bound, places):
    with jax.enable_x64(True):
        whole = np.asarray(clip(jnp.asarray(vectors), bound, places))
    return whole.sum(axis=0) * unit_of(bound, places)


@pytest.mark.parametrize("together", [1, 3, 64])
def test_a_release_is_the_sum_by_the_public_divisor_on_its_own_noise(together):
    """Whoever answers, and however many; the same bits however many are asked at once."""
    terms, data = secret_terms(blocks=2 * STEPS), np.random.default_rng(0).normal(size=(RECORDS, 3))
    gate, width, sizes = make_gate(terms, seed=5), terms.noise_std / STD, set()
    key = jnp.asarray(fresh_keys(5).noise.words())
    draws = np.asarray(noise_module.lattice_noise(key, jnp.arange(2 * STEPS), SIZE))
    data[0] = 1e9  # what stands in an empty place must not count
    for number in range(2 * STEPS):
        rows = gate.rows(number)
        sizes.add(len(rows))
        mean = rounded_sum(data[rows], 1.0, terms.schedule.batch_of(GRAD)) / (RECORDS / STEPS)
        draw = draws[number]
        found = block_of(gate, data, together)[0]
        np.testing.assert_array_equal(found, width * (np.rint(mean / width) + draw))
    assert len(sizes) > 3


def test_a_step_that_nobody_is_in_is_noise_alone():
    terms = secret_terms(records=8, steps=8)
    gate = next(
        gate
        for gate in (make_gate(terms, seed=seed) for seed in range(50))
        if any(len(gate.rows(number)) == 0 for number in range(8))
    )
    data, silent = np.full((8, SIZE), 1e6), np.zeros((8, SIZE))
    empty = [number for number in range(8) if len(gate.rows(number)) == 0]
    full = np.concatenate([block_of(gate, data) for _ in range(8)])
    again = make_gate(terms, seed=0)
    again._key = gate._key
    none = np.concatenate([block_of(again, silent) for _ in range(8)])
    same = np.all(full == none, axis=1)
    assert np.flatnonzero(same).tolist() == empty


CASES = 60


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), left_out=st.booleans())
def test_hostile_neighbours_move_one_release_of_a_pass_by_its_cost_at_most(seed, left_out):
    """Of hostile tables: a record that is replaced, or one whose vectors are nothing."""
    rng = np.random.default_rng(seed)
    terms = secret_terms(blocks=2 * STEPS)
    keys = int(rng.integers(100))
    gates = [make_gate(terms, seed=keys) for _ in range(2)]
    data = tables(rng, (CASES, RECORDS, SIZE), 1.0)
    record = rng.integers(0, RECORDS, CASES)
    other = data.copy()
    other[np.arange(CASES), record] = np.nan if left_out else tables(rng, (CASES, SIZE), 1.0)
    first, second = terms.costs()
    bound = float((first * (1 if left_out else 2) + second * terms.noise_std)[0])
    for number in range(2 * STEPS):
        inside = np.isin(record, gates[0].rows(number))
        one, two = (
            lattice(terms, block_of(gate, each))
            for gate, each in zip(gates, (data, other), strict=True)
        )
        moved = np.linalg.norm((one - two)[:, 0], axis=1) * (terms.noise_std / STD)
        assert np.all(moved[~inside] == 0.0)
        assert np.all(moved <= bound)


def test_a_worst_case_reaches_the_length_that_is_accounted_for():
    terms = secret_terms()
    data = np.zeros((RECORDS, SIZE))
    other = data.copy()
    other[7, 0] = 1e6
    one, two = (
        np.concatenate([block_of(gate, each) for _ in range(STEPS)])
        for gate, each in ((make_gate(terms), data), (make_gate(terms), other))
    )
    moved = np.linalg.norm(one - two)
    assert moved == pytest.approx(1.0 / (RECORDS / STEPS), rel=1e-5)
    (first,), (second,) = terms.costs()
    assert 0.99 * (first + second * terms.noise_std) <= moved <= first + second * terms.noise_std
    # c of the accountant is that, in standard deviations of the noise.
    c = (first + second * terms.noise_std) / terms.noise_std
    assert terms.mu_per_pass() == pytest.approx(2 * presence_mu(c, STEPS, 1e-8), rel=1e-6)


# -- what it costs ---------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(
    st.floats(0.01, 1.5),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from(sorted(PRESENCES)),
    st.floats(-14.0, -7.0),
)
def test_calibration_never_overshoots_and_wastes_little(mu, log, passes, neighbours, exponent):
    steps = 2**log
    schedule = Schedule(1000 * steps, 1000, 1000, 1, passes * steps, secrecy=10.0**exponent)
    terms = calibrated(schedule, Independent(1), 5, 1.0, 1.0, mu, neighbours)
    assert 0.99 * mu <= terms.mu() <= mu
    assert terms.mu() == terms.mu_per_pass() * math.sqrt(passes)
    assert terms.secrecy() == passes * terms.secrecy_per_pass() >= passes * schedule.secrecy
    public = Schedule(1000 * steps, 1000, 1000, 1, passes * steps)
    loud = calibrated(public, Independent(1), 5, 1.0, 1.0, mu, neighbours)
    assert terms.noise_std <= loud.noise_std * (1 + 1e-5)
    assert loud.secrecy() == 0.0


@pytest.mark.parametrize(
    ("blocks", "counted"), [(1, 1), (3, 3), (STEPS, STEPS), (STEPS + 1, STEPS)]
)
def test_a_part_of_a_pass_is_accounted_for_as_what_is_made(blocks, counted):
    """A run that ends within its first pass makes some of its steps; a later pass counts as whole."""
    terms = secret_terms(blocks=blocks)
    first, second = terms.costs()
    c = float((first / terms.noise_std + second)[0]) / EFFECTIVE
    claimed = 2 * presence_mu(c, STEPS, 1e-8, counted)
    assert terms.mu_per_pass() == pytest.approx(claimed, rel=1e-9)
    assert terms.mu() == terms.mu_per_pass() * math.sqrt(-(-blocks // STEPS))
    spent = calibrated(terms.schedule, Independent(1), SIZE, 1.0, 1.0, 0.2)
    assert 0.99 * 0.2 <= spent.mu() <= 0.2


def test_leaving_out_is_half_of_replacing():
    parts = [secret_terms(neighbours=each) for each in (REPLACE, ZERO_OUT)]
    replaced, left_out = (terms.mu() for terms in parts)
    assert replaced == 2 * left_out
    replaced, left_out = (terms.secrecy() for terms in parts)
    assert 2 * left_out < replaced < 10 * left_out
    assert left_out == 1e-8
    open_batches = [
        Terms(Schedule(40, 5, 5, 1, 8), Independent(1), SIZE, 1.0, 1.0, 0.7, each).mu()
        for each in (REPLACE, ZERO_OUT)
    ]
    assert open_batches[0] == pytest.approx(2 * open_batches[1], rel=1e-4)  # but for the lattice


def test_public_batches_are_gaussian_private_up_to_what_noise_ends_at():
    open_ = Terms(Schedule(40, 5, 5, 1, 8), Independent(1), SIZE, 1.0, 1.0, 0.7)
    assert open_.slack() < 1e-50
    said = statement(open_, 1e-5, seeded=False)
    assert said.secrecy == 0.0
    assert "secret" not in str(said).replace("its secrecy is", "").replace("(and secrecy)", "")
    hidden = statement(secret_terms(), 1e-5, seeded=False)
    assert hidden.secrecy > 0.0
    assert f"one of {STEPS} in a pass, by a secret key" in str(hidden)
    assert "anyone who does not see when a record is read" in str(hidden)
    # The event that a batch has more records than places is in the slack.
    assert secret_terms().slack() >= STEPS * UNLIKELY


# -- what is shown ---------------------------------------------------------------------------------


def test_nothing_says_who_answers_or_how_many(capfd, caplog):
    """In words, in refusals, in shapes: permits of all keys look the same."""
    terms, shapes = secret_terms(records=64, steps=8), set()
    for seed in range(5):
        gate = make_gate(terms, seed=seed)
        permit, memory = permit_of(gate, 8)
        assert repr(permit) == "Permit(secret)"
        shapes.add(tuple(np.shape(leaf) for leaf in jax.tree.leaves((permit, memory))))
        number = len(gate.rows(0))
        with pytest.raises(InvalidArgument) as refused:
            gate.in_places(0, np.zeros((number + 1, 2)))
        assert not any(word.isdigit() for word in str(refused.value).split())
        padded = gate.in_places(0, np.ones((number, 2)))
        assert padded.shape == (terms.schedule.batch_of(GRAD), 2)
        assert padded.sum() == 2 * number
    assert len(shapes) == 1
    written = "".join(capfd.readouterr()) + caplog.text
    assert written == ""


def test_a_permit_of_some_rows_alone_changes_no_bit():
    """As records on a disk are read: only those of the batch."""
    terms = secret_terms(blocks=STEPS)
    data = np.random.default_rng(1).normal(size=(RECORDS, SIZE))
    whole = make_gate(terms).through(releases_of(data, [GRAD] * STEPS), STEPS)

    def alone(permit, memory):
        rows, few = permit.alone()
        return releases_of(data[rows], [GRAD] * STEPS)(few, memory)

    np.testing.assert_array_equal(make_gate(terms).through(alone, STEPS), whole)


def test_every_mechanism_but_independent_noise_is_refused():
    schedule = Schedule(RECORDS, 5, 5, 1, 8, secrecy=1e-8)
    # Of a block of one release every mechanism is independent noise.
    for name in OURS:
        assert dense(name, 1) == [[1.0]]
        Terms(schedule, MECHANISMS[name](1), SIZE, 1.0, 1.0, 0.7)
    with pytest.raises(InvalidArgument, match="Take the independent mechanism"):
        Schedule(RECORDS, 5, 5, 2, 8, secrecy=1e-8)
