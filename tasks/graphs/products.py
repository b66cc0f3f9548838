"""The products inside a computation: whether there are any, and what comes out where each of their factors is changed.

The computation itself is asked, not the name of its op. A torch program tells by the ops that it dispatches, a NumPy
function by the functions that it calls; an ONNX graph has its nodes (`tasks.graphs.coarse_products`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.arrays.watched_arrays import WatchedRun, unwatch_array
from tasks.judge import op_classes
from tasks.model import OpClass

#: What becomes of a factor, float64 or complex128; the number tells the factors of a run apart.
Change = Callable[[np.ndarray, int], np.ndarray]

#: ATen's kernels with products inside that neither torch's own counter of them nor the table of classes knows by name.
_FUSED = frozenset(
    "_trilinear _cdist_forward _euclidean_dist mkldnn_rnn_layer mkldnn_convolution _scaled_dot_product_flash_attention_for_cpu"
    " _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math"
    " _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 _scaled_mm_v2".split()
)
#: Classes of which each kernel is products, or steps made of them (a factorisation updates by products).
_CLASSES = (OpClass.CONTRACTION, OpClass.LINEAR_ALGEBRA)
#: Arguments of a product that are added to it, not multiplied: by name, and the first one of what begins so.
_ADDED, _ADDS = "bias", ("add", "badd", "sparse_sampled_add")


@functools.cache
def is_product_operation(name: str) -> bool:
    """Whether a kernel of ATen ("addmm", "_scaled_dot_product_flash_attention") computes sums of products."""
    bare = name.strip("_")
    plain = bare.removeprefix("linalg_")
    classes = {op_classes.find_op_class(f"torch:{x}").op_class for x in (bare, plain, f"linalg.{plain}")}
    return name in _FUSED or name in _list_counted_kernels() or not classes.isdisjoint(_CLASSES)


@functools.cache
def is_fourier_operation(name: str) -> bool:
    """Whether a kernel of ATen or an operator of ONNX is a Fourier transform, whose sums of products no matrix unit
    computes."""
    from tasks.operators import table as operators

    return name.startswith("_fft_") or operators.find_operator(name).sums == "transform"


@functools.cache
def _list_counted_kernels() -> frozenset[str]:
    """Kernels whose products torch counts itself."""
    from torch.utils.flop_counter import flop_registry

    return frozenset(str(getattr(x, "__name__", x)).rpartition(".")[2] for x in flop_registry)


@contextlib.contextmanager
def watch_products_in_torch(change: Change | None = None, stepwise: bool = True) -> Iterator[list[str]]:
    """In here the products and transforms that torch calls are noted, and each wide factor of a product is what
    ``change`` makes of it.

    stepwise: attention is computed step by step, as a fused kernel, itself a product, shows nobody its second product's
    factors.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found: list[str] = []
    with sdpa_kernel(SDPBackend.MATH) if stepwise else contextlib.nullcontext(), _make_product_mode()(found, change):
        yield found


@functools.cache
def _make_product_mode() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watched(TorchDispatchMode):
        def __init__(self, found: list[str], change: Change | None) -> None:
            super().__init__()
            self.found, self.change, self.places = found, change, iter(range(1, 1 << 60))

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            self.found.extend([name] * (is_product_operation(name) or is_fourier_operation(name)))
            if self.change is not None and is_product_operation(name):
                args = change_product_factors(func, args, lambda x: _change_factor_tensor(x, self.change, self.places))
            return func(*args, **(kwargs or {}))

    return Watched


def change_product_factors(func: Any, args: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
    """The arguments of a product of ATen's, each tensor that is a factor being what ``change`` makes of it."""
    import torch

    def change_factors(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [change_factors(x) for x in value]
        return change(value) if isinstance(value, torch.Tensor) else value

    named = [x.name for x in func._schema.arguments]
    first = int(func.overloadpacket.__name__.strip("_").startswith(_ADDS))
    return [x if k < first or named[k] == _ADDED else change_factors(x) for k, x in enumerate(args)]


def _change_factor_tensor(value: Any, change: Change | None, places: Iterator[int]) -> Any:
    import torch

    wide = value.dtype in (torch.float64, torch.complex128)
    if change is None or not wide or value.layout != torch.strided:
        return value
    x = value.resolve_conj().resolve_neg().numpy()
    return torch.from_numpy(np.asarray(change(x, next(places))))


#: NumPy's functions of products, but for those of linear algebra.
_PRODUCTS = "dot vdot inner einsum tensordot convolve correlate matmul vecdot matvec vecmat".split()


class ProductsInNumpy(WatchedRun):
    """A run of a NumPy function: `watched` gives its arrays, ``found`` has the names of the products that it then
    computed."""

    def __init__(self, change: Change | None = None) -> None:
        self.found: list[str] = []
        self._change, self._places = change, iter(range(1, 1 << 60))

    def call(self, function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        algebra = name.startswith("linalg.") and name != "linalg.norm"
        if not (name in _PRODUCTS or algebra):
            return super().call(function, name, args, kwargs)
        self.found.append(name.removeprefix("linalg."))
        return self.wrap(function(*map(self._change_factors, unwatch_array(list(args))), **unwatch_array(dict(kwargs))))

    def _change_factors(self, x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)([self._change_factors(y) for y in x])
        factor = isinstance(x, np.ndarray) and x.dtype in (np.float64, np.complex128)
        return self._change(x, next(self._places)) if factor and self._change else x
