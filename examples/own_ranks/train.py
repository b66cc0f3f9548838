"""A training script for torchrun, with the farm's hook: the same function makes what is trained here and what the farm trains in float64."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def data():
    draw = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(8, 16, generator=draw), torch.randint(0, 5, (8,), generator=draw)


def make():
    """What the farm's config names: (module, data, optimiser, loss), and how many batches are a step: of 4 ranks each
    takes one."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 5))
    return module, data(), torch.optim.AdamW(module.parameters(), lr=1e-3), cross_entropy, {"accumulate": 4}


def main():
    dist.init_process_group("gloo")
    module, batches, _, loss, _ = make()
    model = DistributedDataParallel(module)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # The hook: within `farm run` it takes the steps that the farm asks for, elsewhere it returns at once.
    from tasks.backends.training_hook import serve

    if serve(model, optimiser, lambda model, x, y: loss(model(x), y)):
        return

    for number, (x, y) in zip(range(400), batches):
        if number % dist.get_world_size() == dist.get_rank():
            loss(model(x), y).backward()
        if number % 4 == 3:
            optimiser.step()
            optimiser.zero_grad()


if __name__ == "__main__":
    main()
