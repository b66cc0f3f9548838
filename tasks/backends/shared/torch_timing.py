"""Timed calls of torch's: each from the call until the device has finished all that was asked of it, on whatever stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.varied import digest_outputs, vary_inputs_by_digest
from tasks.backends.shared.torch_devices import synchronize_torch_device
from tasks.model import Chain, Timed
from tasks.run_queue import RunQueueClock, subtract_run_queue_seconds

#: Seconds after which the outputs of a call on the CPU that is probed are read again: a thread that writes them late
#: has done so.
LATER_S = 0.02
#: Bound once: a kernel may replace those of the module.
_wall, _cpu = time.perf_counter, time.process_time

#: How often what is done between two calls is done before the first: it is in the processor's caches then, whoever ran
#: before.
WARMING = 4
#: What a function is called with.
Arguments = tuple[Sequence[Any], Mapping[str, Any]]
#: Seconds of a call: by the wall clock, of CPU time, between two events, and in which its thread waited for a
#: processor.
_Times = tuple[float, float, Optional[float], Optional[float]]


class TorchCalls:
    """A chain of calls of a function of tensors on what torch calls ``target``. arrays: the inputs of the first; place:
    makes arguments on the device of some, which is not timed."""

    def __init__(
        self,
        call: Callable[..., Any],
        target: str,
        chain: Chain,
        arrays: list[Any],
        place: Callable[[list[Any]], Arguments],
    ) -> None:
        self._call, self._target, self._chain, self._arrays, self._place = call, target, chain, arrays, place
        self._results: list[list[np.ndarray]] = []
        for _ in range(WARMING if chain.calls > 1 and not chain.digests else 0):
            digest = digest_outputs([x for x in arrays if isinstance(x, np.ndarray)], chain.begin)
            place(vary_inputs_by_digest(arrays, digest, chain.moved))
        self._first = place(arrays)

    def __call__(self) -> Timed:
        """Make the calls; of one that is probed the time is of no use."""
        chain, digests, (args, kwargs) = self._chain, list[str](), self._first
        times, queue = list[_Times](), RunQueueClock()
        for k in range(chain.calls):
            if k:
                digest = (chain.digests or digests)[k - 1]
                args, kwargs = self._place(vary_inputs_by_digest(self._arrays, digest, chain.moved))
            found, took = _time_torch_call(self._call, args, kwargs, self._target, chain.probe, queue)
            times.append(took)
            self._results += found
            if not chain.digests:
                digests.append(digest_outputs(found[0], digests[-1] if digests else chain.begin))
        wall_s, cpu_s, device_s, waited_s = (
            None if None in found else sum(x for x in found if x is not None) / chain.calls for found in zip(*times)
        )
        assert wall_s is not None
        on_cpu = self._target == "cpu"
        return Timed((), wall_s, cpu_s if on_cpu else None, device_s, waited_s, digests=tuple(digests))

    def results(self) -> list[list[np.ndarray]]:
        return self._results


def _time_torch_call(
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    target: str,
    probe: bool,
    queue: RunQueueClock,
) -> tuple[list[list[np.ndarray]], _Times]:
    """The outputs as they were read at once, and once more of a call that is probed; what it took.

    A tensor of a class of its own may compute when it is read: then reading is a part of the call.
    """
    import torch

    events = _make_device_events(target)
    with torch.no_grad():
        before, cpu, begin = queue.read(), _cpu(), _wall()
        if events:
            events[0].record()
        leaves = torch_tree.list_output_tensors(call(*args, **kwargs))
        if events:
            events[1].record()
        plain = all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in leaves)
        early = (
            [torch.clone(x) if isinstance(x, torch.Tensor) else x for x in leaves] if probe and target != "cpu" else []
        )
        if plain or target == "cpu":
            synchronize_torch_device(target)
        arrays = [] if plain else _read_timed_outputs(leaves)
        cpu, wall, waited_s = _cpu() - cpu, _wall() - begin, subtract_run_queue_seconds(queue.read(), before)
    device_s = events[0].elapsed_time(events[1]) / 1e3 if events and not probe else None
    found = [[_copy_from_end(x) for x in (arrays or _read_timed_outputs(early or leaves))]]
    if probe:
        if target == "cpu":
            time.sleep(LATER_S)
        found.append([np.array(x) for x in _read_timed_outputs(leaves)])
    return found, (wall, cpu, device_s, waited_s)


def _read_timed_outputs(leaves: Sequence[Any]) -> list[np.ndarray]:
    return [torch_tree.make_output_array(torch_tree.dense(x)) for x in leaves]


def _copy_from_end(x: np.ndarray) -> np.ndarray:
    """A copy that is made from the end: what writes the array at the same time mostly begins at its beginning. It takes
    as long whatever the order of the axes in memory."""
    if x.flags.c_contiguous:
        return np.array(x.reshape(-1)[::-1])[::-1].reshape(x.shape)
    axes = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
    dense = x.transpose(axes)
    if not dense.flags.c_contiguous:
        return np.array(x)
    made = np.array(dense.reshape(-1)[::-1])[::-1].reshape(dense.shape)
    return made.transpose([axes.index(axis) for axis in range(x.ndim)])


def _make_device_events(target: str) -> list[Any]:
    """Two events of a device that measure time between them; none where there are no such."""
    import torch

    kind = getattr(getattr(torch, target, None), "Event", None)
    if target == "cpu" or kind is None:
        return []
    try:
        return [kind(enable_timing=True) for _ in range(2)]
    except Exception:  # each plugin fails in its own way
        return []
