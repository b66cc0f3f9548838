"""One timed call of torch's: from the call until the device has finished all that was asked of it, on whatever stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.backends.shared.torch_devices import synchronize
from tasks.model import Timed

#: Seconds after which the outputs of a call on the CPU that is probed are read again: a thread that writes them late has done so.
LATER_S = 0.02
#: Bound once: a kernel may replace those of the module.
_wall, _cpu = time.perf_counter, time.process_time


def time_call(
    call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], target: str, probe: bool
) -> Timed:
    """Call a function of tensors on what torch calls ``target``, which waits, and time it. probe: it is looked at twice, and the time is
    of no use.

    A tensor of a class of its own may compute when it is read: then reading is a part of the call.
    """
    import torch

    events = _events(target)
    with torch.no_grad():
        cpu, begin = _cpu(), _wall()
        if events:
            events[0].record()
        leaves = torch_tree.leaves(call(*args, **kwargs))
        if events:
            events[1].record()
        plain = all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in leaves)
        early = (
            [torch.clone(x) if isinstance(x, torch.Tensor) else x for x in leaves] if probe and target != "cpu" else []
        )
        if plain or target == "cpu":
            synchronize(target)
        arrays = [] if plain else _read(leaves)
        cpu, wall = _cpu() - cpu, _wall() - begin
    device_s = events[0].elapsed_time(events[1]) / 1e3 if events and not probe else None
    found = [_copy(x) for x in (arrays or _read(early or leaves))]
    later = None
    if probe:
        if target == "cpu":
            time.sleep(LATER_S)
        later = [np.array(x) for x in _read(leaves)]
    return Timed(found, wall, cpu if target == "cpu" else None, device_s, later)


def _read(leaves: Sequence[Any]) -> list[np.ndarray]:
    return [torch_tree.output(torch_tree.dense(x)) for x in leaves]


def _copy(x: np.ndarray) -> np.ndarray:
    """A copy that is made from the end: what writes the array at the same time mostly begins at its beginning. It takes as long whatever
    the order of the axes in memory."""
    axes = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
    dense = x.transpose(axes)
    if not dense.flags.c_contiguous:
        return np.array(x)
    made = np.array(dense.reshape(-1)[::-1])[::-1].reshape(dense.shape)
    return made.transpose([axes.index(axis) for axis in range(x.ndim)])


def _events(target: str) -> list[Any]:
    """Two events of a device that measure time between them; none where there are no such."""
    import torch

    kind = getattr(getattr(torch, target, None), "Event", None)
    if target == "cpu" or kind is None:
        return []
    try:
        return [kind(enable_timing=True) for _ in range(2)]
    except Exception:  # each plugin fails in its own way
        return []
