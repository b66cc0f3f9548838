"""Gradients that are wrong in a partial block: all sizes that are declared are multiples of the block, as a project's own tests have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.zoo.specimen import Kernel, Theme, torch

THEME = Theme("partial blocks of gradients", __name__)
KIND = "dropped last block"
WIDE = 32
#: Rows in whole blocks, and so many elements that differences are costly.
SETTINGS: dict[str, Any] = {"dims": {"rows": [WIDE, 2 * WIDE], "columns": [3]}}
X = ["rows", "columns"]


def differentiable(forward: Kernel, backward: Kernel) -> Kernel:
    """A kernel ``forward(*inputs)``, one output or a tuple of them, with the gradients ``backward(gradients,
    *inputs)``."""

    def kernel(**inputs: Any) -> Any:
        class Function(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, *tensors: Any) -> Any:
                ctx.save_for_backward(*tensors)
                return forward(*tensors)

            @staticmethod
            def backward(ctx: Any, *given: Any) -> Any:
                return backward(given if len(given) > 1 else given[0], *ctx.saved_tensors)

        return Function.apply(*inputs.values())

    return kernel


def _whole(n: int) -> int:
    """Rows that lie in whole blocks."""
    return n - n % WIDE


def _kept(g: Any, dropped: bool) -> Any:
    """The gradient without the rows of a partial block."""
    return torch.cat([g[: _whole(len(g))], torch.zeros_like(g[_whole(len(g)) :])]) if dropped else g


def _scale(dropped: bool) -> Kernel:
    return differentiable(lambda x, w: x * w, lambda g, x, w: (g * w, (_kept(g, dropped) * x).sum(0)))


THEME.add(
    "scaled_columns",
    reference=lambda x, w: x * w,
    inputs={"x": X, "w": ["columns"]},
    gradient=["x", "w"],
    right=_scale(False),
    wrong={"weights_of_whole_blocks": (KIND, _scale(True))},
    **SETTINGS,
)


def _shift(dropped: bool) -> Kernel:
    return differentiable(lambda x, b: x + b, lambda g, x, b: (g * 1, _kept(g, dropped).sum(0)))


THEME.add(
    "shifted_columns",
    reference=lambda x, b: x + b,
    inputs={"x": X, "b": ["columns"]},
    gradient=["x", "b"],
    right=_shift(False),
    wrong={"bias_of_whole_blocks": (KIND, _shift(True))},
    **SETTINGS,
)


def _running(carried: bool) -> Kernel:
    def backward(g: Any, x: Any) -> Any:
        back = torch.flip(torch.cumsum(torch.flip(g, [0]), 0), [0])
        if not carried and _whole(len(g)) < len(g):  # what a partial last block adds to those before it
            back[: _whole(len(g))] -= back[_whole(len(g))].clone()
        return back

    return differentiable(lambda x: torch.cumsum(x, 0), backward)


THEME.add(
    "running_sum",
    reference=lambda x: np.cumsum(x, 0),
    inputs={"x": X},
    op_class="reduction",
    gradient=["x"],
    right=_running(True),
    wrong={"last_block_not_carried": (KIND, _running(False))},
    **SETTINGS,
)


def _product(dropped: bool) -> Kernel:
    return differentiable(lambda a, b: a @ b, lambda g, a, b: (g @ b.T, a.T @ _kept(g, dropped)))


THEME.add(
    "product_of_rows",
    reference=lambda a, b: a @ b,
    inputs={"a": X, "b": ["columns", 2]},
    op_class="contraction",
    gradient=["a", "b"],
    right=_product(False),
    wrong={"second_of_whole_blocks": (KIND, _product(True))},
    **SETTINGS,
)


def _over_rows(dropped: bool) -> Kernel:
    def backward(g: Any, x: Any) -> Any:
        y = torch.softmax(x, 0)
        return y * (g - _kept(g * y, dropped).sum(0))

    return differentiable(lambda x: torch.softmax(x, 0), backward)


def _over_rows_reference(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(0))
    return e / e.sum(0)


THEME.add(
    "softmax_over_rows",
    reference=_over_rows_reference,
    inputs={"x": {"shape": X, "low": -1, "high": 1}},
    gradient=["x"],
    right=_over_rows(False),
    wrong={"sum_of_whole_blocks": (KIND, _over_rows(True))},
    **SETTINGS,
)


def _last_term(lost: bool) -> Kernel:
    def forward(x: Any) -> Any:
        return x * torch.cat([torch.zeros_like(x[:1]), x[:-1]])

    def backward(g: Any, x: Any) -> Any:
        back = g * torch.cat([torch.zeros_like(x[:1]), x[:-1]])
        ahead = torch.cat([(g * x)[1:], torch.zeros_like(x[:1])])
        if lost and len(x) % WIDE:  # of the row before a partial block, what the first row of that hands back
            ahead[_whole(len(x)) - 1] = 0
        return back + ahead

    return differentiable(forward, backward)


THEME.add(
    "times_row_before",
    reference=lambda x: x * np.concatenate([np.zeros_like(x[:1]), x[:-1]]),
    inputs={"x": X},
    gradient=["x"],
    right=_last_term(False),
    wrong={"term_across_the_partial_block": ("gradient term", _last_term(True))},
    **SETTINGS,
)
