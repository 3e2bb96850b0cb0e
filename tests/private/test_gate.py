"""The gate: what it releases, in which order things happen, and what stays secret."""

import copy
import math
import pickle
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from blindstep.errors import HorizonExceeded, InvalidArgument, SecretCopied
from blindstep.private.gate import (
    Contributions,
    Memory,
    Port,
    number_of_rows,
)
from blindstep.private.mechanisms import MECHANISMS
from blindstep.private.noise import STD, fresh_keys, lattice_noise
from blindstep.private.schedule import Kind, Schedule
from blindstep.private.terms import Terms
from dataflow import decisions
from gates import (
    Till,
    batches_of,
    block_of,
    make_gate,
    make_terms,
    of_rows,
    one_block,
    permit_of,
    release_answers,
    release_records,
    releases_of,
)
from matrices import OURS, dense

GRAD, DIFF = Kind.GRAD, Kind.DIFF
every_mechanism = pytest.mark.parametrize("name", OURS)
ROWS = 9  # of one block of the default terms


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def noise_of(seed, numbers, size):
    key = jnp.asarray(fresh_keys(seed).noise.words())
    return np.asarray(jax.jit(lattice_noise, static_argnums=2)(key, jnp.asarray(numbers), size))


DATA = normal(2 * ROWS, 3)


# -- what is released ------------------------------------------------------------------------------


def dense_formula(gate, data, block, seed):
    """y = gamma (rint(C m / gamma) + z), from the definition, with clips in real numbers."""
    terms, period = gate.terms, gate.terms.schedule.period
    norms = np.linalg.norm(data, axis=1, keepdims=True)
    means = []
    for place, rows in enumerate(batches_of(gate, block)):
        bound = terms.diff_clip if place else terms.first_clip
        means.append(np.mean(data[rows] * np.minimum(1, bound / norms[rows]), axis=0))
    width = terms.noise_std / STD
    numbers = np.arange(block * period, (block + 1) * period)
    snapped = np.rint(dense(terms.mechanism.name, period) @ np.stack(means) / width)
    return width * (snapped + noise_of(seed, numbers, terms.size))


@every_mechanism
@pytest.mark.parametrize("period", [1, 4])
def test_a_release_is_the_dense_formula_on_the_same_noise(name, period):
    """Two blocks, in two passes: the second forgets the first, its rows and noise are others."""
    records = 3 + 2 * (period - 1)
    gate = make_gate(make_terms(name, period, records=records), seed=5)
    data = normal(records, 3)
    for block in (0, 1):
        expected = dense_formula(gate, data, block, seed=5)
        np.testing.assert_array_equal(block_of(gate, data), expected)


@pytest.mark.parametrize(("scale", "right"), [(1.0, True), (0.9, False)])
def test_releases_have_the_noise_that_is_claimed(scale, right):
    gate = make_gate(make_terms("blt", 4, 5000), seed=1)
    released = scale * block_of(gate, np.zeros((2 * ROWS, 5000))) / 0.7
    for row in released:
        assert bool(5e-7 < stats.chi2.cdf(np.sum(row**2), 5000) < 1 - 5e-7) is right
    products = np.corrcoef(released)[np.triu_indices(4, 1)] * math.sqrt(5000)
    assert np.abs(products).max() < 5.5  # at 1e-6: independent over releases


def test_how_many_are_asked_at_once_changes_no_bit():
    terms = make_terms("tree", 2, 20, batches=(40, 11))
    records = terms.schedule.records
    data = normal(records, 20) * np.geomspace(1e-3, 1e3, records)[:, None]
    whole = block_of(make_gate(terms), data, together=64)
    np.testing.assert_array_equal(block_of(make_gate(terms), data, together=7), whole)


def test_rows_and_places_of_the_batch_go_together():
    """A record that is asked in a place where it does not belong gives NaN, and so counts 0."""
    gate = make_gate(make_terms())
    permit, memory = permit_of(gate)

    @eqx.filter_jit
    def release(permit, memory, batch):
        def of(rows, places):
            belongs = batch[places] == rows
            return jnp.where(belongs[:, None], jnp.ones((2, 3)), jnp.nan)

        return permit.release(memory, GRAD, Contributions(2, of))[1]

    found = [release(permit, memory, batch) for batch in (gate.rows(0), gate.rows(0)[::-1].copy())]
    expected = gate.through(releases_of(np.ones((2 * ROWS, 3)), [GRAD]))[0]
    np.testing.assert_array_equal(found[0], expected)
    assert np.all(found[1] != expected)


def test_records_and_answers_are_released_like_their_vectors():
    """Whichever way, at once or in chunks: `held` numbers of a record decide how many per call."""
    data, gate = {"one": jnp.asarray(DATA), "more": jnp.zeros((20, 2))}, make_gate(make_terms())
    permit, memory = permit_of(gate)
    expected = gate.through(releases_of(DATA, [GRAD]))[0]
    asked = []

    def vector(records):
        asked.append(len(records["one"]))
        return records["one"]

    for held, size in ((1, 3), (2**19, 2), (2**21, 1)):
        after, released = release_records(permit, memory, GRAD, data, vector, held)
        np.testing.assert_array_equal(released, expected)
        assert (int(after.position), asked.pop()) == (1, size)
        asked.clear()
    answers = jnp.asarray(DATA[gate.rows(0)])
    _, released = release_answers(permit, memory, GRAD, answers, lambda own: own)
    np.testing.assert_array_equal(released, expected)


def test_each_record_has_a_row_or_an_answer_of_its_own():
    """JAX would take the last row for every index past the end: one record would count many times."""
    gate = make_gate(make_terms())
    permit, memory = permit_of(gate)
    give = lambda records: records  # noqa: E731
    short = jnp.asarray(DATA[:-1])
    with pytest.raises(InvalidArgument, match="data of 17 rows for 18 records"):
        release_records(permit, memory, GRAD, short, give, 3)
    with pytest.raises(InvalidArgument, match="data of 17 rows for 18 records"):
        release_records(permit, memory, GRAD, [short, DATA], lambda both: both[0], 3)
    for number in (0, 1, 2, 4):
        with pytest.raises(InvalidArgument, match=f"{number} answers for a batch of 3 records"):
            release_answers(permit, memory, GRAD, jnp.zeros((number, 3)), give)
    # A permit for its own rows alone takes data of just these.
    rows, own = permit.alone()
    expected = release_records(permit, memory, GRAD, jnp.asarray(DATA), give, 3)[1]
    alone = release_records(own, memory, GRAD, jnp.asarray(DATA[rows]), give, 3)[1]
    np.testing.assert_array_equal(alone, expected)
    with pytest.raises(InvalidArgument, match="data of 2 rows for 3 records"):
        release_records(own, memory, GRAD, jnp.asarray(DATA[rows[:2]]), give, 3)
    # Nothing was released: the same release can still be made, once.
    assert isinstance(gate.memory, Memory)
    assert int(gate.memory.position) == 0
    assert number_of_rows({"no": None}) is None


# -- order: charge, then release, each once --------------------------------------------------------


def test_nothing_runs_before_the_charge_and_nothing_after_a_refusal():
    till, seen = Till(refuse=2), []
    gate = make_gate(make_terms(), port=till)
    assert isinstance(till, Port)

    def program(kind):
        def run(permit, memory):
            seen.append(list(till.charges))
            return releases_of(DATA, [kind])(permit, memory)

        return run

    answers = np.ones(3)
    gate.through(program(GRAD), answers=answers)
    gate.through(program(DIFF))
    assert [charged[-1] for charged in seen] == [(0, 1, answers), (1, 1, None)]
    before = gate.memory
    for _ in range(2):
        with pytest.raises(PermissionError):
            gate.through(program(DIFF))
    assert len(seen) == gate.position == 2
    assert gate.memory is before


