"""These tests need PyTorch: `make test-torch` installs it; elsewhere they are left out."""

from importlib.util import find_spec

HERE = find_spec("torch") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]

if HERE:
    import torch

    # Two threads on two busy cores wait for each other longer than they compute.
    torch.set_num_threads(1)
