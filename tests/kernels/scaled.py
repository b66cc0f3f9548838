"""A kernel of NumPy arrays, its backward pass, and that with the faults of such."""

from __future__ import annotations

from typing import Any

import numpy as np


def scaled(x: Any, w: Any) -> Any:
    return np.tanh(x) * w


def right(gradient: Any, x: Any, w: Any) -> Any:
    return gradient * w * (1 - np.tanh(x) ** 2), (gradient * np.tanh(x)).sum(0)


def by_name(gradient: Any, x: Any, w: Any) -> Any:
    return dict(zip("xw", right(gradient, x, w)))


def not_summed(gradient: Any, x: Any, w: Any) -> Any:
    return right(gradient, x, w)[0], gradient * np.tanh(x)


def of_a_sign(gradient: Any, x: Any, w: Any) -> Any:
    return -right(gradient, x, w)[0], right(gradient, x, w)[1]


def lost(gradient: Any, x: Any, w: Any) -> Any:
    return None, right(gradient, x, w)[1]


def narrow(gradient: Any, x: Any, w: Any) -> Any:
    return tuple(g.astype(np.float32) for g in right(gradient, x, w))


def one(gradient: Any, x: Any, w: Any) -> Any:
    return right(gradient, x, w)[0]


def of_lists(gradient: Any, x: Any, w: Any) -> Any:
    return right(gradient, x, w)[0].tolist(), right(gradient, x, w)[1]


def in_place(gradient: Any, x: Any, w: Any) -> Any:
    gradient *= np.tanh(x)
    return gradient / np.tanh(x) * w * (1 - np.tanh(x) ** 2), gradient.sum(0)
