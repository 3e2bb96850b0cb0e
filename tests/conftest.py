"""Shapes and types are checked at run time in every test; every test runs in 64-bit mode."""

import gc
import os
import signal

import jax
import pytest

from typechecking import check_at_run_time

# Most tests run a program once: compiling it quickly matters more than running it fast. The flags are
# read when the first program is compiled, and by the processes that tests start; from 0.11 on JAX has
# no such flags and ends the process that sets them.
jax.config.update("jax_disable_most_optimizations", True)
QUICKLY = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11) and QUICKLY not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICKLY}".strip()
# Shells start background jobs with Ctrl-C ignored; tests press it, here and in what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
INNER = ("ask_tell", "calibration", "choice", "compiled", "host", "loop", "outcome")
INNER += ("progress", "query", "result", "value")
# All but the planner's search, which makes millions of small calls on plain numbers: pyright reads it.
check_at_run_time(
    [
        *("blindstep.private", "blindstep.ledger", "blindstep.processes", "blindstep.estimate"),
        *("blindstep.losses", "blindstep.insight", "blindstep.sklearn"),
        # Not the public calls: what they say of a wrong argument is tested, and it is theirs to say.
        *(f"blindstep.run.{name}" for name in INNER),
        *("blindstep.torch", "blindstep.serve", "blindstep.cli", "blindstep.optimize"),
    ]
)


@pytest.fixture(autouse=True, scope="session")
def _one_noise():
    import one_noise  # after the hook above: it imports what is checked

    one_noise.everywhere()


# Files of few tests that take long. Workers take whole files: these first, so that no worker begins one
# when there is nothing left for the other.
FIRST = (
    *("serve/test_faults", "serve/test_taking_part", "run/test_two_processes", "run/test_kill"),
    *("docs/test_documents", "serve/test_api_contract", "losses/test_streams", "insight/test_demo"),
    *("run/test_self_scaling", "run/test_values", "run/test_first_answers", "docs/test_extend"),
)


def pytest_configure(config):
    if hasattr(config.option, "loadscopereorder"):  # pytest-xdist is there
        config.option.loadscopereorder = False  # in the order below, not by the number of tests


def pytest_collection_modifyitems(items):
    places = {f"tests/{name}.py": place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(FIRST)))


def pytest_collection_finish():
    # What was imported stays: it need not be looked through again and again for what can go.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk():
    """No test pulls the plug, so what is flushed need not be waited for; that it is has tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


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
