"""Reports: complete, of one file, with nothing in them that is secret or private."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

import blindstep as bs
from blindstep.cli import app
from blindstep.insight import report_content as content
from blindstep.insight.certificate import Certificate
from blindstep.insight.report import report_run_directory
from blindstep.insight.report_content import noise_norms
from blindstep.insight.report_markup import _binned, rounded, rounded_up, scientific, text
from blindstep.planning.statement import SECRECY, SEEDED, round_up
from driver_runs import DATA, HORIZON, STEPS, cut_after, run
from leaks import leaks, private_values
from losses import capped_distance, capped_distance_numpy

OUTSIDE = r"https?:|//|url\(|\bsrc=|@import|<link|<script|<iframe|<object|<embed|<base|xlink|srcset"
SECTIONS = (
    "What this means for a person",
    "The guarantee in numbers",
    "What an attacker could gain",
    "What was audited",
    "The learned parameters",
    "Noise against signal",
    "How stationary the answer is",
    "How good the answer is",
    "The plan, and what binds",
    "The ledger",
    "How to reproduce it",
    "How to cite",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Two run directories: one finished, one cut off after half of its steps."""
    directory = tmp_path_factory.mktemp("runs")
    run("compiled", directory / "whole", seed=None)
    with pytest.MonkeyPatch.context() as patch:
        cut_after(patch, STEPS // 2, "compiled", directory / "half", seed=None)
    return directory


@pytest.fixture(scope="module")
def result():
    return run()


@pytest.mark.parametrize("name", ["whole", "half"])
def test_a_run_directory_holds_its_secrets(directory, name):
    page = report_run_directory(directory / name, directory / f"{name}.html").read_text()
    assert not re.findall(OUTSIDE, page)
    for heading in SECTIONS:
        assert heading in page
    values = set(private_values(directory / name))
    assert len(values) > 300
    assert not leaks(page, values)
    # Power: the same page with a word of the key, a record or a loss added is caught.
    for value in list(values)[:200]:
        if len(value.strip("-0.")) >= 5:
            assert leaks(f"{page} {value}", values)
    called = json.loads((directory / name / "checkpoint.json").read_text())["run"]
    assert f"{called}</code> (this run)" in page
    assert (f"unfinished: step {STEPS // 2} of {STEPS}" in page) == (name == "half")
    assert ("This run is not finished" in page) == (name == "half")
    assert text(SEEDED) not in page


def test_a_run_that_a_callback_ended_says_so_and_keeps_the_statement_of_its_plan(result, tmp_path):
    norms = {name: getattr(result.history, name)[:1] for name in ("gradient_norm", "move_norm")}
    early = replace(result, history=replace(result.history, **norms), means=result.means[:1])
    page = bs.report(early, tmp_path / "early.html").read_text()
    assert f"ended early: step {HORIZON} of {STEPS}" in page
    assert "when a run ends depends on what it released" in page
    assert "not finished" not in page
    assert "4.37718" in page  # epsilon of the whole plan


def test_a_result_has_a_report(result, tmp_path):
    made = bs.certificate(capped_distance, result.params, DATA, 0.5, public=True, seed=0)
    page = bs.report(
        result,
        tmp_path / "new" / "run.html",
        title="<b>A & B</b>",
        public_utility={"accuracy <test>": 0.8765, "grade": "good"},
        certificate=made,
    ).read_text()
    assert not re.findall(OUTSIDE, page)
    assert "&lt;b&gt;A &amp; B&lt;/b&gt;" in page
    assert "<b>A" not in page
    assert "accuracy &lt;test&gt;" in page
    assert "0.8765" in page
    assert f"≤ {rounded_up(made.norm_bound, 4)}" in page
    assert f"{len(DATA)} public records" in page
    assert "No ledger was given" in page
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert page.count("<svg") == 3


def test_its_words_are_those_of_the_statement(result, tmp_path):
    page = bs.report(result, tmp_path / "run.html").read_text()
    for sentence in (*result.privacy.sentences()[:3], SECRECY, SEEDED, result.privacy.arithmetic):
        assert text(sentence) in page
    assert "4.37718" in page  # epsilon, to six digits
    # Seeded, so its numbers come again; and the total variation that is "below" is there.
    assert "its numbers come out the same" in page
    assert f"Up to a total variation of {round_up(result.privacy.slack, 1)}" in page
    assert "for every loss that makes a number of one record" in page
    assert "of losses the noisy means that were released" in page
    drawn = replace(result.privacy, seeded=False)
    page = bs.report(replace(result, privacy=drawn), tmp_path / "run.html").read_text()
    assert "the noise is secret and drawn anew" in page
    assert "69.2%" in page  # Phi(1/2), rounded up
    # Delta bounds no probability; what does is Phi(mu/2 - epsilon/mu), here 5 times as large.
    assert result.privacy.exceeds > 5 * result.privacy.delta
    assert scientific(result.privacy.exceeds) in page
    assert "apart from outcomes" not in page
    # And how the run went, which is made of releases alone.
    assert text(result.outcome) in page.partition("How the run went")[2]


def test_every_picture_is_in_the_colours_of_the_page(result, tmp_path):
    page = bs.report(result, tmp_path / "run.html").read_text()
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        assert not re.findall(r"#[0-9a-f]{6}\b", picture)
        assert "var(--accent)" in picture
        assert "font-family" not in picture
        names = re.findall(r' id="([^"]+)"', picture)
        assert set(re.findall(r'href="#([^"]+)"', picture)) <= set(names)
    names = re.findall(r' id="([^"]+)"', page)
    assert len(names) == len(set(names))


def test_a_private_certificate_is_added_to_what_was_spent(result, tmp_path):
    made = bs.certificate(
        capped_distance,
        result.params,
        DATA,
        0.5,
        privacy=bs.Privacy(mu=1.0),
        ledger=tmp_path / "l.jsonl",
        bounds=bs.Bounds(lipschitz=1.0),
    )
    page = bs.report(
        result, tmp_path / "run.html", ledger=tmp_path / "l.jsonl", certificate=made
    ).read_text()
    assert "together are 1.415-Gaussian" in page
    assert "certificate-" in page


def test_an_ask_and_tell_run_in_the_middle_of_a_step(result, tmp_path):
    """Its directory holds answers of people, and they stay there."""
    opt = bs.Optimizer(result.plan, np.zeros(2), checkpoint=tmp_path / "votes", cohort="survey")
    with opt:
        for _ in range(HORIZON - 1):
            query = opt.ask()
            opt.tell(query, [capped_distance_numpy(x, z) for x, z in pairs(query)])
        query = opt.ask()
        opt.tell(query, [capped_distance_numpy(x, z) for x, z in pairs(query)][:5], where=range(5))
    page = report_run_directory(tmp_path / "votes").read_text()
    assert f"unfinished: step {HORIZON - 1} of {STEPS}" in page
    assert not re.findall(OUTSIDE, page)
    values = set(private_values(tmp_path / "votes", "saved.answers"))
    assert not leaks(page, values)


def pairs(query):
    return zip(query.points, DATA[query.record], strict=True)


def test_a_directory_of_the_host_driver_says_what_its_result_says(tmp_path):
    result = run("host", tmp_path / "host")
    report = bs.report(result, tmp_path / "a.html").read_text()
    page = report_run_directory(tmp_path / "host").read_text()
    assert "finished</span>" in page
    assert picture_of(report, "noise") == picture_of(page, "noise")
    assert "survey" not in page


def picture_of(page, name):
    return re.search(rf'<g id="{name}-figure_1">.*?</svg>', page, re.DOTALL)[0]


def test_the_noise_level_is_that_of_the_plan(result):
    plan = result.plan
    norms = noise_norms(plan, 2 * plan.horizon)
    per_coordinate = norms / np.sqrt(plan.dim)
    assert per_coordinate.max() == pytest.approx(plan.release_std_max)
    assert np.sqrt(np.mean(per_coordinate**2)) == pytest.approx(plan.release_std_mean)


def test_many_steps_are_drawn_in_few_points():
    released = np.random.default_rng(0).uniform(size=100_003)
    steps, (shown, noise) = _binned(released, np.full(released.size, 2.0))
    assert len(steps) <= 160
    assert noise == pytest.approx(2.0)
    assert np.mean(shown**2) == pytest.approx(np.mean(released**2), rel=1e-3)
    assert np.array_equal(_binned(np.ones(3), np.ones(3))[0], [0.5, 1.5, 2.5])


def test_the_command(directory, tmp_path):
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(directory / "half"), "--out", str(out), "--json"])
    assert json.loads(done.stdout) == {"report": str(out)}
    assert "<title>Run half</title>" in out.read_text()
    # By default beside the run directory, which holds secrets, and not into it.
    done = CliRunner().invoke(app, ["report", str(directory / "whole")])
    assert done.stdout.startswith(os.fspath(directory / "whole-report.html"))
    assert not list((directory / "whole").glob("*.html"))