def test_past_the_last_release_is_an_error_and_charges_nothing():
    till = Till()
    gate = make_gate(make_terms(), port=till)
    block_of(gate, DATA)
    for count in (0, 5, -1):
        with pytest.raises(HorizonExceeded, match="of a run of 8"):
            gate.through(releases_of(DATA, [GRAD]), count)
    block_of(gate, DATA)
    with pytest.raises(HorizonExceeded, match=r"releases 8 \.\. 8 of a run of 8"):
        gate.through(releases_of(DATA, [GRAD]))
    assert till.charges == [(0, 4, None), (4, 4, None)]


@pytest.mark.parametrize(("place", "kind"), [(0, GRAD), (3, DIFF)])
def test_a_memory_of_another_place_releases_nothing(place, kind):
    """The permit is for releases 1 and 2: neither one made before nor one that was not charged."""
    start = make_gate(make_terms()).memory
    permit, _ = permit_of(make_gate(make_terms(), memory=at(start, 1)), 2)
    with pytest.raises(HorizonExceeded, match=f"release {place} as a {kind.name} is not permitted"):
        permit.release(at(start, place), kind, of_rows(DATA, 2))


@pytest.mark.parametrize(("made", "kind"), [([], DIFF), ([GRAD], GRAD), ([GRAD, DIFF], DIFF)])
def test_outside_of_a_program_what_is_not_permitted_raises(made, kind):
    """Of another kind, or past the range of 2."""
    gate = make_gate(make_terms())

    def program(permit, memory):
        if made:
            memory, _ = releases_of(DATA, made)(permit, memory)
        return permit.release(memory, kind, of_rows(DATA, 2))

    with pytest.raises(
        HorizonExceeded, match=f"release {len(made)} as a {kind.name} is not permit"
    ):
        gate.through(program, 2)
    assert gate.position == 0


@pytest.mark.parametrize("kinds", [[GRAD], [GRAD, DIFF, DIFF]])
def test_a_program_that_makes_fewer_or_more_releases_is_refused(kinds):
    gate = make_gate(make_terms())
    with pytest.raises(InvalidArgument, match=f"2 releases were charged and {len(kinds)} made"):
        gate.through(releases_of(DATA, kinds), 2)
    assert gate.position == 0


@every_mechanism
def test_inside_a_program_another_kind_is_nan_and_stays_out_of_the_rest(name):
    """A DIFF in the place of a GRAD would count the records of the next release twice."""
    gate = make_gate(make_terms(name))
    first, *later = gate.through(releases_of(DATA, [DIFF] * 4), 4)
    assert np.isnan(first).all()
    right = block_of(make_gate(make_terms(name)), DATA)
    remembers = dense(name, 4)[1:, 0] > 0
    for row, expected, remembered in zip(later, right[1:], remembers, strict=True):
        if remembered:
            assert np.isnan(row).all()
        else:
            assert np.isnan(row).all() or np.array_equal(row, expected)
    # The next block has nothing to do with it.
    assert np.isfinite(block_of(gate, DATA)).all()


def test_inside_a_program_what_is_past_the_range_is_nan():
    permit, memory = permit_of(make_gate(make_terms()), 2)
    _, released = releases_of(DATA, [GRAD, DIFF, DIFF, DIFF, GRAD])(permit, memory)
    assert np.isfinite(released[:2]).all()
    assert np.isnan(released[2:]).all()


def test_one_program_at_a_time():
    """Two would have the same numbers, and so the same noise: their difference would have none."""
    gate = make_gate(make_terms())
    with pytest.raises(InvalidArgument, match="one at a time"):
        gate.through(lambda permit, memory: gate.through(releases_of(DATA, [GRAD])))
    refused = []

    def other():
        try:
            gate.through(releases_of(DATA, [GRAD]))
        except InvalidArgument as error:
            refused.append(error)

    def program(permit, memory):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return releases_of(DATA, [GRAD])(permit, memory)

    gate.through(program)
    assert len(refused) == gate.position == 1


