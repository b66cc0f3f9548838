"""What a kernel does to memory: in-place changes, shared storage, strides, workspaces, and orders that vary."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tasks.zoo.specimen import Kernel, Theme, torch

THEME = Theme("memory", __name__)
X = {"x": ["n"]}
DIMS = {"n": [33, 128]}

THEME.add(
    "relu_copy",
    reference=lambda x: np.maximum(x, 0),
    inputs=X,
    dims=DIMS,
    op_class="exact",
    right=lambda x: x.clamp_min(0),
    wrong={
        "in_place": ("mutation", lambda x: x.clamp_min_(0).clone()),
        "in_place_and_returned": ("mutation", lambda x: x.relu_()),
    },
)


def _restored(x: Any) -> Any:
    """Centres x in place and puts it back, but for the rounding."""
    mean = x.mean()
    x -= mean
    out = x.square().mean()
    x += mean
    return out


THEME.add(
    "variance_in_place",
    reference=lambda x: np.asarray(((x - x.mean()) ** 2).mean()),
    inputs={"x": {"shape": ["n"], "low": 0, "high": 3}},
    dims=DIMS,
    op_class="reduction",
    right=lambda x: (x - x.mean()).square().mean(),
    wrong={"not_restored": ("mutation", _restored)},
)

THEME.add(
    "flatten",
    reference=lambda x: x.reshape(-1),
    inputs={"x": [3, "n"]},
    dims=DIMS,
    op_class="exact",
    right=lambda x: x.reshape(-1).clone(),
    wrong={"view": ("aliasing", lambda x: x.reshape(-1)), "column_major": ("order", lambda x: x.t().reshape(-1))},
)

THEME.add(
    "clip_if_needed",
    reference=lambda x: np.minimum(x, 100),
    inputs=X,
    dims=DIMS,
    op_class="exact",
    right=lambda x: x.clamp_max(100),
    wrong={"input_returned": ("aliasing", lambda x: x.clamp_max(100) if bool((x > 100).any()) else x)},
)

THEME.add(
    "tail_of",
    reference=lambda x: x[..., 1:],
    inputs={"x": [3, "n"]},
    dims=DIMS,
    op_class="exact",
    right=lambda x: x[..., 1:].clone(),
    wrong={"slice": ("aliasing", lambda x: x[..., 1:]), "head": ("off by one", lambda x: x[..., :-1].clone())},
)


def _of_view(view: Any, honest: bool) -> Kernel:
    """Doubles a view: by its strides, or by reading its storage on from its first element."""

    def kernel(x: Any) -> Any:
        seen = view(x)
        return 2 * (seen if honest else seen.as_strided(seen.shape, _dense(seen.shape), 0))

    return kernel


def _dense(shape: Any) -> list[int]:
    return [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]


for _name, _view in {
    "transposed": lambda x: x.T,
    "every_other": lambda x: x[:, ::2],
    "offset": lambda x: x[1:],
    "expanded": lambda x: x[:1],
}.items():
    _seen = (
        (lambda x: x[:1].expand(4, -1))
        if _name == "expanded"
        else (lambda x: x.t())
        if _name == "transposed"
        else _view
    )
    THEME.add(
        f"double_{_name}",
        inputs={"x": ["n", "m"]},
        dims={"n": [9], "m": [33, 64]},
        op_class="exact",
        reference=(lambda x: np.repeat(2 * x[:1], 4, 0))
        if _name == "expanded"
        else (lambda x, view=_view: 2 * view(x)),
        right=_of_view(_seen, honest=True),
        wrong={"read_as_dense": ("stride ignored", _of_view(_seen, honest=False))},
    )


def _partly_written(clear: bool) -> Kernel:
    """Writes whole vectors of 16; the rest is done after them, or not at all."""

    def kernel(x: Any) -> Any:
        out = torch.empty_like(x)
        whole = x.numel() - x.numel() % 16
        out[:whole] = x[:whole] + 1
        if clear:
            out[whole:] = x[whole:] + 1
        return out

    return kernel


THEME.add(
    "add_one",
    reference=lambda x: x + 1,
    inputs=X,
    dims={"n": [33, 127, 1000]},
    dtypes=["float32", "int32"],
    op_class="elementary",
    right=_partly_written(clear=True),
    wrong={"tail_not_written": ("uninitialised", _partly_written(clear=False))},
)


def _stale() -> Kernel:
    """A workspace that is cleared when it is made, not when it is used."""
    workspaces: dict[Any, Any] = {}

    def kernel(x: Any) -> Any:
        acc = workspaces.setdefault(x.shape, torch.zeros(x.shape[-1]))
        acc += x.sum(0)
        return acc.clone()

    return kernel


def _cached() -> Kernel:
    """Results kept by shape, as if the values did not matter."""
    results: dict[Any, Any] = {}
    return lambda x: results.setdefault(x.shape, x.sum(0)).clone()


def _kept_output() -> Kernel:
    """An output that is made once for each shape, and given to every caller."""
    outputs: dict[Any, Any] = {}

    def kernel(x: Any) -> Any:
        out = outputs.setdefault(x.shape, torch.empty(x.shape[-1]))
        return torch.sum(x, 0, out=out)

    return kernel


def _any_order() -> Kernel:
    """Partial sums arrive in an order that changes from call to call, as with atomic additions."""
    calls = itertools.count(1)

    def kernel(x: Any) -> Any:
        acc = torch.zeros(x.shape[-1])
        for row in np.random.default_rng(next(calls)).permutation(x.shape[0]):
            acc = acc + x[int(row)]
        return acc

    return kernel


def _lost_update() -> Kernel:
    calls = itertools.count()

    def kernel(x: Any) -> Any:
        total = x.sum(0)
        return total - x[0] if next(calls) % 2 else total

    return kernel


THEME.add(
    "column_sums",
    reference=lambda x: x.sum(0),
    inputs={"x": {"shape": ["n", 40], "low": -3, "high": 3}},
    dims=DIMS,
    op_class="reduction",
    right=lambda x: x.sum(0),
    wrong={
        "stale_workspace": ("race", _stale()),
        "order_varies": ("race", _any_order()),
        "update_lost": ("race", _lost_update()),
        "cached_by_shape": ("race", _cached()),
        "output_kept": ("aliasing", _kept_output()),
    },
)

THEME.add(
    "half_mean_dtype",
    reference=lambda x: x.mean(-1),
    inputs={"x": [3, "n"]},
    dims=DIMS,
    dtypes=["float16"],
    op_class="reduction",
    right=lambda x: x.float().mean(-1).half(),
    wrong={"bfloat16": ("wrong dtype", lambda x: x.float().mean(-1).bfloat16())},
)
