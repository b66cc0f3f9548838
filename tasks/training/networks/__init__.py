"""The networks that are trained, by name."""

from __future__ import annotations

import importlib

from tasks.training.networks.base import Network

#: Network → the module that has it as NETWORK; imported only when asked for, as it imports torch.
BUILT_IN = {"gpt": "tasks.training.networks.gpt"}


def get(name: str) -> Network:
    """The network of a name. Raises KeyError."""
    found: Network = importlib.import_module(BUILT_IN[name]).NETWORK
    return found
