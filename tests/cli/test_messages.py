"""First mistakes, each answered by a message about itself, before anything is evaluated.

In a Python of its own: types are not checked there, as they are not where people run it.
"""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, sys
import jax.numpy as jnp, numpy as np, pandas as pd
import blindstep as bs

data, said = np.ones((50, 2)), {}


def absolute(params, record):
    return np.sum(np.abs(np.asarray(params) - record))


def tried(name, call=bs.minimize, *, loss=lambda p, z: jnp.sum(p - z), data=data, **given):
    known = {"radius": 0.5, "bounds": bs.Bounds(clip=1.0)}
    known |= {each: given.pop(each) for each in ("bounds", "lipschitz") if each in given}
    try:
        host = bs.Host(**given.pop("host")) if "host" in given else None
        method = given.pop("method") if "method" in given else bs.Tight(**known)
        call(loss, np.zeros(2), data, **{"privacy": bs.Privacy(epsilon=1), **given},
             method=method, evaluate=host)
    except bs.errors.BlindstepError as error:
        said[name] = str(error)


tried("bounds", bounds=1.0)
tried("bounds beside lipschitz", bounds=1.0, lipschitz=1.0)
tried("frame", data=pd.DataFrame({"name": ["Ada"] * 50}))
tried("list", data={"a": [1.0, 2.0]})
tried("text", data=np.array(["Ada"] * 50))
tried("numpy", loss=absolute)
tried("executor", loss=absolute, host={"executor": 2})
tried("map", loss=absolute, host={"map": 2})
tried("budget", budget=4.0, ledger="people.jsonl")
tried("privacy", privacy=1.0)
tried("privacy alone", privacy=1.0, method=None)
tried("epsilon", privacy=bs.Privacy(epsilon=1000), checkpoint="run")
tried("host loss", loss=lambda p, z: p - z, checkpoint="run", host={})
tried("scales", lambda *_, **__: bs.encode({"a": [1.0]}, scales={"a": 3}))
tried("no directory", checkpoint=sys.executable + "/run")
os.mkdir("locked")
os.access = lambda path, mode: False  # what root is never told
tried("locked directory", checkpoint="locked")
os.rmdir("locked")
print(json.dumps(said))
"""
EXPECTED = {
    "bounds": "bounds must be blindstep.Bounds, such as bounds=Bounds(clip=1.0), got 1.0",
    "bounds beside lipschitz": "bounds must be blindstep.Bounds",
    "frame": "data['name'] has dtype <U3: a loss computes with numbers. Turn categories into features",
    "list": "data['a'][0] is a float, not an array",
    "text": "data has dtype <U3: a loss computes with numbers",
    "numpy": "needs evaluate=blindstep.Host()",
    "executor": "executor must be a concurrent.futures executor",
    "map": "map must be a function like the builtin map, got 2",
    "budget": "budget must be a Privacy, such as Privacy(epsilon=4), got 4.0",
    "privacy": "privacy must be a budget such as Privacy(epsilon=4, delta=1e-5), got 1.0",
    "privacy alone": "privacy must be a budget such as Privacy(epsilon=4, delta=1e-5), got 1.0",
    "epsilon": "Give an epsilon of at most",
    "host loss": "the loss gives an array of shape (2,), not one real number",
    "no directory": "give one that can be written",
    "scales": "scales['a'] must be (centre, size), such as (40, 20), got 3",
    "locked directory": "cannot be read (Permission denied): check its",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir())  # nothing was begun, so nothing was spent
    return json.loads(done.stdout)


@pytest.mark.parametrize("mistake", EXPECTED)
def test_a_mistake_is_answered_by_a_message_about_itself(said, mistake):
    assert EXPECTED[mistake] in said[mistake]
