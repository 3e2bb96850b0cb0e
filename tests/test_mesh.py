"""Data sharded over a mesh: the same result to rounding, and the work follows the data."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

import mesh_child


def start(devices, *arguments):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, mesh_child.__file__, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    said, _ = process.communicate()
    assert process.returncode == 0, said


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mesh")
    finish(start(8, "eight", folder))
    with np.load(folder / "out.npz") as out:
        return dict(out)


@pytest.mark.parametrize("plan", mesh_child.PLANS)
def test_one_and_eight_devices_agree(eight, plan):
    alone = mesh_child.run(mesh_child.DATA, plan).means
    spread = {name: means for name, means in eight.items() if name.startswith(f"{plan}-")}
    assert len(spread) == (3 if plan == "own" else 1)
    for name, means in spread.items():
        np.testing.assert_allclose(means, alone, rtol=1e-12, atol=0, err_msg=name)


@pytest.mark.parametrize("plan", mesh_child.PLANS)
def test_each_device_does_its_share_only(eight, plan):
    """Counted by the compiler. The batches do not divide by eight, so an eighth is out of reach."""
    alone, share = eight[f"flops-{plan}"]
    assert share < 0.5 * alone


def test_a_sharded_run_is_resumed_bit_for_bit(eight):
    np.testing.assert_array_equal(eight["resumed"], eight["own-plain"])


def test_two_processes_agree_with_one(tmp_path):
    """Each holds half of the records; without a seed both must still add the same noise."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    for process in [start(2, "two", tmp_path, rank, port) for rank in range(2)]:
        finish(process)
    zero, one = (dict(np.load(tmp_path / f"out-{rank}.npz")) for rank in range(2))
    alone = mesh_child.run(mesh_child.DATA, "own").means
    np.testing.assert_allclose(zero["seeded"], alone, rtol=1e-12, atol=0)
    for name in ("seeded", "secret"):
        np.testing.assert_array_equal(zero[name], one[name])
    assert np.any(zero["secret"] != zero["seeded"])
