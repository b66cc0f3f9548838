"""The networks that are trained, by name."""

from __future__ import annotations

import importlib

from tasks.training.networks.base import Network

#: Network → the module that has it as NETWORK; imported only when asked for, as it imports torch.
BUILT_IN = {
    "convolution": "tasks.training.networks.convolution",
    "diffusion": "tasks.training.networks.diffusion",
    "experts": "tasks.training.networks.experts",
    "gpt": "tasks.training.networks.gpt",
    "llama": "tasks.training.networks.llama",
    "vision": "tasks.training.networks.vision",
}


def get_training_network(name: str) -> Network:
    """The network of a name. Raises KeyError."""
    found: Network = importlib.import_module(BUILT_IN[name]).NETWORK
    return found
