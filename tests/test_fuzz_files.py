"""10,000 malformed files: each refused by name with a remedy, or harmless; none changed by reading.

Whoever may write these files could also write a good one with a bad content. So half of the cases carry
valid hashes, and only what they say is wrong.
"""

import hashlib
import io
import json
import os
import random
import shutil
import signal
import tracemalloc
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import blindstep as bs
from blindstep.drivers import plan_file
from blindstep.drivers.fingerprints import Fingerprints
from blindstep.drivers.packing import Packed, pack, unpack
from blindstep.errors import BlindstepError
from blindstep.insight.spending import spending_numbers, spending_table
from blindstep.optimize.plan import Plan
from blindstep.trusted.checkpoint import CURRENT, Checkpoint, CheckpointMeta, _pack
from blindstep.trusted.journal import NOTHING_BEFORE, Head, scan
from blindstep.trusted.ledger import Ledger, read_ledger
from blindstep.trusted.randomness import fresh_keys
from blindstep.trusted.refusals import CheckpointError, LedgerError, StorageError
from blindstep.trusted.sealed_json import seal, unseal
from mutations import LITERALS, spoil_bytes, spoil_text, spoil_value
from storage_helpers import overwrite, write_some

REMEDIES = (
    "Restore",
    "restore",
    "check the path",
    "mv ",
    "use the version",
    "delete it",
    "Give the",
)
REMEDIES += ("put the right", "start a new run", "resume it with", "make it anew", "use the ledger")
REMEDIES += ("resume with", "give another directory")
PLAN = bs.plan(records=96, dim=2, privacy=bs.Privacy(rho=1.0), radius=0.5, lipschitz=1.0, gap=1.0,
               oracle="variance-reduced", horizon=4, period=4, bounds=bs.Clip(1.0, 0.5))  # fmt: skip


@pytest.fixture(autouse=True)
def _a_hang_is_a_failure():
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.alarm(120)
    yield
    signal.alarm(0)


def refusal(read, path, kind=StorageError):
    """What `read` gave, or None after a refusal that names the file and a remedy."""
    try:
        return read()
    except kind as error:
        message = str(error)
        assert str(path) in message, message
        assert any(remedy in message for remedy in REMEDIES), message
        return None


# -- ledger ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory):
    """A ledger and another one: bytes, head, mu spent."""
    folder = tmp_path_factory.mktemp("ledgers")
    first = write_some(folder / "a.jsonl", steps=4, budget=2.0)
    return first, write_some(folder / "b.jsonl", steps=6, run="second")


def sealed_anew(lines):
    """The bodies as a chain with valid hashes."""
    content, previous = b"", NOTHING_BEFORE
    for number, body in enumerate(lines):
        line = seal({"n": number, "prev": previous} | body)
        previous = hashlib.sha256(line[: -len(',"sha256":""}') - 64] + b"}").hexdigest()
        content += line + b"\n"
    return content


def bodies(content):
    lines = [unseal(line)[0] for line in content.splitlines()]
    return [{k: v for k, v in line.items() if k not in ("n", "prev")} for line in lines]


def test_3000_spoiled_ledgers(ledgers, tmp_path):
    (content, head, spent), (other, *_) = ledgers
    path, rng = tmp_path / "people.jsonl", random.Random(1)
    path.write_bytes(content)
    accepted = 0
    for _ in range(3_000):
        spoiled = spoil_bytes(rng, content, other)
        overwrite(path, spoiled)
        if refusal(lambda: read_ledger(path), path) is not None:
            # Only its end can be missing: what counts are lines that were written, in order.
            counted = spoiled[: scan(str(path), spoiled, lambda _: None).whole].rstrip(b"\n")
            assert content.startswith(counted) or other.startswith(counted)
        opened = refusal(lambda: Ledger.open(path, records="people", head=head), path, LedgerError)
        if opened is not None:
            accepted += 1
            with opened:
                assert opened.spent() == spent
            for torn in tmp_path.glob("*.torn-*"):
                torn.unlink()
        else:
            assert path.read_bytes() == spoiled
    assert accepted < 300


def test_1500_ledgers_that_say_strange_things_with_valid_hashes(ledgers, tmp_path):
    (content, *_), _ = ledgers
    path, rng = tmp_path / "people.jsonl", random.Random(2)
    path.write_bytes(content)
    good = bodies(content)
    assert sealed_anew(good) == content
    for _ in range(1_500):
        lines = list(good)
        place = rng.randrange(len(lines))
        spoiled = spoil_value(rng, lines[place])
        lines[place] = spoiled if isinstance(spoiled, dict) else {"kind": spoiled}
        try:
            overwrite(path, sealed_anew(lines))
        except ValueError:  # not JSON at all
            continue
        account = refusal(lambda: read_ledger(path), path)
        if account is not None:
            shown(account)


