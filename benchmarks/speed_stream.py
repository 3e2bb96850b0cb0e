"""A run over records that stay on disk: its peak of memory that is not the file's."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import blindstep as bs
from benchmarks.speed_problems import svm_loss

DIM, BATCH = 32, 10_000


def _anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("this system does not say how much memory is in use")


class _Peak(threading.Thread):
    """The largest reading while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes, self.stop = 0, threading.Event()

    def run(self) -> None:
        """Look every 2 milliseconds."""
        while not self.stop.is_set():
            self.bytes = max(self.bytes, _anonymous_bytes())
            time.sleep(0.002)


def streamed(records: int) -> dict[str, Any]:
    """One pass of `minimize` over that many memory-mapped records; the first call has compiled."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        features = np.lib.format.open_memmap(
            f"{folder}/features.npy", "w+", np.float32, (records, DIM)
        )
        for start in range(0, records, BATCH):
            features[start : start + BATCH] = rng.normal(size=(BATCH, DIM))
        features.flush()
        np.save(f"{folder}/labels.npy", np.sign(rng.normal(size=records)).astype(np.float32))
        del features

        def run(some: int) -> tuple[float, int]:
            data = (
                np.load(f"{folder}/features.npy", mmap_mode="r")[:some],
                np.load(f"{folder}/labels.npy", mmap_mode="r")[:some],
            )
            plan = bs.plan(
                bs.Tight(
                    radius=0.1,
                    bounds=bs.Bounds(clip=1.0, diff_clip=1.0),
                    oracle="naive",
                    period=1,
                    horizon=2,
                    first_batch=BATCH,
                    directions=8,
                    sharing="block",
                ),
                records=some,
                dim=DIM,
                privacy=bs.Privacy(mu=1.0),
            )
            before, peak = _anonymous_bytes(), _Peak()
            peak.start()
            began = time.perf_counter()
            bs.minimize(svm_loss, np.zeros(DIM, np.float32), data, method=plan)
            seconds = time.perf_counter() - began
            peak.stop.set()
            peak.join()
            return seconds, peak.bytes - before

        run(2 * BATCH)
        seconds, grown = run(records)
    return {
        "stream": records,
        "file_bytes": 4 * records * (DIM + 1),
        "peak_bytes": grown,
        "seconds": seconds,
    }
