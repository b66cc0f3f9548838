"""What torch says of a device that need not be here: what its kernels return, and what op_db declares for it.

A device is named as backends name it: "cuda", "rocm", "xpu", "mps", "hpu" (`tasks.devices.TORCH_DEVICES`).
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.tree import map_leaves
from tasks.catalogs.base import Metadata
from tasks.model import EPS

#: What torch calls a device, where backends have another name for it.
_CALLED = {"rocm": "cuda"}


def list_declared_dtypes(info: Any, device: str, gradient: bool = False) -> frozenset[str] | None:
    """The dtypes of an OpInfo, or of its gradient, that op_db declares for a device; None where it says nothing of it.

    Some of op_db's lists ask the device that is here: what a device is asked about is best asked where it is.
    """
    for spelling in (device.upper(), device.capitalize()):
        listed = getattr(info, f"{'backward_' * gradient}dtypesIf{spelling}", None)
        if listed is not None:
            return frozenset(map(torch_tree.name_torch_dtype, listed))
    return None


def infer_meta_outputs(op: Callable[..., Any], args: Any, kwargs: Any) -> list[Metadata | None] | None:
    """Dtype and shape of each output of a call by torch's meta kernels, which speak for every device but the CPU; None
    for an output that is no tensor, and for all of them where there is no such kernel or the outputs depend on the
    values."""
    import torch

    def there(x: Any) -> Any:
        return x.detach().to("meta") if isinstance(x, torch.Tensor) else torch_tree.replace_device_in_tree(x, "meta")

    try:
        with torch.no_grad():
            made = torch_tree.list_output_tensors(op(*map_leaves(args, there), **map_leaves(kwargs, there)))
    except Exception:
        return None
    return [
        (torch_tree.name_torch_dtype(x.dtype), tuple(x.shape)) if isinstance(x, torch.Tensor) else None for x in made
    ]


def may_device_dtypes_differ(dtype: str, outputs: int) -> bool:
    """Whether a call may return other dtypes on a device than on a CPU: beside its result a statistic, which a device
    keeps in what it adds in, float32 for all that is narrower.

    Meta kernels written in Python take a millisecond, so they are asked of nothing else. `tests/tasks/test_declared.py`
    asks all of op_db whether there is anything else.
    """
    return outputs > 1 and EPS.get(dtype, 0.0) > EPS["float32"]


def describe_call_modes(args: Any, kwargs: Any) -> str:
    """What a call (encoded trees) asks for beside its numbers: names, flags and dtypes in their places, of tensors and
    numbers only that they are there. Samples of one mode differ in sizes and values."""

    def mode(node: Any) -> Any:
        if isinstance(node, list):
            return [mode(x) for x in node]
        if isinstance(node, dict):
            if node["$"] in ("tensor", "float", "complex"):
                return node["$"] if node["$"] == "tensor" else "number"
            return {k: v if k in ("$", "name") else mode(v) for k, v in node.items()}
        return "number" if type(node) in (int, float) else node

    return repr(mode([args, kwargs]))


def list_sample_modes(
    sampler: Callable[..., Any], info: Any, device: str, dtype: str, gradient: bool
) -> frozenset[str]:
    """The `describe_call_modes` of the samples that op_db makes of an OpInfo for a device, made in the CPU's memory.

    Raises what op_db raises, and NotEncodable.
    """
    import torch

    found = set()
    name = _CALLED.get(device, device)
    with warnings.catch_warnings(), _preserve_rng_state(), torch.no_grad(), make_device_samples_on_cpu(name):
        warnings.simplefilter("ignore")
        for sample in sampler(info, name, getattr(torch, dtype), gradient):
            args, kwargs, _ = torch_tree.encode_torch_args((sample.input, *sample.args), sample.kwargs)
            found.add(describe_call_modes(*(_rename_device_to_cpu(x, name) for x in (args, kwargs))))
    return frozenset(found)


def _rename_device_to_cpu(node: Any, name: str) -> Any:
    """An encoded tree in which a device is called as in the CPU's samples."""
    if isinstance(node, list):
        return [_rename_device_to_cpu(x, name) for x in node]
    if isinstance(node, dict):
        return {k: _rename_device_to_cpu(v, name) for k, v in node.items()}
    return "cpu" if node == name else node


@contextlib.contextmanager
def make_device_samples_on_cpu(name: str) -> Iterator[None]:
    """Tensors asked for on a device of torch's are made in the CPU's memory instead; the device keeps its name."""
    import torch
    from torch.overrides import TorchFunctionMode

    def other(x: Any) -> Any:
        named = x.type if isinstance(x, torch.device) else x.partition(":")[0] if isinstance(x, str) else ""
        return torch.device("cpu") if named == name else x

    class InMemory(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.device:
                return func(*args, **(kwargs or {}))
            return func(*map(other, args), **{k: other(x) for k, x in (kwargs or {}).items()})

    with InMemory():
        yield


@contextlib.contextmanager
def _preserve_rng_state() -> Iterator[None]:
    """Around what seeds torch, NumPy and Python's own numbers: all go on afterwards as before."""
    import torch

    state, own = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        yield
    np.random.set_state(state)
    random.setstate(own)
