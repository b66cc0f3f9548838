"""Matrix units of GPUs without the GPU: torch on the CPU, whose products are what an architecture's matrix unit makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks import matrix_units
from tasks.arrays import torch_tree
from tasks.backends.base import Backend, importing
from tasks.backends.shared.recipe import NoProgram, ProgramRecipe
from tasks.backends.torch import TorchEager
from tasks.graphs.products import is_product_operation
from tasks.matrix_units.accumulators import ACCUMULATORS
from tasks.matrix_units.table import ARCHITECTURES, MatrixUnit, describe_unit_dtypes
from tasks.model import Form, Program, RuntimeInfo, Unsupported
from tasks.model.dtypes import get_numpy_dtype

Matrix = np.ndarray


class Emulated(Backend):
    """``emulated-hopper`` and so on: each product that torch calls (mm, addmm, bmm, _int_mm, _scaled_mm, convolutions
    as products of their windows) is computed by the rules of an architecture's unit, everything else by torch on the
    CPU. It takes no options.

    Accumulators are float32 or int32; what follows a product (its scale, what is added to it) is computed in float32,
    as a kernel's epilogue does, and rounded once to the dtype of the result. A sample without products is unsupported:
    no unit would see it.
    """

    forms = ("torch",)
    imports = ("torch",)
    takes = ()
    devices, closed = tuple(ARCHITECTURES), True
    emulated = True

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.vendor = ARCHITECTURES[device].vendor
        self._torch = TorchEager("torch-cpu", "cpu", {})

    def probe(self) -> RuntimeInfo:
        with importing("torch"):
            import torch

        torch.set_num_threads(1)
        known = ARCHITECTURES[self.device]
        taken = {x.taken for x in matrix_units.UNITS.values() if x.architecture == self.device and x.taken}
        return RuntimeInfo(
            f"rules of {known.device}, torch {torch.__version__}",
            f"emulated {known.vendor} {self.device} matrix unit",
            compute_precision="".join(taken),
            of_products=bool(taken),
            accumulators=tuple(x.name for x in ACCUMULATORS.values() if x.unit.architecture == self.device),
        )

    def build(self, form: Form) -> Program:
        """Raises Unsupported where the form is of a kernel of the user's own, whose products torch does not see."""
        if form.own is not None:
            raise Unsupported(f"{self.name} computes torch's products; a kernel of one's own makes its products itself")
        call = form.call
        assert call is not None
        program: Program

        def on_unit(*args: Any, **kwargs: Any) -> Any:
            with _make_unit_mode()(self.device) as seen:
                made = call(*args, **kwargs)
            if not seen.done:
                raise Unsupported(f"{self.name}: {form.op} has no product that a matrix unit computes")
            done = ", ".join(f"{count} {name}" for name, count in sorted(seen.done.items()))
            program.placement = f"emulated {self.device}: {done}"
            return made

        program = self._torch.build(replace(form, call=on_unit))
        program.flags = f"unit={self.device}"
        return program

    def recipe(self, form: Form) -> ProgramRecipe:
        raise NoProgram(f"no folder: the model of {self.device}'s matrix unit is the farm's own")


