"""How a device computes, from a dozen small products: what each feature is, in words that equal devices have in common.

The tests are those by which tensor cores were probed: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ
Computer Science 7:e330 (2021), and Li et al., "FTTN: Feature-Targeted Testing for Numerical Properties of NVIDIA & AMD Matrix
Accelerators", CCGrid 2024 (arXiv:2403.00232).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tasks.backends.base import Backend
from tasks.model.dtypes import TABLE, np_dtype
from tasks.screen.forms import find_kind, make_call_form

#: Terms of each sum: as many as one step of a matrix unit takes.
TERMS = 16
#: Columns of the right factor, all alike: a matrix unit is used for no fewer.
COLUMNS = 16
#: Dtypes of products, and of single operations.
DTYPES = ("float16", "bfloat16", "float32", "float64")


def _multiply(a: Any, b: Any) -> Any:
    return a @ b


def _fuse(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


class Asker:
    """Small products on a backend's device."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._kind = backend, find_kind(backend)

    def multiply(self, dtype: str, rows: Sequence[Sequence[float]], column: Sequence[float]) -> np.ndarray:
        """[len(rows)] sums of products, float64. Raises what the backend does."""
        a = np.zeros((-(-len(rows) // 16) * 16, TERMS))
        b = np.zeros((TERMS, COLUMNS))
        for at, row in enumerate(rows):
            a[at, : len(row)] = row
        b[: len(column)] = np.asarray(column)[:, None]
        return self._ask("probe_product", dtype, [a, b], _multiply, ("MatMul",), (len(a), COLUMNS))[: len(rows), 0]

    def fuse(self, dtype: str, a: Sequence[float], b: Sequence[float], c: Sequence[float]) -> np.ndarray:
        """a · b + c element by element, float64."""
        arrays = [np.resize(np.asarray(x, np.float64), 64) for x in (a, b, c)]
        return self._ask("probe_single", dtype, arrays, _fuse, ("Mul", "Add"), (64,))[: len(a)]

    def _ask(
        self,
        name: str,
        dtype: str,
        arrays: list[np.ndarray],
        call: Callable[..., Any],
        ops: tuple[str, ...],
        shape: Any,
    ) -> np.ndarray:
        given = [x.astype(np_dtype(dtype)) for x in arrays]
        program = self._backend.canary(make_call_form(self._kind, name, dtype, given, call, ops, shape))
        made = np.asarray(program.run()[0]).astype(np.float64)
        if program.fallback:
            raise RuntimeError(program.fallback)
        return made.reshape(shape)


def probe(backend: Backend) -> Iterator[tuple[str, str]]:
    """(feature, what it is) of a backend's device; "not computed" where it does not have the dtype."""
    asker = Asker(backend)
    for dtype in DTYPES:
        for name, ask in _FEATURES.items():
            if dtype in ask[1]:
                try:
                    said = ask[0](asker, dtype)
                except Exception:
                    said = "not computed"
                yield f"{name} {dtype}", said


def find_kept_digits(asker: Asker, dtype: str) -> str:
    """Digits behind the point of a factor that a product of it and 1 has."""
    digits = range(1, (TABLE[dtype].digits or 0) + 1)
    made = asker.multiply(dtype, [[1 + 2.0**-k] for k in digits], [1.0])
    kept = max((k for k, x in zip(digits, made) if x == 1 + 2.0**-k), default=0)
    other = {10: " (as TF32)", 7: " (as bfloat16)"}.get(kept, "") if dtype == "float32" else ""
    return f"{kept}{other}"


def find_alignment(asker: Asker, dtype: str) -> str:
    """The known product: M + s − M in one sum, s = M · 2^-k. How far below M the sum still keeps s, whether what lies beyond is rounded or
    cut off, and the sum of all results over M, by which architectures differ."""
    top = 14 if dtype == "float16" else 40
    last = min(28 if dtype == "float16" else 56, 28 if dtype in ("float16", "bfloat16") else 56)
    powers = range(1, last + 1)
    large = 2.0**top
    made = asker.multiply(dtype, [[large, 2.0 ** (top - k), -large] for k in powers], [1.0, 1.0, 1.0])
    kept = max((k for k, x in zip(powers, made) if x == 2.0 ** (top - k)), default=0)
    total = float(sum(made)) / large
    if kept == last:
        return f"all of {last} bits, sum {total:.10g}"
    (x,) = asker.multiply(dtype, [[large, 1.5 * 2.0 ** (top - kept - 1), -large]], [1.0, 1.0, 1.0])
    unit = 2.0 ** (top - kept)
    rounds = "rounded" if x == unit else "cut off" if x == 0 else "kept in part"
    return f"{kept} bits, then {rounds}, sum {total:.10g}"


def find_product_subnormals(asker: Asker, dtype: str) -> str:
    """Of products: subnormal numbers among the factors, and as results."""
    low, digits = TABLE[dtype].lowest or 0, TABLE[dtype].digits or 0
    least, normal = 2.0 ** (low - digits), 2.0**low
    taken = asker.multiply(dtype, [[least]], [2.0**digits])[0] == normal
    given = asker.multiply(dtype, [[normal]], [0.5])[0] == normal / 2
    return _say_subnormals(taken, given)


def find_single_subnormals(asker: Asker, dtype: str) -> str:
    """Of single operations, likewise."""
    low, digits = TABLE[dtype].lowest or 0, TABLE[dtype].digits or 0
    least, normal = 2.0 ** (low - digits), 2.0**low
    made = asker.fuse(dtype, [least, normal], [2.0**digits, 0.5], [0.0, 0.0])
    return _say_subnormals(made[0] == normal, made[1] == normal / 2)


def _say_subnormals(taken: bool, given: bool) -> str:
    return f"in {'kept' if taken else 'flushed'}, out {'kept' if given else 'flushed'}"


def find_fused_products(asker: Asker, dtype: str) -> str:
    """Whether a sum takes a product before it is rounded: −(1 + 2^(1−h)) + (1 + 2^-h)² is 2^-2h if it does, where 2h digits are one more than
    the format has."""
    half = ((TABLE[dtype].digits or 0) + 2) // 2
    one = 1 + 2.0**-half
    made = asker.multiply(dtype, [[-(1 + 2.0 ** (1 - half)), one]], [1.0, one])
    return "yes" if made[0] == 2.0 ** (-2 * half) else "no" if made[0] == 0 else "other"


def find_fused_single(asker: Asker, dtype: str) -> str:
    """Whether a · b + c is one operation."""
    half = ((TABLE[dtype].digits or 0) + 2) // 2
    one = 1 + 2.0**-half
    made = asker.fuse(dtype, [one], [one], [-(1 + 2.0 ** (1 - half))])
    return "yes" if made[0] == 2.0 ** (-2 * half) else "no"


def find_rounding(asker: Asker, dtype: str) -> str:
    """Of a sum of two numbers, from 3/4 and 1/2 of the last place, of both signs."""
    u = 2.0 ** -(TABLE[dtype].digits or 0)
    up, down, even, odd = asker.fuse(dtype, [1, -1, 1, 1 + u], [1.0] * 4, [0.75 * u, -0.75 * u, u / 2, u / 2])
    if (up, down) == (1 + u, -1 - u):
        ties = {(1.0, 1 + 2 * u): "to nearest, ties to even", (1 + u, 1 + 2 * u): "to nearest, ties away"}
        return ties.get((float(even), float(odd)), "to nearest")
    return {(1.0, -1.0): "to zero", (1 + u, -1.0): "up", (1.0, -1 - u): "down"}.get((float(up), float(down)), "other")


#: Feature → how it is found, and the dtypes that it is asked in.
_FEATURES: dict[str, tuple[Callable[[Asker, str], str], tuple[str, ...]]] = {
    "digits of factors": (find_kept_digits, DTYPES),
    "known product": (find_alignment, DTYPES),
    "subnormals in products": (find_product_subnormals, DTYPES),
    "subnormals": (find_single_subnormals, DTYPES),
    "fused in products": (find_fused_products, ("float32", "float64")),
    "fused multiply-add": (find_fused_single, ("float32", "float64")),
    "rounding": (find_rounding, DTYPES),
}