def test_the_learned_parameters_are_shown(result, tmp_path):
    page = bs.report(result, tmp_path / "run.html").read_text()
    assert "2 numbers: the answer to use" in page
    for place, value in enumerate(np.asarray(result.params)):
        assert f"params[{place}]" in page
        assert f"{value:.6g}" in page
    # A tree of many is shown by its parts.
    tree = {"slope": np.float32(1.25), "layers": [np.arange(-50.0, 50.0).reshape(4, 25)]}
    page = bs.report(replace(result, params=tree), tmp_path / "run.html").read_text()
    assert "101 numbers" in page
    assert re.search(r"layers/0.*4×25.*-50.*49", page)
    assert "params[0]" not in page
    small = {"slope": np.float32(1.25), "layers": [np.ones((1, 2))]}
    page = bs.report(replace(result, params=small), tmp_path / "run.html").read_text()
    assert "layers/0[0, 1]" in page
    assert re.search(r"slope</th>.*1.25<", page)


def test_a_directory_has_no_parameters_to_show_and_says_who_does(directory, tmp_path):
    page = report_run_directory(directory / "whole", tmp_path / "run.html").read_text()
    assert "this page was made without the answer" in page


@pytest.mark.parametrize("place", ["report.html", "new/report.html"])
def test_no_report_goes_into_a_secret_directory(directory, result, place):
    secret = directory / "half"
    for write in (
        lambda: report_run_directory(secret, secret / place),
        lambda: report_run_directory(directory / "whole", secret / place),
        lambda: bs.report(result, secret / place),
    ):
        with pytest.raises(bs.errors.InvalidArgument, match="which holds the noise key"):
            write()
    assert not (secret / place).exists()


