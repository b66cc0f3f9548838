"""Formulas that ONNX's operators, the critical ops, diagnosis and the zoo share: one text in NumPy each.

All compute in the dtype of their first argument, an array of any shape. ``axes``: one axis or several. Known ways of
computing one wrongly are arguments (``shifted``) or other functions in its place (``exp``, ``log``), so that an error
model is a change of the formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Union

import numpy as np

Function = Callable[..., np.ndarray]
Axes = Union[int, tuple[int, ...], None]  # Python 3.9 evaluates it
#: What is added to a variance so that its root is not zero: those in use.
EPSILONS = (1e-5, 1e-6, 0.0, 1e-12, 1e-3, 1e-8, 1e-7)


def _apply_to_each(function: Callable[[float], float]) -> Function:
    """A function of Python's own for arrays, in the dtype of its argument."""
    made = np.frompyfunc(function, 1, 1)

    def of(x: np.ndarray) -> np.ndarray:
        return np.asanyarray(made(x.astype(np.float64)), np.float64).astype(x.dtype)

    return of


erf, erfc = _apply_to_each(math.erf), _apply_to_each(math.erfc)


def compute_sigmoid(x: np.ndarray, exp: Function = np.exp) -> np.ndarray:
    """1/(1 + exp(−x)), by exp(−|x|) so that nothing overflows."""
    small = exp(-np.abs(x))
    return np.asanyarray(np.where(x >= 0, np.ones((), small.dtype), small) / (1 + small))


def compute_softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(−|x|))."""
    return np.asanyarray(np.logaddexp(np.zeros((), x.dtype), x))


def compute_gelu(x: np.ndarray) -> np.ndarray:
    """x·Φ(x), Φ the normal distribution function (Hendrycks & Gimpel 2016, arXiv:1606.08415).

    Φ(x) = erfc(−x/√2)/2, which does not cancel where Φ is small.
    """
    return np.asanyarray(x * erfc(x * x.dtype.type(-math.sqrt(0.5))) / 2)


def compute_gelu_tanh(x: np.ndarray, scale: float = math.sqrt(2 / math.pi), exp: Function = np.exp) -> np.ndarray:
    """x/2·(1 + tanh(u)), u = scale·(x + 0.044715·x³): the tanh approximation of arXiv:1606.08415.

    (1 + tanh(u))/2 = 1/(1 + exp(−2u)), which does not cancel for negative u.
    """
    return np.asanyarray(x * compute_sigmoid(x.dtype.type(2 * scale) * (x + x.dtype.type(0.044715) * x**3), exp))


def compute_softmax(x: np.ndarray, axes: Axes = -1, exp: Function = np.exp, shifted: bool = True) -> np.ndarray:
    """exp(x − max) over its sum along axes; the maximum is left out where it is not ``shifted``."""
    e = exp(_shift_by_maximum(x, axes) if shifted else x)
    return np.asanyarray(e / e.sum(axis=axes, keepdims=True))


def compute_log_softmax(
    x: np.ndarray, axes: Axes = -1, exp: Function = np.exp, log: Function = np.log, shifted: bool = True
) -> np.ndarray:
    """x − max − log(sum(exp(x − max))) along axes; the maximum is left out where it is not ``shifted``."""
    some = _shift_by_maximum(x, axes) if shifted else x
    return np.asanyarray(some - log(exp(some).sum(axis=axes, keepdims=True)))


def _shift_by_maximum(x: np.ndarray, axes: Axes) -> np.ndarray:
    return np.asanyarray(x - x.max(axis=axes, keepdims=True, initial=x.dtype.type(-np.inf)))


def compute_log_sum_exp(
    x: np.ndarray, axes: Axes, keep: bool, exp: Function = np.exp, log: Function = np.log, shifted: bool = True
) -> np.ndarray:
    """log(sum(exp(x))) along axes, by the finite maximum; it is left out where it is not ``shifted``."""
    top = x.max(axis=axes, keepdims=True, initial=x.dtype.type(-np.inf)) if shifted else np.zeros((), x.dtype)
    top = np.where(np.isfinite(top), top, np.zeros((), x.dtype))
    found = log(exp(x - top).sum(axis=axes, keepdims=True)) + top
    return np.asanyarray(found if keep else found.squeeze(axis=axes))


def compute_one_pass_variance(x: np.ndarray, axes: Axes) -> np.ndarray:
    """E[x²] − E[x]² along axes, which are kept: it cancels where the mean is large."""
    return np.asanyarray(np.square(x).mean(axis=axes, keepdims=True) - np.square(x.mean(axis=axes, keepdims=True)))


def compute_standardised(x: np.ndarray, axes: Axes, eps: float, centred: bool = True) -> np.ndarray:
    """(x − mean)/√(biased variance + eps) along axes; without ``centred`` x over its root mean square."""
    apart = x - x.mean(axis=axes, keepdims=True) if centred else x
    return np.asanyarray(apart / np.sqrt(np.square(apart).mean(axis=axes, keepdims=True) + eps))


def compute_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, is_causal: bool = False, mask: Any = None
) -> np.ndarray:
    """query (…, H, L, E), key (…, G, S, E), value (…, G, S, V) -> (…, H, L, V): softmax(q·kᵀ/√E)·v per head.

    Vaswani et al. 2017, arXiv:1706.03762. ``is_causal``: position i sees keys 0 … i. Each of the G key heads serves H/G
    consecutive query heads (Ainslie et al. 2023, arXiv:2305.13245). mask: added to the scores; of booleans, whether a
    position sees a key.
    """
    *front, heads, length, width = query.shape
    groups, keys = key.shape[-3], key.shape[-2]
    grouped = query.reshape(*front, groups, heads // groups, length, width)
    key, value = (x.reshape(*x.shape[:-2], 1, *x.shape[-2:]) for x in (key, value))
    scores = grouped @ key.swapaxes(-1, -2) / math.sqrt(width)
    if is_causal:
        scores = np.where(np.arange(keys) <= np.arange(length)[:, None], scores, -math.inf)
    if mask is not None:
        mask = np.broadcast_to(np.asarray(mask), (*front, heads, length, keys)).reshape(scores.shape)
        scores = np.where(mask, scores, -math.inf) if mask.dtype == bool else scores + mask
    return np.asanyarray((compute_softmax(scores, -1) @ value).reshape(*front, heads, length, value.shape[-1]))