def test_a_gate_works_in_64_bits_wherever_it_is_called():
    terms, data = make_terms("tree", 1, blocks=1), normal(3, 3).astype(np.float32)
    expected = block_of(make_gate(terms), data)
    with jax.enable_x64(False):
        released = block_of(make_gate(terms), data)
    assert released.dtype == np.float64
    np.testing.assert_array_equal(released, expected)


def test_a_gate_goes_on_where_a_checkpoint_stood():
    terms = make_terms("blt", 4)
    whole, gate, released = make_gate(terms), make_gate(terms), []
    expected = np.concatenate([block_of(whole, DATA), block_of(whole, DATA)])
    for kinds in ([GRAD, DIFF], [DIFF, DIFF], [GRAD, DIFF], [DIFF, DIFF]):
        released.append(gate.through(releases_of(DATA, kinds), len(kinds)))
        gate = make_gate(terms, memory=gate.memory)
    np.testing.assert_array_equal(np.concatenate(released), expected)


def test_rows_follow_the_schedule_through_passes():
    gate = make_gate(make_terms(records=2 * ROWS + 3, blocks=5))
    schedule = gate.terms.schedule
    for release in (0, 7, 8, 19, 3):
        order = schedule.order(
            gate.public, fresh_keys(0).noise, release // schedule.releases_per_pass
        )
        np.testing.assert_array_equal(gate.rows(release), schedule.rows(order, release))
    with pytest.raises(InvalidArgument, match="release 20 is not one"):
        gate.rows(20)


def test_releases_of_a_permit_have_the_rows_of_the_schedule():
    """Over the ends of blocks and passes: a vector of ones from the batch alone gives a mean of 1."""
    terms = make_terms("independent", 3, 1, records=2 * 7 + 3, blocks=5, noise_std=1e-3)
    for first in (0, 1, 2, 5):
        gate = make_gate(terms, memory=at(make_gate(terms).memory, first))
        numbers = range(first, first + 9)
        kinds = [terms.schedule.kind_of(number) for number in numbers]
        permit, memory = permit_of(gate, 9)
        for number, kind in zip(numbers, kinds, strict=True):
            data = np.zeros((17, 1))
            data[gate.rows(number)] = 0.5
            memory, (mean,) = releases_of(data, [kind])(permit, memory)
            assert mean[0] == pytest.approx(0.5, abs=7e-3)


def at(memory, position):
    return eqx.tree_at(lambda m: m.position, memory, jnp.asarray(position, jnp.int32))


def test_the_last_number_has_noise_of_its_own_and_the_one_after_it_none():
    schedule, last = Schedule(1, 1, 1, 1, 2**31 - 1), 2**31 - 2
    terms = Terms(schedule, MECHANISMS["independent"](1), 1, 1.0, 1.0, 1.0)
    gate = make_gate(terms, memory=at(make_gate(terms).memory, last))
    (released,) = gate.through(releases_of(np.zeros((1, 1)), [GRAD], together=1))
    np.testing.assert_array_equal(released, noise_of(0, [last], 1)[0] * (1.0 / STD))
    with pytest.raises(HorizonExceeded):
        gate.through(releases_of(np.zeros((1, 1)), [GRAD], together=1))


def test_runs_that_differ_in_clip_and_noise_share_a_program():
    traced = []

    @eqx.filter_jit
    def release(permit, memory):
        traced.append(permit.terms.size)
        give = Contributions(3, lambda rows, places: jnp.full((3, 3), 9.0))
        return permit.release(memory, GRAD, give)

    found = []
    for clip, noise_std in ((1.0, 0.7), (2.0, 1.4)):
        gate = make_gate(make_terms(clips=(clip, clip), noise_std=noise_std))
        found.append(gate.through(release))
    assert traced == [3]
    np.testing.assert_allclose(found[1], 2 * found[0], rtol=1e-5)


# -- speed changes no bit --------------------------------------------------------------------------


