"""What the modules of a network return during a forward pass, by name: the taps of a training step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def watch_modules(module: Any, seen: dict[str, Any]) -> Iterator[None]:
    """In here the tensor that a module inside returns at its first call is kept in ``seen``, in the order of the calls;
    the whole's is not, nor what is no tensor."""
    import torch

    def keep(name: str) -> Any:
        def hook(_: Any, __: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.is_floating_point():
                seen.setdefault(name, output.detach())

        return hook

    hooks = [part.register_forward_hook(keep(name)) for name, part in module.named_modules() if name]
    try:
        yield
    finally:
        for one in hooks:
            one.remove()
