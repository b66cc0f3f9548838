"""train.py with a planted fault: rank 3 loses the gradient of one parameter."""

import torch
import torch.distributed as dist
import train

right = train.make


def make():
    module, *others = right()
    if dist.get_rank() == 3:
        module[2].weight.register_hook(torch.zeros_like)
    return module, *others


if __name__ == "__main__":
    train.make = make
    train.main()
