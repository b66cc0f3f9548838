"""What a torch module holds: its tensors as bytes, to be put into the same module where it is made again. torch is imported inside functions."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tasks.arrays import torch_tree
from tasks.model import Form


class NotAlike(Exception):
    """A module is not the one that a state is of; the text says where they differ."""


@contextlib.contextmanager
def seed_rng(seed: int = 0) -> Iterator[None]:
    """In here torch, NumPy and `random` draw what this seed makes them draw; afterwards each goes on as it would have.

    torch is seeded where it is imported already.
    """
    torch = sys.modules.get("torch")
    before, others = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with torch.random.fork_rng(devices=[]) if torch is not None else contextlib.nullcontext():
            if torch is not None:
                torch.default_generator.manual_seed(seed)  # torch.manual_seed asks every device's module first
            yield
    finally:
        random.setstate(before)
        np.random.set_state(others)


def list_module_tensors(module: Any) -> dict[str, Any]:
    """Every tensor that a module holds, each once, under its first name: parameters, buffers, attributes, and what lies
    in lists, tuples and dicts of them."""
    import torch

    found: dict[int, tuple[str, Any]] = {}
    for name, x in _iterate_held_tensors(module):
        if isinstance(x, torch.Tensor) and not _is_parameter_unmade(x):
            found.setdefault(id(x), (name, x))
    return dict(found.values())


def list_unmade_parameters(module: Any) -> frozenset[str]:
    """Names of the parameters and buffers that torch makes at the first call."""
    return frozenset(name for name, x in _iterate_held_tensors(module) if _is_parameter_unmade(x))


def copy_module_state(module: Any) -> dict[str, np.ndarray]:
    """Copies of `list_module_tensors` as arrays. Raises NotAlike for one that cannot be stored."""
    import torch

    found = {}
    with torch.no_grad():
        for name, x in list_module_tensors(module).items():
            if x.layout is not torch.strided or x.is_quantized or x.device.type == "meta":
                kind = "quantised" if x.is_quantized else f"on {x.device}" if x.device.type == "meta" else str(x.layout)
                raise NotAlike(
                    f"{name.removeprefix('model.')} is a tensor that cannot be stored ({kind}): let forward make it of dense ones"
                )
            found[name] = np.array(torch_tree.tensor_to_numpy(x.detach().cpu()), order="C")
    return found


def digest_module_state(state: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes, first 16 hex digits."""
    total = hashlib.sha256()
    for name, x in state.items():
        total.update(f"{name} {x.dtype.name} {x.shape}\0".encode() + np.ascontiguousarray(x).tobytes())
    return total.hexdigest()[:16]


def describe_plain_attributes(module: Any) -> dict[str, str]:
    """What a module holds that is no tensor and that its making may have drawn: numbers and arrays, by name, as
    text."""
    found = {}
    for name, x in _iterate_held_tensors(module):
        if isinstance(x, (bool, int, float, complex)):
            found[name] = repr(x)
        elif isinstance(x, np.ndarray) and x.dtype.kind in "biufc":
            found[name] = f"{x.dtype} {x.shape} {hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:16]}"
    return found


def digest_plain_attributes(module: Any) -> str:
    """SHA-256 of `describe_plain_attributes`, first 16 hex digits."""
    return hashlib.sha256(json.dumps(describe_plain_attributes(module), sort_keys=True).encode()).hexdigest()[:16]


def find_module_tensor(module: Any, name: str) -> Any:
    """What a module holds under a name of `list_module_tensors`. Plain enough for torch.compile to trace."""
    found = module
    for step in name.split("."):
        if isinstance(found, (list, tuple)):
            found = found[int(step)]
        elif isinstance(found, dict):
            found = found[step] if step in found else found[int(step)]
        else:
            found = getattr(found, step)
    return found


@runtime_checkable
class Renewable(Protocol):
    """A module that `load_module_state` puts back to what it held when it was made."""

    #: See `keep_module_state`.
    put_back: Callable[[], None]
    #: Names of the tensors that a call writes to, which are returned after its outputs.
    written: tuple[str, ...]


#: What a module has for the farm, and is not put back.
_HOOKS = tuple(Renewable.__annotations__)


