"""CUDA graphs (on ROCm HIP's): a call recorded once, and replayed on other inputs in the same memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tasks.arrays import torch_tree

#: Runs before the recording, as torch asks for: libraries set themselves up in the first (torch.cuda.CUDAGraph's notes).
WARM_UP = 3


def captured(
    call: Callable[..., Any], arguments: Callable[[list[Any]], tuple[Any, Any]], arrays: list[Any]
) -> Callable[[list[Any]], Sequence[Any]]:
    """What replays ``call`` on other arrays. arguments: makes (args, kwargs) on the device of arrays. Raises what torch does of a
    call that cannot be recorded."""
    import torch

    args, kwargs = arguments(arrays)
    held = [x for x in torch_tree.leaves([args, kwargs]) if isinstance(x, torch.Tensor)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(WARM_UP):
            call(*args, **kwargs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        made = torch_tree.leaves(call(*args, **kwargs))

    def replay(arrays: list[Any]) -> Sequence[Any]:
        fresh = [x for x in torch_tree.leaves(list(arguments(arrays))) if isinstance(x, torch.Tensor)]
        with torch.no_grad():
            for old, new in zip(held, fresh, strict=True):
                old.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        return [torch_tree.output(torch_tree.dense(x)) for x in made]

    return replay
