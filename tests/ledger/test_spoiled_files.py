"""Malformed files: each refused by name with a remedy, or harmless; none changed by reading it.

Whoever may write these files could also write a good hash under a bad content. So half of the cases
carry valid hashes, and only what they say is wrong. `make test-deep` tries 8,500 of them.
"""

import hashlib
import io
import os
import random
import shutil
import signal
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from blindstep.errors import CheckpointError, LedgerError, StorageError
from blindstep.ledger import storage
from blindstep.ledger.checkpoint import CURRENT, Checkpoint, CheckpointMeta, Packed, pack, unpack
from blindstep.ledger.files import seal, unseal
from blindstep.ledger.fingerprints import Fingerprints
from blindstep.ledger.journal import NOTHING_BEFORE, Head, scan
from blindstep.ledger.ledger import read_ledger
from blindstep.private.gate import Memory
from blindstep.private.noise import fresh_keys
from mutations import LITERALS, spoil_bytes, spoil_text, spoil_value
from storage_helpers import open_ledger, overwrite, write_some

REMEDIES = (
    "Restore",
    "restore",
    "check the path",
    "mv ",
    "use the version",
    "delete it",
    "Give the",
)
REMEDIES += ("put the right", "start a new run", "resume it with", "use the ledger", "resume with")
PLAN = {"dim": 2, "records": 96, "privacy": {"delta": 1e-5}, "notes": ["a", "b"]}
PLAN |= {"bounds": {"first_clip": 1.0}}


