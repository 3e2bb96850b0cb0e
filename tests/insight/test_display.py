"""What a notebook shows: the numbers that matter, escaped, and nothing that is not public."""

import re
from dataclasses import replace

import numpy as np
import pytest

import blindstep as bs
from blindstep.insight.report_markup import rounded_up, text
from blindstep.planning.statement import SEEDED
from driver_runs import DATA, PLAN, run
from leaks import leaks, private_values
from losses import capped_distance


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("display")
    return place, run("compiled", place / "run", seed=None)


def test_a_result_shows_its_outcome_answer_and_cost_and_nothing_private(place):
    page = place[1]._repr_html_()
    assert text(place[1].outcome) in page
    assert f">{rounded_up(place[1].privacy.epsilon)}<" in page
    assert "<svg" in page
    assert text(SEEDED) not in page
    released = {form(x) for x in place[1].means.ravel() for form in (repr, "{:.6g}".format)}
    values = set(private_values(place[0] / "run")) - released
    assert not leaks(page, values)
    assert leaks(f"{page} {max(values, key=len)}", values)


def test_the_curve_of_a_loss_says_how_large_its_noise_is():
    plan = bs.plan(bs.Auto(passes=8), dim=2, records=24, privacy=bs.Privacy(mu=2.0))
    result = run("compiled", plan=plan)
    loss, std = result.history.loss, result.history.loss_std
    share = std / np.sqrt(loss.shape[1]) / loss[0].mean()
    assert f"standard deviation is {share:.1%} of the first" in result._repr_html_()


def test_each_of_the_others_shows_its_numbers(place):
    statement = replace(place[1].privacy, seeded=True)
    assert text(SEEDED) in statement._repr_html_()
    assert all(f">{name}<" in PLAN._repr_html_() for name, _, _ in PLAN.rows())
    value = bs.value(capped_distance, np.zeros(2), DATA, bs.Privacy(mu=1.0), largest=3.0)
    assert f">{value.mean:.4g}<" in value._repr_html_()


def test_words_are_escaped(place):
    shown = replace(place[1].privacy, unit="one record of <b>A & B</b>")._repr_html_()
    assert "&lt;b&gt;A &amp; B&lt;/b&gt;" in shown
    assert not re.findall(r"https?:|<script|\bsrc=", shown)
