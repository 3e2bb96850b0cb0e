"""These tests need PyTorch: `make test-torch` installs it; elsewhere they are left out.

The folder is not called `torch`: pytest puts `tests` on the path, and where PyTorch is not installed
a folder of that name would be imported in its place.
"""

from importlib.util import find_spec

HERE = find_spec("torch") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]
if find_spec("transformers") is None or find_spec("peft") is None:
    collect_ignore_glob += ["test_trainer.py"]

if HERE:
    import torch

    # Two threads on two busy cores wait for each other longer than they compute.
    torch.set_num_threads(1)
