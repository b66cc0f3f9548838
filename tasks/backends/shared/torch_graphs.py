"""CUDA graphs (on ROCm HIP's): a call recorded once, and replayed on other inputs in the same memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from tasks.arrays import torch_tree
from tasks.model import Unsupported
from tasks.model.errors import find_error_text
from tasks.older_python import zip_equal

#: Runs before the recording, as torch asks for: libraries set themselves up in the first (torch.cuda.CUDAGraph's
#: notes).
WARM_UP = 3
#: Graphs whose recording failed: torch's allocator of pinned memory goes on asking them whether it serves them
#: (CUDAGraph.cpp, create_allocate_filter), so they live as long as the process.
_failed: list[Any] = []


def capture_torch_call(
    call: Callable[..., Any], arguments: Callable[[list[Any]], tuple[Any, Any]], arrays: list[Any], target: str
) -> Callable[[list[Any]], Sequence[Any]]:
    """What replays ``call`` on other arrays. arguments: makes (args, kwargs) of arrays on the device, which torch calls
    ``target``.

    Raises Unsupported of a call that cannot be recorded: the runs before did without the recording, so what it alone
    refuses is no fault. Raises what torch does of those runs, and of a recording without memory."""
    import torch

    args, kwargs = arguments(arrays)
    held = _list_tensor_arguments([args, kwargs])
    if any(x.device.type != target for x in held):
        raise Unsupported("it cannot be recorded: an argument tensor stays on the CPU, which no replay rereads")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(WARM_UP):
            call(*args, **kwargs)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()  # what their kernels do wrong is raised here, as itself
    graph, made = _record_torch_graph(lambda: torch_tree.list_output_tensors(call(*args, **kwargs)))

    def replay(arrays: list[Any]) -> Sequence[Any]:
        with torch.no_grad():
            for old, new in zip_equal(held, _list_tensor_arguments(list(arguments(arrays)))):
                old.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        return [torch_tree.make_output_array(torch_tree.dense(x)) for x in made]

    return replay


def _list_tensor_arguments(arguments: list[Any]) -> list[Any]:
    import torch

    return [x for x in torch_tree.list_output_tensors(arguments) if isinstance(x, torch.Tensor)]


def _record_torch_graph(action: Callable[[], list[Any]]) -> tuple[Any, list[Any]]:
    """(graph, what the action returned while it was recorded). Raises Unsupported where it cannot be, in the words of
    what the action raised, which those of the recording's end are about."""
    import torch

    graph, pool, before = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), torch.cuda.current_stream()
    own: list[Exception] = []
    try:
        with torch.no_grad(), torch.cuda.graph(graph, pool=pool):
            try:
                return graph, action()
            except Exception as error:
                own.append(error)
                raise
    except Exception as error:
        first = own[0] if own else error
        if error is not first or not own:
            # The recording was spoilt. torch.cuda.graph ends one before it gives the stream back: where ending raises,
            # the recording's stream stays the current one, and the allocator keeps the pool open (it then frees no
            # cached block when memory is short).
            _failed.append(graph)
            torch.cuda.set_stream(before)
            with contextlib.suppress(Exception):
                torch._C._cuda_endAllocateToPool(before.device_index, pool)
                torch._C._cuda_releasePool(before.device_index, pool)
        if "out of memory" in str(first):
            raise first from None
        raise Unsupported(f"it cannot be recorded: {find_error_text(first)}") from error