def cases(deep):
    """So many random cases with `make test-deep`, and a few of them otherwise."""
    counts = [deep // 20, pytest.param(deep, marks=pytest.mark.slow)]
    return pytest.mark.parametrize("cases", counts)


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


# -- ledger ----------------------------------------------------------------------------------------


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


@cases(3_000)
def test_spoiled_ledgers(ledgers, tmp_path, cases):
    (content, head, spent), (other, *_) = ledgers
    path, rng = tmp_path / "people.jsonl", random.Random(1)
    path.write_bytes(content)
    accepted = 0
    for _ in range(cases):
        spoiled = spoil_bytes(rng, content, other)
        overwrite(path, spoiled)
        if refusal(lambda: read_ledger(path), path) is not None:
            # Only its end can be missing: what counts are lines that were written, in order.
            counted = spoiled[: scan(str(path), spoiled, lambda _: None).whole].rstrip(b"\n")
            assert content.startswith(counted) or other.startswith(counted)
        opened = refusal(lambda: open_ledger(path, head=head), path, LedgerError)
        if opened is not None:
            accepted += 1
            with opened:
                assert opened.account.spent() == spent
            for torn in tmp_path.glob("*.torn-*"):
                torn.unlink()
        else:
            assert path.read_bytes() == spoiled
    assert accepted < cases / 10


@cases(1_500)
def test_ledgers_that_say_strange_things_with_valid_hashes(ledgers, tmp_path, cases):
    (content, *_), _ = ledgers
    path, rng = tmp_path / "people.jsonl", random.Random(2)
    path.write_bytes(content)
    good = bodies(content)
    assert sealed_anew(good) == content
    for _ in range(cases):
        lines = list(good)
        place = rng.randrange(len(lines))
        spoiled = spoil_value(rng, lines[place])
        lines[place] = spoiled if isinstance(spoiled, dict) else {"kind": spoiled}
        try:
            overwrite(path, sealed_anew(lines))
        except ValueError:  # not JSON at all
            continue
        account = refusal(lambda: read_ledger(path), path)
        assert account is None or account.spent() >= 0


# -- checkpoint ------------------------------------------------------------------------------------

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
@cases(1_000)
def test_spoiled_checkpoints(checkpoint, name, cases):
    directory, other = checkpoint
    path, rng = directory / name, random.Random(name)
    content = path.read_bytes()
    for _ in range(cases):
        spoiled = spoil_bytes(rng, content, other[name])
        if spoiled == content:
            continue
        overwrite(path, spoiled)
        assert refusal(Checkpoint(directory).load, path, CheckpointError) is None
        assert path.read_bytes() == spoiled
        with pytest.raises(CheckpointError):
            Checkpoint(directory).save(ARRAYS, META)  # a damaged one is never pushed out
    overwrite(path, content)
    assert same_arrays(Checkpoint(directory).load()[0])


@cases(1_000)
def test_checkpoints_that_say_strange_things_with_valid_hashes(checkpoint, cases):
    directory, _ = checkpoint
    path, rng = directory / CURRENT, random.Random(4)
    body = unseal(path.read_bytes()[:-1])[0]
    for _ in range(cases):
        spoiled = spoil_value(rng, body)
        overwrite(path, seal(spoiled if isinstance(spoiled, dict) else {"": spoiled}) + b"\n")
        found = refusal(Checkpoint(directory).load, directory, CheckpointError)
        assert found is None or same_arrays(found[0])


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
@cases(1_000)
def test_states_that_lie_with_valid_hashes(checkpoint, cases):
    directory, _ = checkpoint
    good, rng = (directory / "state-1.npz").read_bytes(), random.Random(5)
    body = unseal((directory / CURRENT).read_bytes()[:-1])[0]
    for _ in range(cases):
        packed = hostile_state(rng, good)
        overwrite(directory / body["state"], packed)
        body["state_sha256"] = hashlib.sha256(packed).hexdigest()
        overwrite(directory / CURRENT, seal(body) + b"\n")
        found = refusal(Checkpoint(directory).load, directory, CheckpointError)
        assert found is None or sum(a.nbytes for a in found[0].values()) <= len(packed)


def test_states_of_other_shapes_are_refused():
    """What a session takes out of a whole checkpoint: names, shapes and types are all checked."""
    # Two leaves whose paths would read the same, and a name that no file could have.
    state = {"a.b": jnp.arange(3.0), "c/ d": jnp.ones((2, 2)), "a": {"b": jnp.zeros(())}}
    memory, rng = Memory(jnp.asarray(3, jnp.int32), jnp.ones((2, 3))), random.Random(6)
    known, keys = Fingerprints("ab" * 32, "cd" * 32, "", "ef" * 32), fresh_keys(1)
    packed = Packed(state, memory, keys, bytes(range(32)), known, {"means": np.zeros((2, 2))})
    good = pack(packed)
    assert not [a for a in good.values() if a.dtype.kind not in "biuf"]
    found = unpack(good, state, memory, "here")
    assert (found.known, found.secret) == (known, packed.secret)
    assert np.array_equal(found.keys.noise.words(), keys.noise.words())
    assert found.keys.public == keys.public
    assert found.keys.seeded
    assert int(found.memory.position) == 3
    assert jnp.array_equal(found.memory.buffers, memory.buffers)
    assert jnp.array_equal(found.state["a.b"], state["a.b"])
    assert jnp.array_equal(found.state["c/ d"], state["c/ d"])
    for _ in range(200):
        name = rng.choice([n for n in good if not n.startswith("saved.")])
        array = good[name]
        kinds = [array[None], array.astype(np.float32), np.zeros(3), array.astype(bool)[..., None]]
        kinds = [a for a in kinds if (a.shape, a.dtype) != (array.shape, array.dtype)]
        spoiled = good | {name: rng.choice(kinds)}
        if rng.random() < 0.3:
            del spoiled[name]
        elif rng.random() < 0.1:
            spoiled = good | {"state.extra": array}
        read = lambda s=spoiled: unpack(s, state, memory, "here")  # noqa: E731
        assert refusal(read, "here", CheckpointError) is None


# -- plan, and other things under a file's name ----------------------------------------------------


@cases(1_000)
def test_spoiled_plans_are_refused(tmp_path, cases):
    path, rng = tmp_path / "plan.json", random.Random(7)
    storage.write(str(tmp_path), PLAN)
    content = path.read_bytes()
    storage.check(str(tmp_path), {**PLAN, "notes": []}, resuming=True)  # words may change
    for turn in range(cases):
        spoiled = spoil_text(rng, PLAN) if turn % 4 else spoil_bytes(rng, content, b"{}")
        overwrite(path, spoiled)
        refusal(lambda: storage.check(str(tmp_path), PLAN, resuming=True), path)
        assert path.read_bytes() == spoiled


def things(path):
    """Ways to put something that is no plain file in the place of one."""
    return {
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "link to itself": lambda: path.symlink_to(path),
        "link to nothing": lambda: path.symlink_to(path.parent / "nothing"),
        "endless device": lambda: path.symlink_to("/dev/zero"),
        "empty file": path.touch,
    }


@pytest.mark.parametrize("name", ["people.jsonl", CURRENT, "state-1.npz", "plan.json"])
def test_something_else_under_the_name_is_refused(checkpoint, name):
    directory, _ = checkpoint
    path = directory / name
    for put in things(path).values():
        path.unlink(missing_ok=True)
        put()
        if name == "people.jsonl":
            seen = refusal(lambda: read_ledger(path), os.path.realpath(path))
        elif name == "plan.json":
            seen = refusal(lambda: storage.check(str(directory), PLAN, resuming=True), path)
        else:
            seen = refusal(Checkpoint(directory).load, path, CheckpointError)
        assert seen is None
        assert os.path.lexists(path)
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def test_strange_literals_are_refused_in_every_sealed_object():
    for literal in LITERALS:
        text = b'{"a":' + literal + b"}"
        sealed = text[:-1] + b',"sha256":"' + hashlib.sha256(text).hexdigest().encode() + b'"}'
        try:
            unseal(sealed)
        except ValueError:
            continue
        assert literal in (b"1e999", b'"\\ud800"')
