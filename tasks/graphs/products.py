"""The products inside a computation: whether there are any, and what comes out where each of their factors is changed.

The computation itself is asked, not the name of its op. A torch program tells by the ops that it dispatches, a NumPy function
by the functions that it calls; an ONNX graph has its nodes (`tasks.graphs.coarse`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tasks.judge import op_classes
from tasks.model import OpClass

#: What becomes of a factor, float64 or complex128; the number tells the factors of a run apart.
Change = Callable[[np.ndarray, int], np.ndarray]

#: ATen's kernels with products inside that neither torch's own counter of them nor the table of classes knows by name.
_FUSED = frozenset(
    "_trilinear _cdist_forward _euclidean_dist mkldnn_rnn_layer mkldnn_convolution _scaled_dot_product_flash_attention_for_cpu"
    " _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math".split()
)
#: Classes of which each kernel is products, or steps made of them (a factorisation updates by products).
_CLASSES = (OpClass.CONTRACTION, OpClass.LINEAR_ALGEBRA)
#: Arguments of a product that are added to it, not multiplied: by name, and the first one of what begins so.
_ADDED, _ADDS = "bias", ("add", "badd", "sparse_sampled_add")


@functools.cache
def is_product(name: str) -> bool:
    """Whether a kernel of ATen ("addmm", "_scaled_dot_product_flash_attention") computes sums of products."""
    bare = name.strip("_")
    plain = bare.removeprefix("linalg_")
    classes = {op_classes.of(f"torch:{x}").op_class for x in (bare, plain, f"linalg.{plain}")}
    return name in _FUSED or name in _counted() or not classes.isdisjoint(_CLASSES)


def is_transform(name: str) -> bool:
    """Whether a kernel of ATen or an operator of ONNX is a Fourier transform, whose sums of products no matrix unit computes."""
    return name.startswith("_fft_") or name in ("DFT", "STFT")


@functools.cache
def _counted() -> frozenset[str]:
    """Kernels whose products torch counts itself."""
    from torch.utils.flop_counter import flop_registry

    return frozenset(str(getattr(x, "__name__", x)).rpartition(".")[2] for x in flop_registry)


@contextlib.contextmanager
def in_torch(change: Change | None = None) -> Iterator[list[str]]:
    """In here the products and transforms that torch calls are noted, and each wide factor of a product is what ``change`` makes of it.

    Attention is computed step by step: a fused kernel shows nobody its second product's factors.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found: list[str] = []
    with sdpa_kernel(SDPBackend.MATH), _watched_calls()(found, change):
        yield found


@functools.cache
def _watched_calls() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watched(TorchDispatchMode):
        def __init__(self, found: list[str], change: Change | None) -> None:
            super().__init__()
            self.found, self.change, self.places = found, change, iter(range(1, 1 << 60))

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            self.found.extend([name] * (is_product(name) or is_transform(name)))
            if self.change is not None and is_product(name):
                args = with_factors(func, args, lambda x: _changed_tensor(x, self.change, self.places))
            return func(*args, **(kwargs or {}))

    return Watched


def with_factors(func: Any, args: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
    """The arguments of a product of ATen's, each tensor that is a factor being what ``change`` makes of it."""
    import torch

    def changed(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [changed(x) for x in value]
        return change(value) if isinstance(value, torch.Tensor) else value

    named = [x.name for x in func._schema.arguments]
    first = int(func.overloadpacket.__name__.strip("_").startswith(_ADDS))
    return [x if k < first or named[k] == _ADDED else changed(x) for k, x in enumerate(args)]


def _changed_tensor(value: Any, change: Change | None, places: Iterator[int]) -> Any:
    import torch

    wide = value.dtype in (torch.float64, torch.complex128)
    if change is None or not wide or value.layout != torch.strided:
        return value
    x = value.resolve_conj().resolve_neg().numpy()
    return torch.from_numpy(np.asarray(change(x, next(places))))


#: NumPy's functions of products that are no ufuncs.
_NUMPY = ("dot", "vdot", "inner", "einsum", "tensordot", "convolve", "correlate")
_UFUNCS = ("matmul", "vecdot", "matvec", "vecmat")


class _Watched(np.ndarray):
    """An array that notes the products that it is a factor of, as does whatever is made of it."""

    found: list[str]
    change: Change | None
    places: Iterator[int]

    def __array_finalize__(self, other: Any) -> None:
        for name in ("found", "change", "places"):
            if hasattr(other, name):
                setattr(self, name, getattr(other, name))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [_plain(x) for x in inputs]
        kwargs = {name: _plain(x) for name, x in kwargs.items()}
        if ufunc.__name__ in _UFUNCS:
            plain = self._factors(ufunc.__name__, plain)
        return self._like(getattr(ufunc, method)(*plain, **kwargs))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = func.__name__
        if name not in _NUMPY and not str(getattr(func, "__module__", "")).startswith("numpy.linalg"):
            return super().__array_function__(func, types, args, kwargs)
        if name == "norm":
            return super().__array_function__(func, types, args, kwargs)
        given = self._factors(name, [_plain(x) for x in args])
        return self._like(func(*given, **{k: _plain(x) for k, x in kwargs.items()}))

    def dot(self, other: Any, out: Any = None) -> Any:
        return np.dot(self, other)

    def _factors(self, name: str, given: Sequence[Any]) -> list[Any]:
        self.found.append(name)
        if self.change is None:
            return list(given)
        return [self._changed(x) for x in given]

    def _changed(self, x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)([self._changed(y) for y in x])
        wide = isinstance(x, np.ndarray) and x.dtype in (np.float64, np.complex128)
        return self.change(x, next(self.places)) if wide and self.change else x

    def _like(self, made: Any) -> Any:
        if isinstance(made, tuple):
            return tuple(map(self._like, made))
        if not isinstance(made, np.ndarray):
            return made
        view = made.view(_Watched)
        view.found, view.change, view.places = self.found, self.change, self.places
        return view


def _plain(x: Any) -> Any:
    if isinstance(x, _Watched):
        return x.view(np.ndarray)
    return type(x)(map(_plain, x)) if type(x) in (tuple, list) else x


class InNumpy:
    """A run of a NumPy function: `watched` gives its arrays, ``found`` has the names of the products that it then computed."""

    def __init__(self, change: Change | None = None) -> None:
        self.found: list[str] = []
        self._change, self._places = change, iter(range(1, 1 << 60))

    def watched(self, array: np.ndarray) -> np.ndarray:
        view = array.view(_Watched)
        view.found, view.change, view.places = self.found, self._change, self._places
        return view