def shown(account):
    """What `blindstep ledger show` makes of it: numbers and a table, or a clear error."""
    try:
        json.dumps(spending_numbers(account, 1e-5), allow_nan=False)
        Console(file=io.StringIO()).print(spending_table(account, 1e-5))
    except BlindstepError:
        pass  # a clear error: spending past all floats


# -- checkpoint --------------------------------------------------------------------------------------

META = CheckpointMeta("r", "p" * 64, "d" * 64, 3, Head("a" * 64, 3, "b" * 64))
ARRAYS = {"key": np.arange(8, dtype=np.uint32), "running": np.linspace(0, 1, 5), "n": np.asarray(3)}


@pytest.fixture
def checkpoint(tmp_path):
    """A directory with one checkpoint, and the bytes of another."""
    Checkpoint(tmp_path / "other").save({"key": np.ones(3)}, META)
    Checkpoint(tmp_path / "run").save(ARRAYS, META)
    return tmp_path / "run", {p.name: p.read_bytes() for p in (tmp_path / "other").iterdir()}


def same_arrays(found):
    return list(found) == list(ARRAYS) and all(np.array_equal(found[n], ARRAYS[n]) for n in ARRAYS)


@pytest.mark.parametrize("name", [CURRENT, "state-1.npz"])
def test_2000_spoiled_checkpoints(checkpoint, name):
    directory, other = checkpoint
    path, rng = directory / name, random.Random(name)
    content = path.read_bytes()
    for _ in range(1_000):
        spoiled = spoil_bytes(rng, content, other[name])
        overwrite(path, spoiled)
        found = refusal(Checkpoint(directory).load, path, CheckpointError)
        assert (found is not None) == (spoiled == content)
        assert path.read_bytes() == spoiled
        with pytest.raises(CheckpointError) if spoiled != content else pytest.MonkeyPatch.context():
            Checkpoint(directory).save(ARRAYS, META)  # a damaged one is never pushed out
        if spoiled == content:
            shutil.rmtree(directory)
            Checkpoint(directory).save(ARRAYS, META)
    overwrite(path, content)
    assert same_arrays(Checkpoint(directory).load()[0])


def test_1000_checkpoints_that_say_strange_things_with_valid_hashes(checkpoint):
    directory, _ = checkpoint
    path, rng = directory / CURRENT, random.Random(4)
    body = unseal(path.read_bytes()[:-1])[0]
    for _ in range(1_000):
        spoiled = spoil_value(rng, body)
        overwrite(path, seal(spoiled if isinstance(spoiled, dict) else {"": spoiled}) + b"\n")
        found = refusal(Checkpoint(directory).load, directory, CheckpointError)
        assert found is None or same_arrays(found[0])


def write_state(directory, packed):
    """A state with the right hash in its description."""
    body = unseal((directory / CURRENT).read_bytes()[:-1])[0]
    body["state_sha256"] = hashlib.sha256(packed).hexdigest()
    overwrite(directory / body["state"], packed)
    overwrite(directory / CURRENT, seal(body) + b"\n")


def hostile_member(rng):
    """An array file whose header lies about what follows."""
    shapes = [(2**40,), (-1,), (10**12, 10**12), (2**62, 4), (3.5,), "x", (), (0,), None, (5,) * 40]
    kinds = ["<f8", "|O", "<U9", "<M8[s]", "<c16", "junk", [("a", "<f8")], "<f8,<f8", "V9999999"]
    said = {"descr": rng.choice(kinds), "fortran_order": rng.choice([True, False, 3])}
    header = str(said | {"shape": rng.choice(shapes)})
    header = rng.choice([header, header, header[:9], "(" * 3000, "__import__('os').getpid()", ""])
    text = (header + "\n").encode()
    length = rng.choice([len(text), len(text), 65535, 0])
    version = rng.choice([b"\1\0", b"\1\0", b"\2\0", b"\t\t"])
    return b"\x93NUMPY" + version + length.to_bytes(2, "little") + text + rng.randbytes(40)


def hostile_state(rng, good):
    """A zip file with lying headers, bombs, doubled names, or with bytes of it spoiled."""
    kind, packed = rng.randrange(4), io.BytesIO()
    if kind == 0:
        return spoil_bytes(rng, good, rng.randbytes(99))
    with zipfile.ZipFile(packed, "w") as archive:
        if kind == 1:
            archive.writestr("a.npy", b"\0" * 2**20, compress_type=zipfile.ZIP_DEFLATED)
        for name in rng.choices(["key.npy", "../key.npy", "n", "running.npy", "b.npy"], k=2):
            archive.writestr(zipfile.ZipInfo(name), hostile_member(rng))
    return packed.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_1000_states_that_lie_with_valid_hashes(checkpoint):
    directory, _ = checkpoint
    good, rng = (directory / "state-1.npz").read_bytes(), random.Random(5)
    for _ in range(1_000):
        packed = hostile_state(rng, good)
        write_state(directory, packed)
        found = refusal(Checkpoint(directory).load, directory, CheckpointError)
        assert found is None or sum(a.nbytes for a in found[0].values()) <= len(packed)