def load_module_state(module: Any, state: Mapping[str, np.ndarray]) -> None:
    """Make a module hold what it held when it was made (`Renewable`), and write a state into its tensors, where they
    lie: what shares their memory goes on sharing it. Raises NotAlike."""
    import torch

    if isinstance(module, Renewable):
        module.put_back()
    _make_lazy_parameters(module, state)
    own = list_module_tensors(module)
    if own.keys() != state.keys():
        other = sorted(own.keys() ^ state.keys())
        raise NotAlike(f"{other[0]} is there in one of them only")
    for name, x in own.items():
        value = torch_tree.tensor_from_numpy(np.array(state[name]))
        if tuple(x.shape) != tuple(value.shape) or x.dtype != value.dtype:
            shown = [f"{torch_tree.name_torch_dtype(y.dtype)}{list(y.shape)}" for y in (value, x)]
            raise NotAlike(f"{name} is {shown[0]} in one and {shown[1]} in the other")
        with torch.inference_mode(x.is_inference()), torch.no_grad():
            x.copy_(value)


def keep_module_state(module: Any) -> Callable[[], None]:
    """What puts a module back to what it holds now, whatever a call has put in its attributes, lists and dicts; of the
    values of tensors that are written to in place, nothing is kept (`copy_module_state`)."""
    attributes = [(one, type(one), dict(vars(one))) for one in module.modules()]
    inside: dict[int, tuple[Any, Any]] = {}
    waiting = [x for _, _, own in attributes for x in own.values()]
    while waiting:
        x = waiting.pop()
        if isinstance(x, (list, dict)) and id(x) not in inside:
            inside[id(x)] = x, x.copy()
            waiting += x.values() if isinstance(x, dict) else x

    def put_back() -> None:
        for one, kind, own in attributes:
            hooks = {name: vars(one)[name] for name in _HOOKS if name in vars(one)}
            vars(one).clear()
            vars(one).update(own | hooks)
            one.__class__ = kind  # of a lazy layer, whose first call makes it another
        for x, before in inside.values():
            x.clear()
            (x.update if isinstance(x, dict) else x.extend)(before)

    return put_back


def place_module_state(form: Form, device: str) -> None:
    """Before a run: put the tensors that the module of a form holds on a device, and back to what they were if an
    earlier run wrote to them (`Form.renew`). A call that is no module is left alone."""
    import torch

    call = form.call
    if not isinstance(call, torch.nn.Module):
        return
    if form.renew is not None:
        form.renew()
    if device != "cpu":
        call.to(device)
        for x in list_module_tensors(call).values():
            if x.device.type != torch.device(device).type:
                x.data = x.data.to(device)  # an attribute, which `to` does not know


def _make_lazy_parameters(module: Any, state: Mapping[str, np.ndarray]) -> None:
    """Give parameters that torch makes at the first call the shapes that they have in a state."""
    for name, x in _iterate_held_tensors(module):
        if _is_parameter_unmade(x) and name in state:
            value = torch_tree.tensor_from_numpy(np.array(state[name]))
            x.materialize(tuple(value.shape), dtype=value.dtype)


def _is_parameter_unmade(x: Any) -> bool:
    from torch.nn.parameter import UninitializedTensorMixin

    return isinstance(x, UninitializedTensorMixin)


def _iterate_held_tensors(module: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of what a module and those within it hold; a module that is held twice is looked into once."""
    for path, one in module.named_modules():
        own = vars(one)
        for kind in ("_parameters", "_buffers"):
            for name, x in own.get(kind, {}).items():
                yield f"{path}.{name}".lstrip("."), x
        for name, x in own.items():
            if (
                not name.startswith("_torchdynamo") and name not in _list_torch_attributes()
            ):  # the former: addresses, of a compiled module
                yield from _walk_module_containers(f"{path}.{name}".lstrip("."), x, 0)


#: How deep lists and dicts are looked into.
_DEEP = 8


def _walk_module_containers(name: str, x: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(x, (list, tuple, dict)) and depth < _DEEP:
        for key, value in x.items() if isinstance(x, dict) else enumerate(x):
            yield from _walk_module_containers(f"{name}.{key}", value, depth + 1)
    else:
        yield name, x


@functools.cache
def _list_torch_attributes() -> frozenset[str]:
    """Attributes that every module of torch's has for itself."""
    import torch

    return frozenset(vars(torch.nn.Module()))