def test_refusals(directory, result, tmp_path):
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 2
    with pytest.raises(bs.errors.InvalidArgument, match="no run directory"):
        report_run_directory(tmp_path / "nothing")
    half = shutil.copytree(directory / "half", tmp_path / "half")
    plan = json.loads((half / "plan.json").read_text())
    (half / "plan.json").write_text(json.dumps(plan | {"noise_std": 2 * plan["noise_std"]}))
    with pytest.raises(bs.errors.InvalidArgument, match="not the plan"):
        report_run_directory(half)
    (half / "plan.json").unlink()
    with pytest.raises(bs.errors.InvalidArgument, match="cannot be read"):
        report_run_directory(half)
    (tmp_path / "file").write_text("")
    with pytest.raises(bs.errors.InvalidArgument, match="cannot be written"):
        bs.report(result, tmp_path / "file" / "run.html")


def test_numbers_for_people():
    assert [rounded(x) for x in (0.0, 1.0, 0.26805, 54321.0, 120.4, 1e-5)] == [
        *("0", "1", "0.268", "54,321", "120", "10⁻⁵")
    ]
    assert [rounded(x, 4) for x in (9.498e-10, 1.41421, -0.5, 99.999)] == [
        *("9.5 × 10⁻¹⁰", "1.414", "-0.5", "100")
    ]
    # What is promised is never printed below the truth.
    assert [scientific(x) for x in (2.5e-6, 1.01e-5)] == ["2.5 × 10⁻⁶", "1.1 × 10⁻⁵"]
    assert [rounded_up(x) for x in (1.0, 1.2301, 5.21e-5, 99.91, 1231.0)] == [
        *("1", "1.24", "5.3 × 10⁻⁵", "100", "1,240")
    ]
    assert text('<a href="x">') == "&lt;a href=&quot;x&quot;&gt;"