def test_noise_drawn_ahead_and_data_of_its_rows_alone_change_no_bit():
    terms, kinds = make_terms("tree", 3), [DIFF, DIFF, GRAD, DIFF]
    data = normal(terms.schedule.records, 3)
    gate = make_gate(terms)
    gate.through(releases_of(data, [GRAD]))
    permit, memory = permit_of(gate, 4)
    run = lambda permit, data: releases_of(data, kinds)(permit, memory)[1]  # noqa: E731
    expected = run(permit, data)
    assert np.isfinite(expected).all()
    rows, own = permit.alone()
    assert sorted(rows) == sorted(np.concatenate([gate.rows(t) for t in (1, 2, 3, 4)]))
    alone = np.full_like(data, np.nan)  # of the same shape, so that nothing is compiled again
    alone[: len(rows)] = data[rows]
    np.testing.assert_array_equal(run(own, alone), expected)
    drawn = eqx.filter_jit(lambda permit, memory: permit.drawn(memory, 6))
    np.testing.assert_array_equal(run(drawn(permit, memory), data), expected)
    np.testing.assert_array_equal(run(drawn(own, memory), alone), expected)
    # A stock that ends too early, or begins too late, gives NaN: never the draw of another release.
    early, late = (run(drawn(permit, at(memory, first)), data) for first in (-3, 3))
    np.testing.assert_array_equal(early[:2], expected[:2])
    assert np.isnan(early[2:]).all()
    assert np.isnan(late[:2]).all()


# -- what is secret --------------------------------------------------------------------------------


def test_what_holds_the_noise_key_cannot_be_copied_pickled_or_printed():
    gate = make_gate(make_terms())
    words = [str(word) for word in fresh_keys(0).noise.words()]
    for secret in (gate, *permit_of(gate)):
        for refused in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(SecretCopied, match="same noise"):
                refused(secret)
        for shown in (repr(secret), str(secret), f"{[secret]}"):
            assert "(secret)" in shown
            assert not any(word in shown for word in words)


@pytest.mark.parametrize("shape", [(2, 4), (3, 3)])
def test_vectors_of_another_shape_are_refused(shape):
    give = Contributions(2, lambda rows, places: jnp.zeros(shape))
    permit, memory = permit_of(make_gate(make_terms()))
    with pytest.raises(InvalidArgument, match=r"the gate takes \(2, 3\)"):
        jax.eval_shape(lambda: permit.release(memory, GRAD, give)[1])


@every_mechanism
def test_no_branch_of_a_release_hangs_on_records_key_or_noise(name):
    """Values may depend on them; which operations run may not."""
    permit, memory = permit_of(make_gate(make_terms(name)), 4)

    def block(key, buffers, data):
        own = eqx.tree_at(lambda p: p.key, permit, key)
        start = eqx.tree_at(lambda m: m.buffers, memory, buffers)
        after, released = one_block(own.drawn(start, 4), start, data)
        return released, after.buffers

    def peeking(key, buffers, data):
        return jax.lax.cond(block(key, buffers, data)[0][0, 0] > 0, jnp.sin, jnp.cos, data)

    secret = (permit.key, memory.buffers, jnp.asarray(DATA))
    assert decisions(jax.make_jaxpr(block)(*secret), [True] * 3) == []
    if name == "independent":  # the power twin
        for marked in ([True, False, False], [False, False, True]):
            assert decisions(jax.make_jaxpr(peeking)(*secret), marked) == ["cond"]


# -- long ------------------------------------------------------------------------------------------


@pytest.mark.slow
@every_mechanism
def test_noise_of_many_releases(optimised, name):
    """All coordinates of 64 releases: variance, correlation between releases, at 1e-6."""
    terms = make_terms(name, 64, 4000, batches=(1, 1), blocks=1)
    released = block_of(make_gate(terms, seed=2), np.zeros((64, 4000)), together=1) / 0.7
    assert 5e-7 < stats.chi2.cdf(np.sum(released**2), released.size) < 1 - 5e-7
    products = np.corrcoef(released)[np.triu_indices(64, 1)] * math.sqrt(4000)
    assert stats.kstest(products, "norm").pvalue > 1e-6
