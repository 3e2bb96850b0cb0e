"""The folder that can be given away: complete, checkable, and without a number that has no noise."""

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from huggingface_hub import ModelCard
from typer.testing import CliRunner

import blindstep as bs
from blindstep.cli import app
from blindstep.errors import FolderChanged, InvalidArgument
from blindstep.insight.hand_over import HAZARDS, hand_over_run_directory, open_questions
from blindstep.insight.hand_over_documents import QUESTIONS
from blindstep.insight.hand_over_seal import LIST, SIGNATURE, check
from blindstep.planning.statement import compose_statements
from blindstep.run.tune import Tuned
from driver_runs import PLAN, run
from leaks import leaks, private_values

TESTS = Path(__file__).parents[1]
SCHEMA = Path(__file__).parents[3] / "shared" / "standards" / "deployments-schema.yaml"
ABOUT = {
    "name": "Where to meet",
    "curators": ["The city", "The club"],
    "description": "A place.\nOn a map.",
    "intended_use": "Meeting: at the place.",
    "region": "Here",
    "sector": "Government",
    "data_domain": "Homes of members",
    "tuning": "None.",
    "future_releases": "None are planned.",
    "justification": "The board chose epsilon after a hearing.",
    "authors": ["A. Clerk"],
    "license": "cc-by-4.0",
}
FORMS = (lambda x: repr(float(x)), lambda x: f"{x:.6g}", lambda x: f"{x:.5f}")
FILES = {
    *("README.md", "registry.yaml", "hazards.md", "bom.json", "report.html", "statement.json"),
    *("plan.json", "parameters.npz", LIST),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run directory of a finished run, its result, and a folder that was handed over."""
    place = tmp_path_factory.mktemp("hand-over")
    result = run("compiled", place / "run", seed=None)
    bs.hand_over(result, place / "folder", about=ABOUT, key=place / "key.pem")
    return place, result


def test_the_registry_record_says_what_the_statement_says(place):
    record = yaml.safe_load((place[0] / "folder" / "registry.yaml").read_text())
    deployment, privacy = record["deployment"], place[1].privacy
    loss = deployment["privacy_loss"]
    given = loss["privacy_parameters"]
    assert given["rho"] >= privacy.mu**2 / 2 > 0.999 * given["rho"]
    assert given["epsilon"] >= privacy.epsilon
    assert (record["tier"], record["status"]) == (3, "Draft")
    assert deployment["basic"]["data_curators"] == ABOUT["curators"]
    assert deployment["basic"]["description"] == ABOUT["description"]
    assert deployment["implementation"]["justification"] == ABOUT["justification"]
    assert loss["privacy_unit"] == privacy.unit
    assert "replace neighbours" in loss["privacy_unit_details"]


@pytest.mark.skipif(not SCHEMA.exists(), reason="the registry's schema is not on this machine")
@pytest.mark.parametrize("about", [ABOUT, None], ids=["answered", "not answered"])
def test_the_registry_record_passes_the_registrys_schema(place, tmp_path, about):
    bs.hand_over(place[1], tmp_path / "folder", about=about)
    record = yaml.safe_load((tmp_path / "folder" / "registry.yaml").read_text())
    schema = yaml.safe_load(SCHEMA.read_text())
    jsonschema.validate(record, schema)
    del record["deployment"]["basic"]["data_curators"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(record, schema)


def test_the_card_parses_and_holds_the_statement(place):
    card = ModelCard.load(place[0] / "folder" / "README.md")
    assert card.data.license == "cc-by-4.0"
    assert "differential-privacy" in (card.data.tags or [])
    for sentence in place[1].privacy.sentences():
        assert sentence in card.text
    code = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)[0]
    found = {}
    exec(code.replace("parameters.npz", str(place[0] / "folder" / "parameters.npz")), found)
    assert np.array_equal(found["params"]["params"], place[1].params)


def test_the_bill_of_materials_is_valid_cyclonedx(place):
    text = (place[0] / "folder" / "bom.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert (
        JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.replace("bom-ref", "x"))
        is not None
    )
    assert {each["name"] for each in json.loads(text)["components"]} >= {
        "blindstep",
        "jax",
        "numpy",
    }


def test_every_hazard_names_tests_that_exist(place):
    there = set(
        re.findall(r"^def (test_\w+)", "".join(p.read_text() for p in TESTS.rglob("*.py")), re.M)
    )
    named = {name for each in HAZARDS for name in each.tests}
    assert len(named) > 20
    assert not named - there
    page = (place[0] / "folder" / "hazards.md").read_text()
    for each in HAZARDS:
        assert each.answer in page
        assert all(f"`{name}`" in page for name in each.tests)


def test_no_file_that_is_handed_over_holds_a_number_without_noise(place, tmp_path):
    # The means of rounds are released: a run directory has them, and the answer is one of them.
    released = {form(x) for x in place[1].means.ravel() for form in FORMS}
    values = set(private_values(place[0] / "run")) - released
    assert len(values) > 300
    bs.hand_over(place[1], tmp_path / "of result", ledger=place[0] / "run")
    hand_over_run_directory(place[0] / "run", tmp_path / "of run")
    for folder in (tmp_path / "of result", tmp_path / "of run"):
        for path in folder.iterdir():
            held = path.read_bytes()
            text = held.decode("latin-1")
            if path.name == "parameters.npz":
                with np.load(path) as arrays:
                    text = " ".join(repr(float(x)) for name in arrays for x in arrays[name].ravel())
            assert not leaks(text, values), path.name
            for array in np.load(place[0] / "run" / _state(place[0] / "run")).items():
                if array[0] in ("key.noise", "key.names"):
                    assert array[1].tobytes() not in held
    # Power: a record of the data, written into a file, is found.
    some = next(value for value in values if len(value) > 7)
    assert leaks(f"... {some} ...", values)


def _state(directory):
    return json.loads((directory / "checkpoint.json").read_text())["state"]


def test_a_changed_byte_a_new_file_and_a_missing_one_are_found(place, tmp_path):
    folder = bs.hand_over(place[1], tmp_path / "folder", key=place[0] / "key.pem")
    assert {path.name for path in folder.iterdir()} == {*FILES, SIGNATURE}
    found = check(folder)
    assert found.files == len(FILES) - 1
    assert found.signer == check(place[0] / "folder").signer
    assert found.signer.startswith("SHA256:")
    for name in sorted({*FILES, SIGNATURE}):
        was = (folder / name).read_bytes()
        middle = len(was) // 2
        (folder / name).write_bytes(was[:middle] + bytes([was[middle] ^ 1]) + was[middle + 1 :])
        with pytest.raises(FolderChanged):
            check(folder)
        (folder / name).write_bytes(was)
    (folder / "more.txt").write_text("more")
    with pytest.raises(FolderChanged, match=r"more\.txt was added"):
        check(folder)
    (folder / "more.txt").unlink()
    (folder / "plan.json").unlink()
    with pytest.raises(FolderChanged, match=r"plan\.json is missing"):
        check(folder)


def test_a_list_that_was_written_anew_is_signed_by_another_key(place, tmp_path):
    folder = bs.hand_over(place[1], tmp_path / "folder", key=tmp_path / "other.pem")
    ours = check(place[0] / "folder").signer
    assert check(folder).signer != ours
    with pytest.raises(FolderChanged, match="should be by"):
        check(folder, signer=ours)
    unsigned = bs.hand_over(place[1], tmp_path / "unsigned")
    assert "not signed" in str(check(unsigned))
    with pytest.raises(FolderChanged, match="signed by nobody"):
        check(unsigned, signer=ours)


def test_the_signing_key_is_for_its_owner_and_of_its_kind(place, tmp_path):
    assert (place[0] / "key.pem").stat().st_mode & 0o777 == 0o600
    (tmp_path / "key.pem").write_text("nothing")
    with pytest.raises(InvalidArgument, match="no private key"):
        bs.hand_over(place[1], tmp_path / "folder", key=tmp_path / "key.pem")


def test_what_nobody_answered_stays_a_question(place, tmp_path):
    bs.hand_over(place[1], tmp_path / "folder")
    record = yaml.safe_load((tmp_path / "folder" / "registry.yaml").read_text())
    said = record["deployment"]["implementation"]["justification"]
    assert said == f"NOT ANSWERED: {QUESTIONS['justification']}"
    assert "justification" in open_questions(None)
    assert not open_questions(ABOUT)
    with pytest.raises(InvalidArgument, match="did you mean 'justification'"):
        bs.hand_over(place[1], tmp_path / "other", about={"justifcation": "x"})
    with pytest.raises(InvalidArgument, match="must be a text"):
        bs.hand_over(place[1], tmp_path / "other", about={"name": 3})


def test_the_report_has_the_audit_and_three_beliefs(place, tmp_path):
    found = bs.audit(PLAN, pairs=400, seed=0)
    folder = bs.hand_over(place[1], tmp_path / "folder", audit=found)
    page = (folder / "report.html").read_text()
    assert found.reason in page.replace("&lt;", "<")
    assert all(f">{before}<" in page for before in ("1%", "10%", "50%"))
    odds = np.exp(place[1].privacy.epsilon)
    after = float(re.search(r">50%</t[dh]>\s*<td[^>]*>([0-9.]+)%", page)[1]) / 100
    assert odds / (1 + odds) <= after <= odds / (1 + odds) + 0.001


def test_a_tuned_choice_is_handed_over_with_all_that_it_cost(place, tmp_path):
    best = place[1]
    whole = compose_statements([best.privacy, best.privacy])
    tuned = Tuned(best, 0, (0.1, 0.2), 0.01, (best, best), whole)
    for result, said in ((tuned, True), (best, False)):
        folder = bs.hand_over(result, tmp_path / type(result).__name__)
        record = yaml.safe_load((folder / "registry.yaml").read_text())["deployment"]
        given = record["privacy_loss"]["privacy_parameters"]["rho"]
        assert given == pytest.approx(result.privacy.mu**2 / 2, rel=1e-5)
        assert ("chosen among candidates" in record["accounting"]["composition"]) == said
        assert (folder / "parameters.npz").exists()


def test_a_folder_with_something_in_it_or_inside_a_run_is_refused(place, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(InvalidArgument, match="not empty"):
        bs.hand_over(place[1], tmp_path / "full")
    with pytest.raises(InvalidArgument, match="noise key"):
        bs.hand_over(place[1], place[0] / "run" / "folder")


def test_the_command_writes_and_checks(place, tmp_path):
    (tmp_path / "about.json").write_text(json.dumps(ABOUT | {"name": "By command"}))
    np.savez(tmp_path / "params.npz", x=np.ones(2))
    called = ["hand-over", str(place[0] / "run"), "--to", str(tmp_path / "folder")]
    more = ["--about", str(tmp_path / "about.json"), "--parameters", str(tmp_path / "params.npz")]
    done = CliRunner().invoke(app, [*called, *more])
    assert done.exit_code == 0, done.output
    assert "registry.yaml" in done.output
    assert "Not answered" not in done.output
    assert "# By command" in (tmp_path / "folder" / "README.md").read_text()
    checked = CliRunner().invoke(app, ["hand-over", "check", str(tmp_path / "folder"), "--json"])
    assert json.loads(checked.output)["files"] == len(FILES) - 1
    (tmp_path / "folder" / "hazards.md").write_text("all is well")
    checked = CliRunner().invoke(app, ["hand-over", "check", str(tmp_path / "folder")])
    assert checked.exit_code == 2
    assert "hazards.md was changed" in checked.output
    again = CliRunner().invoke(app, [*called[:3], str(tmp_path / "bare")])
    assert "Not answered yet" in again.output
    assert "parameters.npz" not in again.output
