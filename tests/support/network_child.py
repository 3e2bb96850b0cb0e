"""A run of `blindstep.torch` in a process of its own: one that can be killed, or one of two.

python network_child.py alone|slowly|together WEIGHTS DIRECTORY
"""

import os
import sys
import time

import torch

import one_noise
from small_networks import loss, transformer, tune


def main(how, weights, directory):
    one_noise.everywhere()
    torch.set_num_threads(1)
    if how == "together":
        torch.distributed.init_process_group(
            "gloo", init_method=os.environ["MEETING"], rank=int(os.environ["RANK"]), world_size=2
        )

    def slow(model, batch):
        time.sleep(0.004)
        return loss(model, batch)

    model = transformer()
    checkpoint = None if directory == "-" else directory
    tune(model, loss=slow if how == "slowly" else loss, checkpoint=checkpoint)
    torch.save(model.state_dict(), weights)
    if how == "together":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
