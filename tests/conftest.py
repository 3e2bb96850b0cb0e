"""Shapes and types are checked at run time in every test; every test runs in 64-bit mode."""

import os
import signal

import jax
import pytest
from jaxtyping import install_import_hook

# Most tests run a program once: compiling it quickly matters more than running it fast. The flag is
# read when the first program is compiled, and by the processes that tests start.
jax.config.update("jax_disable_most_optimizations", True)
QUICKLY = "--xla_cpu_use_fusion_emitters=false"
if QUICKLY not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICKLY}".strip()
# Shells start background jobs with Ctrl-C ignored; tests press it, here and in what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
INNER = ("ask_tell", "calibration", "choice", "compiled", "host", "loop", "outcome")
INNER += ("progress", "query", "result", "value")
# All but the planner's search, which makes millions of small calls on plain numbers: pyright reads it.
install_import_hook(
    [
        *("blindstep.private", "blindstep.ledger", "blindstep.processes", "blindstep.estimate"),
        *("blindstep.losses", "blindstep.insight", "blindstep.sklearn"),
        # Not the public calls: what they say of a wrong argument is tested, and it is theirs to say.
        *(f"blindstep.run.{name}" for name in INNER),
        *("blindstep.torch", "blindstep.serve", "blindstep.cli", "blindstep.optimize"),
    ],
    "typechecking.checked",
)


@pytest.fixture(autouse=True, scope="session")
def _one_noise():
    import one_noise  # after the hook above: it imports what is checked

    one_noise.everywhere()


@pytest.fixture(autouse=True, scope="session")
def _own_home(tmp_path_factory):
    """Ledgers of data files go to a folder of the tests, not to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLINDSTEP_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield
