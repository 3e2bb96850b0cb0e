"""The examples in the docstrings of public names run as they stand."""

import inspect
import re

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import blindstep

# They start runs, which takes seconds each to compile.
LONG = {"Auto", "Host", "People", "Result", "minimize", "tune", "value", "audit", "certificate"}


class Quick:
    """The package, whose runs are short unless an example says how long they are."""

    def __getattr__(self, name):
        return getattr(blindstep, name)

    def minimize(self, *args, **options):
        if isinstance(options.get("evaluate"), blindstep.Host):
            options["evaluate"] = blindstep.Host()  # engines have tests of their own
            args = (lambda params, record: float(np.abs(params - record).sum()), *args[1:])
        options.setdefault("method", blindstep.Auto(evaluations=2**12))
        return blindstep.minimize(*args, **options)

    def tune(self, loss, params, data, candidates, privacy):
        assert all(isinstance(each, blindstep.Auto) for each in candidates)
        short = [blindstep.Auto(evaluations=2**12) for _ in candidates]
        return blindstep.tune(loss, params, data, short, privacy)


def example(name):
    """The indented code of a docstring, before its sections."""
    text = inspect.getdoc(getattr(blindstep, name)) or ""
    blocks = re.findall(
        r"(?<=\n\n)((?:    .*\n|\n)+)", re.split(r"\n(?:Args|Attributes):", text)[0] + "\n"
    )
    return inspect.cleandoc("\n".join(blocks))


NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
    for name in blindstep.__all__
]


@pytest.mark.parametrize("name", blindstep.__all__)
def test_every_public_name_has_an_example(name):
    assert re.search(r"[\w)]\(|\[|=", example(name)), name


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = np.random.default_rng(0).normal(size=(1000, 3))
    known = {"Privacy": blindstep.Privacy, "bs": Quick(), "np": np, "data": data}

    def loss(params, record):
        return jnp.abs(params - record).sum()

    known |= {"loss": loss, "simulator": loss, "params": np.zeros(3), "public_records": data}
    known |= {
        "privacy": blindstep.Privacy(epsilon=1, delta=1e-5),
        "identifiers": np.arange(1000) // 2,
    }
    known["people"] = pd.DataFrame({"age": [30.0, 60.0], "job": ["cook", "clerk"]})
    code = example(name)
    if "result" in code and "result =" not in code:
        plan = blindstep.plan(
            blindstep.Auto(evaluations=2**12), dim=3, records=1000, privacy=known["privacy"]
        )
        known["result"] = blindstep.minimize(loss, np.zeros(3), data, method=plan)
    code = code.replace(
        "import jax.numpy as jnp, numpy as np, blindstep as bs", "import jax.numpy as jnp"
    )
    code = code.replace("import numpy as np, blindstep as bs", "")
    exec(compile(code, name, "exec"), known)
