"""How a device computes, from some small sums: what each feature is, in words that equal devices have in common.

The tests are those by which tensor cores were probed: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA
tensor cores", PeerJ Computer Science 7:e330 (2021), and Li et al., "FTTN: Feature-Targeted Testing for Numerical
Properties of NVIDIA & AMD Matrix Accelerators", CCGrid 2024 (arXiv:2403.00232).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tasks.backends.base import Backend
from tasks.model import Program
from tasks.model.dtypes import TABLE, get_numpy_dtype
from tasks.passport import DeviceSum, SumTerms
from tasks.passport.adder import is_term_fused, measure_adder_flushing, measure_sum_width
from tasks.screen.forms import find_screen_form_kind, make_exercise_form

#: Rows, columns and terms of a product: a matrix unit is used for no fewer.
SIDE = 16
#: Dtypes of products, and of single operations.
DTYPES = ("float16", "bfloat16", "float32", "float64")


def _fuse_probe(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


#: Sums that a device is asked for: name, call, ONNX's operators, shapes of the operands, where the terms of the first
#: result lie.
_ROW, _COLUMN = tuple(range(SIDE)), tuple(range(0, SIDE * SIDE, SIDE))
_PRODUCT = (
    "probe_product",
    operator.matmul,
    ("MatMul",),
    2 * [(SIDE, SIDE)],
    SumTerms(0, (0, _ROW), (1, _COLUMN), fill=(0.0, 0.0)),
)
_SINGLE = (
    "probe_single",
    _fuse_probe,
    ("Mul", "Add"),
    3 * [(64,)],
    SumTerms(0, (0, (0,)), (1, (0,)), (2, 0), (0.0, 0.0, 0.0)),
)


def _make_probe_sum(backend: Backend, what: Any, dtype: str) -> DeviceSum:
    """One of these sums in a dtype, of a backend's device. Its calls raise what the backend does."""
    name, call, ops, shapes, terms = what
    made: list[Program] = []

    def run(arrays: Sequence[np.ndarray]) -> Sequence[Any]:
        if made and (again := made[0].again) is not None:
            return again(list(arrays))
        program = backend.canary(
            make_exercise_form(find_screen_form_kind(backend), name, dtype, arrays, call, ops, shapes[0])
        )
        if program.fallback:
            raise RuntimeError(program.fallback)
        made[:] = [program]
        return program.run()

    return DeviceSum(run, [np.zeros(shape, get_numpy_dtype(dtype)) for shape in shapes], terms, dtype)


def screen_device_features(backend: Backend) -> Iterator[tuple[str, str]]:
    """(feature, what it is) of a backend's device; "not computed" where it does not have the dtype."""
    for dtype in DTYPES:
        sums = {id(what): _make_probe_sum(backend, what, dtype) for what in (_PRODUCT, _SINGLE)}
        for name, (what, ask, dtypes) in _FEATURES.items():
            if dtype in dtypes:
                try:
                    said = ask(sums[id(what)])
                except Exception:
                    said = "not computed"
                yield f"{name} {dtype}", said


def _add_probe_terms(device: DeviceSum, *terms: float) -> float:
    """The sum of the first terms, times one each, and of as many zeros as there are more."""
    left = np.zeros(device.count)
    left[: len(terms)] = terms
    return device.add(left, np.ones(device.count))


def screen_factor_digits(device: DeviceSum) -> str:
    """Digits behind the point of a factor that a product of it and 1 has."""
    digits = range(TABLE[device.dtype].digits or 0, 0, -1)
    kept = next((k for k in digits if _add_probe_terms(device, 1 + 2.0**-k) == 1 + 2.0**-k), 0)
    other = {10: " (as TF32)", 7: " (as bfloat16)"}.get(kept, "") if device.dtype == "float32" else ""
    return f"{kept}{other}"


def screen_alignment(device: DeviceSum) -> str:
    """The known product: M + s − M in one sum, s = M · 2^-k. How far below M the sum still keeps s, by which
    architectures differ, and whether what lies beyond is rounded or cut off."""
    bits, rounding = measure_sum_width(device)
    lost = {"nearest even": "rounded", "nearest away": "rounded", "truncated": "cut off"}
    return f"{bits - 1} bits, then {lost.get(rounding, rounding)}" if bits else "all bits"


def screen_subnormals(device: DeviceSum) -> str:
    """Subnormal numbers among the factors, and as results."""
    taken, given = measure_adder_flushing(device)
    return f"in {'flushed' if taken else 'kept'}, out {'flushed' if given else 'kept'}"


def screen_fusing(device: DeviceSum) -> str:
    """Whether a sum takes a product before it is rounded; the second of several, since a sum may begin with the first,
    rounded."""
    term = int(device.terms.products > 1)
    return "yes" if is_term_fused(device, term, 1 - term) else "no"


def screen_rounding(device: DeviceSum) -> str:
    """Of a sum of two numbers, from 3/4 and 1/2 of the last place, of both signs."""
    u = 2.0 ** -(TABLE[device.dtype].digits or 0)
    pairs = ((1, 0.75 * u), (-1, -0.75 * u), (1, u / 2), (1 + u, u / 2))
    up, down, even, odd = (_add_probe_terms(device, *pair) for pair in pairs)
    if (up, down) == (1 + u, -1 - u):
        ties = {(1.0, 1 + 2 * u): "to nearest, ties to even", (1 + u, 1 + 2 * u): "to nearest, ties away"}
        return ties.get((even, odd), "to nearest")
    return {(1.0, -1.0): "to zero", (1 + u, -1.0): "up", (1.0, -1 - u): "down"}.get((up, down), "other")


#: Feature → of which sum it is, how it is found, and the dtypes that it is asked in.
_FEATURES: dict[str, tuple[Any, Callable[[DeviceSum], str], tuple[str, ...]]] = {
    "digits of factors": (_PRODUCT, screen_factor_digits, DTYPES),
    "known product": (_PRODUCT, screen_alignment, DTYPES),
    "subnormals in products": (_PRODUCT, screen_subnormals, DTYPES),
    "subnormals": (_SINGLE, screen_subnormals, DTYPES),
    "fused in products": (_PRODUCT, screen_fusing, ("float32", "float64")),
    "fused multiply-add": (_SINGLE, screen_fusing, ("float32", "float64")),
    "rounding": (_SINGLE, screen_rounding, DTYPES),
}