def test_a_header_is_not_believed_before_its_bytes_are_there(checkpoint):
    directory, _ = checkpoint
    packed = io.BytesIO()
    header = str({"descr": "<f8", "fortran_order": False, "shape": (2**32,)}).encode() + b"\n"
    with zipfile.ZipFile(packed, "w") as archive:
        magic = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little")
        archive.writestr("key.npy", magic + header + bytes(64))
    write_state(directory, packed.getvalue())
    tracemalloc.start()
    assert refusal(Checkpoint(directory).load, directory, CheckpointError) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20  # of 32 GiB that it declares


def test_500_states_of_other_shapes_are_refused():
    """What the session takes out of a whole checkpoint: names, shapes and types are all checked."""
    state, rng = PLAN.build().begin(jnp.zeros(2)), random.Random(6)
    known = Fingerprints(*("ab" * 32 for _ in range(4)))
    good = pack(Packed(state, fresh_keys(1), known, {"means": np.zeros((2, 2))}))
    assert unpack(good, state, "here").known == known
    for _ in range(500):
        name = rng.choice([n for n in good if not n.startswith("saved.")])
        array = good[name]
        kinds = [array[None], array.astype(np.float32), np.zeros(3), array.astype(bool)[..., None]]
        spoiled = good | {name: rng.choice(kinds)}
        if rng.random() < 0.3:
            del spoiled[name]
        elif rng.random() < 0.1:
            spoiled = good | {"state.extra": array}
        assert refusal(lambda s=spoiled: unpack(s, state, "here"), "here", CheckpointError) is None
    assert not [a for a in good.values() if a.dtype.kind not in "biuf"]


# -- plan --------------------------------------------------------------------------------------------


def test_2000_spoiled_plans(tmp_path):
    """A plan that is accepted and can be built never spends more than its budget says."""
    path, rng, built = tmp_path / "plan.json", random.Random(7), 0
    plan_file.write(str(tmp_path), PLAN)
    content, fields = path.read_bytes(), PLAN.to_dict()
    for turn in range(2_000):
        spoiled = spoil_text(rng, fields) if turn % 4 else spoil_bytes(rng, content, b"{}")
        overwrite(path, spoiled)
        refusal(lambda: plan_file.check(str(tmp_path), PLAN, resuming=True), path)
        assert path.read_bytes() == spoiled
        try:
            plan = Plan.from_json(spoiled.decode(errors="replace"))
            oracle = plan.build().oracle
        except BlindstepError:
            continue
        built += 1
        assert oracle.mu() <= plan.rho
    assert 100 < built < 1_000


# -- other things under a file's name ------------------------------------------------------------------


def things(path):
    """Put something that is no plain file in the place of one."""
    yield "pipe", lambda: os.mkfifo(path)
    yield "directory", path.mkdir
    yield "link to itself", lambda: path.symlink_to(path)
    yield "link to nothing", lambda: path.symlink_to(path.parent / "nothing")
    yield "endless device", lambda: path.symlink_to("/dev/zero")
    yield "empty file", path.touch


@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize("name", ["people.jsonl", CURRENT, "state-1.npz", "plan.json"])
def test_something_else_under_the_name_is_refused(checkpoint, name, which):
    directory, _ = checkpoint
    path = directory / name
    path.unlink(missing_ok=True)
    _, put = list(things(path))[which]
    put()
    if name == "people.jsonl":
        seen = refusal(lambda: read_ledger(path), os.path.realpath(path))
    elif name == "plan.json":
        seen = refusal(lambda: plan_file.check(str(directory), PLAN, resuming=True), path)
    else:
        seen = refusal(Checkpoint(directory).load, path, CheckpointError)
    assert seen is None
    assert os.path.lexists(path)
    for thing in (path,):
        shutil.rmtree(thing) if thing.is_dir() and not thing.is_symlink() else thing.unlink()


def test_packing_has_no_literal_that_json_forbids():
    """The strange literals are refused wherever a sealed object could hold them."""
    for literal in LITERALS:
        text = b'{"a":' + literal + b"}"
        sealed = text[:-1] + b',"sha256":"' + hashlib.sha256(text).hexdigest().encode() + b'"}'
        try:
            unseal(sealed)
        except ValueError:
            continue
        assert literal in (b"1e999", b'"\\ud800"')
    assert _pack({})