def test_import_stays_light():
    code = "import sys, blindstep; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_curve_of_the_mean_loss_is_shown_where_it_was_released(tmp_path):
    data = np.random.default_rng(0).normal(size=(2_000, 2)) + 3.0
    result = bs.minimize(
        lambda place, home: jnp.linalg.norm(place - home),
        jnp.zeros(2),
        data,
        # Little noise on each of the curve's values, about 0.14 on 4.3 at first and 1.3 at the end.
        bs.Privacy(epsilon=8, delta=1e-6),
        method=bs.Auto(evaluations=2**17),
        checkpoint=tmp_path / "run",
    )
    bs.report(result, tmp_path / "result.html")
    from_result = content.of_result(result, "a", None, None, None).loss
    from_files = content.of_run_directory(tmp_path / "run", title="b").loss
    assert from_result.shape == (result.plan.rounds,)
    np.testing.assert_allclose(from_files / from_files[0], from_result / from_result[0])
    said = "Released mean loss of each round"
    assert said in (tmp_path / "result.html").read_text()
    assert from_result[-1] < 0.7 * from_result[0]


@pytest.mark.parametrize(("estimate", "seen"), [("values", "values"), ("gradient", "gradients")])
def test_its_head_counts_looks_too_and_says_what_was_seen(tmp_path, estimate, seen):
    result = bs.minimize(
        lambda place, home: jnp.linalg.norm(place - home),
        jnp.zeros(2),
        np.random.default_rng(0).normal(size=(300, 2)),
        bs.Privacy(epsilon=1, delta=1e-5),
        method=bs.Auto(estimate=estimate, evaluations=2**14),
    )
    page = bs.report(result, tmp_path / "run.html").read_text()
    releases = re.findall(r"in at most (\d+) release", " ".join(result.privacy.enforced))
    assert len(releases) == 3  # calibrations, steps and the comparison
    answers = sum(map(int, releases))
    assert re.search(rf">{answers}<[^>]*>(?:<[^>]*>)*times a record answers, at most", page)
    assert f"noisy steps, from {seen} of the loss alone" in page


def test_secret_batches_and_neighbours_are_named_in_statement_and_page(result, tmp_path):
    out = replace(result.privacy, neighbours="zero-out", secrecy=1e-8)
    page = bs.report(replace(result, privacy=out), tmp_path / "out.html").read_text()
    for words in (
        "whether your record was used, or left out",
        "which also says in which steps a record was read",
        "left out or added (zero-out neighbours",
        "Batches are secret: this holds against anyone who does not see when a record is read",
    ):
        assert words in page
    usual = bs.report(result, tmp_path / "usual.html").read_text()
    assert "yours or another one in its place" in usual
    for words in ("zero-out", "Batches are secret", "in which steps a record was read"):
        assert words not in usual
    # A guess is right with half of 1 and the profile at epsilon 0: Phi(mu / 2) and what secrecy adds.
    guess = r"right at most ([0-9.]+)% of the time"
    large = replace(result.privacy, secrecy=1e-3, delta=5e-3)
    page = bs.report(replace(result, privacy=large), tmp_path / "large.html").read_text()
    said = re.search(guess, page)
    chance = norm.cdf(large.mu / 2)
    assert float(said[1]) / 100 == pytest.approx(chance + 1e-3 * (1 - chance), abs=1e-3)
    assert float(said[1]) / 100 >= chance + 1e-3 * (1 - chance)


def test_a_certificate_about_other_neighbours_is_not_added_to_the_run(result, tmp_path):
    other = replace(result.privacy, neighbours="zero-out")
    made = Certificate(1.0, 0.99, 0.5, 0.9, 0.1, 6, "values", len(DATA), other, ())
    page = bs.report(result, tmp_path / "a.html", certificate=made).read_text()
    assert "It is not added to the run" in page
    assert "run and certificate together" not in page
