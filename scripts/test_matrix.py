"""The tests on Python 3.11 with the oldest dependencies, 3.12 with those of CI, 3.13 with the newest.

    python scripts/test_matrix.py                       # all three, everything; `make test-matrix`
    python scripts/test_matrix.py --python 3.13 -- tests/private tests/run

Each has an environment of its own in `.venv/matrix-3.*`, made from its file of constraints. Pythons are
looked for on the PATH and among pyenv's versions. What is after `--` is given to pytest. It goes on
after a version that fails, and ends with 1 then.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = {
    "3.11": "constraints-oldest.txt",
    "3.12": "constraints.txt",
    "3.13": "constraints-newest.txt",
}
SHOWN = ("jax", "equinox", "numpy", "scipy")


def interpreter(version: str) -> str:
    """The path of a Python of this version."""
    found = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    others = sorted(pyenv.glob(f"{version}.*/bin/python"))
    for each in (found, *map(str, others)):
        # A shim of pyenv is there for versions that are not.
        if each and subprocess.run([each, "-c", ""], capture_output=True).returncode == 0:
            return each
    raise SystemExit(f"there is no Python {version}: install it, or leave it out (--python)")


def environment(version: str) -> Path:
    """The Python of an environment with what the tests need, set up if it is not."""
    folder = ROOT / ".venv" / f"matrix-{version}"
    python, stamp = folder / "bin" / "python", folder / ".installed"
    needed = [ROOT / "pyproject.toml", ROOT / CONSTRAINTS[version]]
    if stamp.exists() and all(stamp.stat().st_mtime > path.stat().st_mtime for path in needed):
        return python
    subprocess.run([interpreter(version), "-m", "venv", str(folder)], check=True)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "-c", needed[1], "-e", f"{ROOT}[test]"], check=True)
    stamp.touch()
    return python


def versions(python: Path) -> str:
    """What an environment holds of what matters most."""
    asked = "from importlib.metadata import version as v; "
    asked += f"print(*(n + ' ' + v(n) for n in {SHOWN}), sep=', ')"
    told = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True)
    return told.stdout.strip()


def main() -> None:
    """Test each version, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--python", nargs="+", choices=CONSTRAINTS, default=list(CONSTRAINTS))
    parser.add_argument("tests", nargs="*", help="for pytest, after --")
    given = parser.parse_args()
    failed = []
    for version in given.python:
        python, began = environment(version), time.monotonic()
        print(f"Python {version}, {CONSTRAINTS[version]}: {versions(python)}", flush=True)
        command = [python, "-m", "pytest", "-n", "2", "--dist", "loadfile", *given.tests]
        if subprocess.run(command, cwd=ROOT).returncode:
            failed.append(version)
        print(f"Python {version}: {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed on Python {', '.join(failed)}")


if __name__ == "__main__":
    main()
