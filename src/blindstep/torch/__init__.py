"""Private tuning and training of any PyTorch model, from its losses alone or from gradients.

    result = blindstep.torch.minimize(model, loss, data, privacy=bs.Privacy(epsilon=2, delta=1e-5))
    result.save("tuned.blindstep")                      # kilobytes
    blindstep.torch.load(base_model, "tuned.blindstep")  # the same weights, bit for bit

Needs PyTorch: `pip install '.[torch]'` in a copy of the repository.
"""

import os

# JAX would take three quarters of an accelerator's memory for itself, and here it only keeps the gate.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from blindstep.torch.trainer import Trainer
from blindstep.torch.tuned_model import TunedModel
from blindstep.torch.tuning import load, minimize, plan

__all__ = ["Trainer", "TunedModel", "load", "minimize", "plan"]
