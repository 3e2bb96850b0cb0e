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


@pytest.mark.slow
def test_eight_devices_agree_with_one_and_resume_bit_for_bit(tmp_path):
    finish(start(8, "eight", tmp_path))
    with np.load(tmp_path / "out.npz") as out:
        alone = mesh_child.run(mesh_child.DATA, "shared").means
        np.testing.assert_allclose(out["whole"], alone, rtol=1e-12, atol=0)
        np.testing.assert_array_equal(out["resumed"], out["whole"])


@pytest.mark.slow
def test_every_layout_agrees_and_each_device_does_its_share_only(tmp_path):
    """Work is counted by the compiler. Batches do not divide by eight, so an eighth is out of reach."""
    finish(start(8, "layouts", tmp_path))
    with np.load(tmp_path / "out.npz") as out:
        for plan in mesh_child.PLANS:
            alone = mesh_child.run(mesh_child.DATA, plan).means
            spread = {name: out[name] for name in out if name.startswith(f"{plan}-")}
            assert len(spread) == (3 if plan == "own" else 1)
            for name, means in spread.items():
                np.testing.assert_allclose(means, alone, rtol=1e-12, atol=0, err_msg=name)
            whole, share = out[f"flops-{plan}"]
            assert share < 0.5 * whole


@pytest.mark.slow
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
    for name in ("seeded", "secret", "scaled"):
        np.testing.assert_array_equal(zero[name], one[name])
    for rank in (zero, one):
        np.testing.assert_array_equal(rank["kept"], rank["seeded"])
        np.testing.assert_array_equal(rank["again"], rank["scaled"])
    assert np.any(zero["secret"] != zero["seeded"])
