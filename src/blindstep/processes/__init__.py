"""Several processes on one run: JAX's and PyTorch's."""
