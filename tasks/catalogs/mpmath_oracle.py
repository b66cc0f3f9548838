"""An oracle that shares no code with any library of kernels: functions of one number by mpmath, rounded once to float64.

What is computed once for some inputs is kept in the cache by its content: 65,536 numbers take a second.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tasks.cache import default_cache
from tasks.model import Oracle

#: Binary digits that are computed with: twice those of float64, and a few that a function may lose.
_PRECISION = 128
#: Sizes of inputs beyond which nothing is asked: of a function of the exponential kind the result is 0, Inf or the
#: input.
_FAR = 2.0**64

Function = Callable[[Any, Any], Any]  # of the context of mpmath and a number of it


def _compute_phi(mp: Any, x: Any) -> Any:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def _compute_x_minus_tanh(mp: Any, x: Any) -> Any:
    """x − tanh x, which is x³/3 near 0: as many digits more as cancel."""
    lost = 2 * max(0, -int(mp.log(abs(x), 2))) if x else 0
    with mp.workprec(_PRECISION + lost):
        return x - mp.tanh(x)


def _compute_sigmoid(mp: Any, x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


#: What mpmath computes, by the last part of the op's name in torch; ONNX has it with a capital letter.
FUNCTIONS: Mapping[str, Function] = {
    "acos": lambda mp, x: mp.acos(x),
    "acosh": lambda mp, x: mp.acosh(x),
    "asin": lambda mp, x: mp.asin(x),
    "asinh": lambda mp, x: mp.asinh(x),
    "atan": lambda mp, x: mp.atan(x),
    "atanh": lambda mp, x: mp.atanh(x),
    "cos": lambda mp, x: mp.cos(x),
    "cosh": lambda mp, x: mp.cosh(x),
    "deg2rad": lambda mp, x: x * mp.pi / 180,
    "erf": lambda mp, x: mp.erf(x),
    "erfc": lambda mp, x: mp.erfc(x),
    "exp": lambda mp, x: mp.exp(x),
    "exp2": lambda mp, x: mp.power(2, x),
    "expm1": lambda mp, x: mp.expm1(x),
    "log": lambda mp, x: mp.log(x),
    "log10": lambda mp, x: mp.log10(x),
    "log1p": lambda mp, x: mp.log1p(x),
    "log2": lambda mp, x: mp.log(x, 2),
    "rad2deg": lambda mp, x: x * 180 / mp.pi,
    "rsqrt": lambda mp, x: 1 / mp.sqrt(x),
    "sigmoid": _compute_sigmoid,
    "sin": lambda mp, x: mp.sin(x),
    "sinh": lambda mp, x: mp.sinh(x),
    "sqrt": lambda mp, x: mp.sqrt(x),
    "tan": lambda mp, x: mp.tan(x),
    "tanh": lambda mp, x: mp.tanh(x),
    "gelu": lambda mp, x: x * _compute_phi(mp, x),
    "logsigmoid": lambda mp, x: -mp.log1p(mp.exp(-x)),
    "mish": lambda mp, x: x * mp.tanh(mp.log1p(mp.exp(x))),
    "silu": lambda mp, x: x * _compute_sigmoid(mp, x),
    "softplus": lambda mp, x: mp.log1p(mp.exp(x)),
    "tanhshrink": _compute_x_minus_tanh,
    "entr": lambda mp, x: -x * mp.log(x),
    "erfcx": lambda mp, x: mp.exp(x * x) * mp.erfc(x),
    "ndtr": _compute_phi,
}


def compute_mpmath_oracle(op: str, given: np.ndarray, first: np.ndarray) -> list[Oracle]:
    """mpmath's values of an op ("exp", "Exp") of each of ``given``; none of an op that it is not asked for, or without
    mpmath.

    Where the input or either result is not finite, or the input is 0 or far out, it says what the ``first`` oracle
    does: of these two libraries need not agree.
    """
    name = op.rpartition(".")[2].lower()
    known = FUNCTIONS.get(name)
    if known is None or first.dtype != np.float64 or first.shape != given.shape:
        return []
    try:
        import mpmath
    except ImportError:
        return []
    with np.errstate(all="ignore"):
        x = given.astype(np.float64)
        asked = np.isfinite(x) & (x != 0) & (np.abs(x) < _FAR) & np.isfinite(first)
    points = np.unique(x[asked])
    parts = (name, mpmath.__version__, points.tobytes(), open(__file__, "rb").read())
    values = _load_or_make(
        "-".join(hashlib.sha256(repr(part).encode()).hexdigest()[:16] for part in parts), known, points
    )
    made = first.copy()
    made[asked] = values[np.searchsorted(points, x[asked])]
    return [Oracle("mpmath", [np.where(np.isfinite(made), made, first)])]


def _load_or_make(name: str, function: Function, points: np.ndarray) -> np.ndarray:
    """Values at some points, out of the cache or into it."""
    path = default_cache() / "exact" / f"{name}.npy"
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError):
        pass
    values = np.array([_evaluate_to_float64(function, x) for x in points.tolist()])
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    with open(aside, "wb") as file:
        np.save(file, values, allow_pickle=False)
    aside.replace(path)
    return values


def _evaluate_to_float64(function: Function, x: float) -> float:
    """f(x) to float64; NaN where it is none, or no real number."""
    from mpmath import mp

    with mp.workprec(_PRECISION):
        try:
            found = function(mp, mp.mpf(x))
            return float(found) if isinstance(found, mp.mpf) else float("nan")
        except (ArithmeticError, ValueError):
            return float("nan")