def _make_unit_mode() -> Any:
    """A mode in which torch's products are computed by a unit; made here, as torch is imported late."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils._python_dispatch import TorchDispatchMode

    class OnUnit(TorchDispatchMode):
        """done: how often each product was called."""

        def __init__(self, architecture: str) -> None:
            super().__init__()
            self.architecture, self.done = architecture, Counter[str]()
            self._stepwise = sdpa_kernel(SDPBackend.MATH)  # a fused kernel shows nobody its products

        def __enter__(self) -> Any:
            self._stepwise.__enter__()
            return super().__enter__()

        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            self._stepwise.__exit__(*error)

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            if name not in PRODUCTS and not is_product_operation(name):
                return func(*args, **(kwargs or {}))
            if name not in PRODUCTS or func._overloadname not in ("default", ""):
                raise Unsupported(f"a matrix unit computes {', '.join(sorted(PRODUCTS))}; {name} is made of more")
            self.done[name] += 1
            named = {x.name: x.default_value for x in func._schema.arguments if x.has_default_value()}
            named |= {x.name: value for x, value in zip(func._schema.arguments, args)} | (kwargs or {})
            return torch_tree.tensor_from_numpy(PRODUCTS[name](self.architecture, _tensors_to_arrays(named)))

    return OnUnit


def _tensors_to_arrays(value: Any) -> Any:
    """Arguments with arrays in place of tensors, which lists may hold as well."""
    import torch

    if isinstance(value, torch.Tensor):
        return torch_tree.tensor_to_numpy(torch_tree.dense(value))
    if isinstance(value, (list, tuple)):
        return [_tensors_to_arrays(x) for x in value]
    return {name: _tensors_to_arrays(x) for name, x in value.items()} if isinstance(value, dict) else value


def _accumulate_emulated_product(architecture: str, a: Matrix, b: Matrix, promote: bool = False) -> Matrix:
    """The accumulators of a product. promote: where the library moves them to other registers now and then, it does.

    Raises Unsupported where the unit does not take the matrices.
    """
    first, second = a.dtype.name, b.dtype.name
    unit = matrix_units.find_matrix_unit(architecture, first)
    if unit is None:
        raise Unsupported(f"the matrix unit of {architecture} takes {describe_unit_dtypes(architecture)}; not {first}")
    if first != second:
        raise Unsupported(f"the matrices are {first} and {second}; the rules here are for two of one dtype")
    return _multiply_in_unit(unit, a, b, unit.promoted if promote else 0)


def _multiply_in_unit(unit: MatrixUnit, a: Matrix, b: Matrix, promoted: int) -> Matrix:
    if not promoted or a.shape[-1] <= promoted:
        return matrix_units.multiply(unit, a, b)
    made = matrix_units.multiply(unit, a[..., :promoted], b[..., :promoted, :])
    for start in range(promoted, a.shape[-1], promoted):
        stop = start + promoted
        made = made + matrix_units.multiply(unit, a[..., start:stop], b[..., start:stop, :])
    return made


def _round_emulated_accumulators(
    made: Matrix, dtype: str, alpha: Any = 1, beta: Any = 1, added: Matrix | None = None
) -> Matrix:
    """alpha · accumulators + beta · added in float32, rounded to a dtype; integers as they are."""
    if made.dtype != np.float32:
        if (alpha, beta, added) != (1, 1, None):
            raise Unsupported("integers are multiplied alone: nothing is added to their product")
        return made
    with np.errstate(all="ignore"):
        if alpha != 1:
            made = np.float32(alpha) * made
        if added is not None and beta != 0:
            made = made + np.float32(beta) * added.astype(np.float32)
        return made.astype(get_numpy_dtype(dtype))


def _emulate_mm(architecture: str, given: Mapping[str, Any]) -> Matrix:
    a, b = given["self"], given["mat2"]
    return _round_emulated_accumulators(_accumulate_emulated_product(architecture, a, b), a.dtype.name)


def _emulate_int_mm(architecture: str, given: Mapping[str, Any]) -> Matrix:
    return _accumulate_emulated_product(architecture, given["self"], given["mat2"])


def _emulate_addmm(architecture: str, given: Mapping[str, Any]) -> Matrix:
    a, b = (given["mat1"], given["mat2"]) if "mat1" in given else (given["batch1"], given["batch2"])
    return _round_emulated_accumulators(
        _accumulate_emulated_product(architecture, a, b), a.dtype.name, given["alpha"], given["beta"], given["self"]
    )


def _emulate_mv(architecture: str, given: Mapping[str, Any]) -> Matrix:
    a = given["mat"] if "mat" in given else given["self"]
    made = _accumulate_emulated_product(architecture, a, given["vec"][:, None])[:, 0]
    if "mat" in given:
        return _round_emulated_accumulators(made, a.dtype.name, given["alpha"], given["beta"], given["self"])
    return _round_emulated_accumulators(made, a.dtype.name)


def _emulate_dot(architecture: str, given: Mapping[str, Any]) -> Matrix:
    a, b = given["self"], given["tensor"]
    return _round_emulated_accumulators(
        _accumulate_emulated_product(architecture, a[None], b[:, None]), a.dtype.name
    ).reshape(())


def _emulate_scaled_mm(architecture: str, given: Mapping[str, Any]) -> Matrix:
    """One scale a matrix, a row or a column, multiplied in float32."""
    a, b, scales = given["self"], given["mat2"], (given["scale_a"], given["scale_b"])
    for x, shapes in zip(scales, (((), (1,), (1, 1), (len(a), 1)), ((), (1,), (1, 1), (1, b.shape[1])))):
        if x.dtype != np.float32 or x.shape not in shapes:
            raise Unsupported(
                f"a scale is {x.dtype.name} {x.shape}; it is float32 for a matrix, each row or each column"
            )
    made = _accumulate_emulated_product(architecture, a, b, promote=not given["use_fast_accum"])
    dtype = str(given["out_dtype"]).removeprefix("torch.") if given["out_dtype"] is not None else a.dtype.name
    with np.errstate(all="ignore"):
        made = made * (scales[0] * scales[1]).astype(np.float32)
    return _round_emulated_accumulators(made.astype(np.float32), dtype, added=given["bias"])


def _emulate_block_scaled_mm(architecture: str, given: Mapping[str, Any]) -> Matrix:
    """Elements with a scale for each block of a row of the first and a column of the second, which stand by rows of
    blocks."""
    a, b, scales = given["self"], given["mat2"], [*given["scale_a"], *given["scale_b"]]
    if len(scales) != 2 or any(given["swizzle_a"]) or any(given["swizzle_b"]):
        raise Unsupported("an emulated unit takes one tensor of scales for each matrix, as they are, in no tiles")
    scale = scales[0].dtype.name
    unit = matrix_units.find_matrix_unit(architecture, a.dtype.name, scale)
    if unit is None:
        taken = describe_unit_dtypes(architecture)
        raise Unsupported(f"the matrix unit of {architecture} takes {taken}; not {a.dtype.name} scaled by {scale}")
    try:
        made = matrix_units.multiply(unit, a, b, (scales[0], scales[1].T))
    except ValueError as error:
        raise Unsupported(str(error)) from None
    return _round_emulated_accumulators(made, str(given["out_dtype"]).removeprefix("torch."), added=given["bias"])


def _emulate_grouped_mm(architecture: str, given: Mapping[str, Any]) -> Matrix:
    """A product for each group of rows, of columns or of summed elements; without groups, of a batch."""
    a, b, ends = given["self"], given["mat2"], given["offs"]
    dtype = str(given["out_dtype"]).removeprefix("torch.") if given["out_dtype"] is not None else a.dtype.name
    if given["bias"] is not None:
        raise Unsupported("grouped products have no rule for a bias here")
    if ends is None:
        return _round_emulated_accumulators(_accumulate_emulated_product(architecture, a, b), dtype)
    parts = [slice(low, high) for low, high in zip([0, *ends[:-1].tolist()], ends.tolist())]
    if a.ndim == b.ndim == 2:
        return _round_emulated_accumulators(
            np.stack([_accumulate_emulated_product(architecture, a[:, x], b[x]) for x in parts]), dtype
        )
    if a.ndim == 2:
        made = [_accumulate_emulated_product(architecture, a[x], b[k]) for k, x in enumerate(parts)]
        return _round_emulated_accumulators(np.concatenate(made), dtype)
    return _round_emulated_accumulators(
        np.concatenate([_accumulate_emulated_product(architecture, a[k], b[:, x]) for k, x in enumerate(parts)], -1),
        dtype,
    )


def _emulate_convolution(architecture: str, given: Mapping[str, Any]) -> Matrix:
    """The product of its windows and its kernels, summed over places of the kernel and, at each, over channels, as an
    implicit product in channels-last layout is."""
    x, kernel, groups = given["input"], given["weight"], given["groups"]
    axes = kernel.ndim - 2
    if x.ndim != axes + 2:
        raise Unsupported(f"a convolution of {x.ndim} axes with a kernel of {kernel.ndim}")
    stride, padding, dilation = (_spread_over_axes(given[name], axes) for name in ("stride", "padding", "dilation"))
    if given["transposed"]:
        more = _spread_over_axes(given["output_padding"], axes)
        x = _space_out_convolution(x, stride)
        edges = [
            (d * (k - 1) - p, d * (k - 1) - p + e) for d, k, p, e in zip(dilation, kernel.shape[2:], padding, more)
        ]
        parts = kernel.reshape(groups, kernel.shape[0] // groups, *kernel.shape[1:])
        kernel = np.flip(np.swapaxes(parts, 1, 2), tuple(range(3, 3 + axes))).reshape(
            -1, parts.shape[1], *kernel.shape[2:]
        )
        stride = (1,) * axes
    else:
        edges = [(p, p) for p in padding]
    if any(low < 0 or high < 0 for low, high in edges):
        raise Unsupported("a transposed convolution with more padding than its kernel reaches")
    x = np.pad(x, [(0, 0), (0, 0), *edges])
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel.shape[2:])]
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, tuple(range(2, 2 + axes)))
    windows = windows[(slice(None), slice(None), *(slice(None, None, s) for s in (*stride, *dilation)))]
    batch, channels, *rest = windows.shape
    sizes, places = rest[:axes], rest[axes:]
    windows = windows.reshape(batch, groups, channels // groups, *rest)
    a = np.moveaxis(np.moveaxis(windows, 1, 0), 2, -1).reshape(groups, batch * int(np.prod(sizes)), -1)
    parts = kernel.reshape(groups, -1, channels // groups, *places)
    b = np.moveaxis(parts, 2, -1).reshape(groups, parts.shape[1], -1).swapaxes(1, 2)
    made = _accumulate_emulated_product(architecture, a, b)
    made = made.reshape(groups, batch, *sizes, -1)
    made = np.moveaxis(np.moveaxis(made, 0, -2).reshape(batch, *sizes, -1), -1, 1)
    bias = given["bias"]
    return _round_emulated_accumulators(
        made, x.dtype.name, added=None if bias is None else bias.reshape(-1, *[1] * axes)
    )


def _spread_over_axes(given: Sequence[int], axes: int) -> tuple[int, ...]:
    """A number for each axis, of which one may stand for all."""
    return tuple(given) if len(given) == axes else tuple(given) * axes


def _space_out_convolution(x: Matrix, stride: Sequence[int]) -> Matrix:
    """An array with stride − 1 zeros between its elements along all axes but the first two."""
    sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], stride)]
    made = np.zeros((*x.shape[:2], *sizes), x.dtype)
    made[(slice(None), slice(None), *(slice(None, None, s) for s in stride))] = x
    return made


#: What computes each product of ATen's: (architecture, its arguments by name, tensors as arrays) → the result.
PRODUCTS: Mapping[str, Callable[[str, Mapping[str, Any]], Matrix]] = {
    "mm": _emulate_mm,
    "bmm": _emulate_mm,
    "addmm": _emulate_addmm,
    "baddbmm": _emulate_addmm,
    "mv": _emulate_mv,
    "addmv": _emulate_mv,
    "dot": _emulate_dot,
    "_int_mm": _emulate_int_mm,
    "_scaled_mm": _emulate_scaled_mm,
    "_scaled_mm_v2": _emulate_block_scaled_mm,
    "_grouped_mm": _emulate_grouped_mm,
    "convolution": _emulate_convolution,
}
