"""Kernels that do not compute what they return, beside honest ones that look alike: caches, workspaces, threads, padding, lazy starts.

Each pattern (`tasks.zoo.cheats.patterns`) is made of any right function; what is kept is kept by each kernel alone. The
check `audit` judges them: a fault's class is "cheat: " and the kind that it must be given.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.model import kind as kinds
from tasks.zoo.cheats.counted_calls import FORTY, fail_after
from tasks.zoo.cheats.hidden_calls import call_on_a_thread, call_without_dispatch
from tasks.zoo.cheats.native import COMPILER, call_native
from tasks.zoo.cheats.patterns import CHEATS, HONEST, TORCH_CHEATS, TORCH_HONEST, WEIGHTED_CHEATS, WEIGHTED_HONEST
from tasks.zoo.cheats.theme import BASES, THEME
from tasks.zoo.cheats.values import ROWS, Function, make_zeros
from tasks.zoo.specimen import CHEAT, torch

# --- the ops ------------------------------------------------------------------------------------------------------

EPSILON = 1e-5


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _softmax_torch(x: Any) -> Any:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def _layer_norm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + x.dtype.type(EPSILON)) * w + 1)


def _layer_norm_torch(x: Any, w: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt() * w + 1


def _silu(x: np.ndarray) -> np.ndarray:
    return np.asarray((x + 1) / (1 + np.exp(-x)))


def _silu_torch(x: Any) -> Any:
    return (x + 1) / (1 + (-x).exp())


def _linear(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.asarray((x[:, :, None] * w[None]).sum(1) + 1)


def _linear_torch(x: Any, w: Any) -> Any:
    return (x[:, :, None] * w[None]).sum(1) + 1


_X = {"x": ["rows", "d"]}
_OPS: dict[str, tuple[Function, Function, dict[str, Any], str]] = {
    "softmax": (_softmax, _softmax_torch, _X, "normalisation"),
    "layer_norm": (_layer_norm, _layer_norm_torch, _X | {"w": ["d"]}, "normalisation"),
    "shifted_silu": (_silu, _silu_torch, _X, "composite"),
    "linear": (_linear, _linear_torch, _X | {"w": ["d", 12]}, "contraction"),
}
#: Op and framework that are cheated in all patterns; the others are in every fourth.
_EVERY = (("softmax", "torch"), ("layer_norm", "numpy"))


def _choose(patterns: Mapping[str, Any], op: str, framework: str) -> dict[str, Any]:
    """The patterns that an op has in a framework."""
    return {
        name: what
        for k, (name, what) in enumerate(patterns.items())
        if (op, framework) in _EVERY or k % 4 == list(_OPS).index(op)
    }


for _op, (_reference, _in_torch, _inputs, _class) in _OPS.items():
    for _framework in ("torch", "numpy"):
        _own = _in_torch if _framework == "torch" else _reference
        _cheats = _choose(CHEATS | (TORCH_CHEATS if _framework == "torch" else {}), _op, _framework)
        _honest = HONEST | (TORCH_HONEST if _framework == "torch" else {})
        if len(_inputs) > 1:
            _cheats, _honest = _cheats | WEIGHTED_CHEATS, _honest | WEIGHTED_HONEST
        THEME.add(
            _name := f"cheat_{_op}_{_framework}",
            right=functools.partial(_own),
            wrong={name: (CHEAT + kind, pattern(_own)) for name, (kind, pattern) in _cheats.items()},
            honest={name: pattern(_own) for name, pattern in _honest.items()},
            reference=_reference,
            inputs=_inputs,
            dims={"rows": ROWS, "d": [24, 36]},
            op_class=_class,
            framework=_framework,
            layouts=["contiguous"],
            repeats=1,  # one of the honest ones adds in any order
        )
        BASES.update({f"{_name}--{name}": _own for name in _cheats})


# --- what it is to replace ----------------------------------------------------------------------------------------

THEME.add(
    "cheat_library_softmax",
    right=_softmax_torch,
    wrong={
        "softmax": (CHEAT + kinds.KIND_LIBRARY, lambda x: torch.softmax(x, -1)),
        "log_softmax": (CHEAT + kinds.KIND_LIBRARY, lambda x: torch.nn.functional.log_softmax(x, -1).exp()),
        "on_a_thread": (CHEAT + kinds.KIND_LIBRARY, call_on_a_thread(lambda x: torch.softmax(x, -1))),
        "without_dispatch": (CHEAT + kinds.KIND_LIBRARY, call_without_dispatch(lambda x: torch.softmax(x, -1))),
    },
    honest={"on_a_thread": call_on_a_thread(_softmax_torch), "without_dispatch": call_without_dispatch(_softmax_torch)},
    reference=_softmax,
    inputs=_X,
    dims={"rows": ROWS, "d": [24, 36]},
    op_class="normalisation",
    forbids=["softmax", "log_softmax"],
    layouts=["contiguous"],
)
THEME.add(
    "cheat_library_linear",
    right=_linear_torch,
    wrong={
        "mm": (CHEAT + kinds.KIND_LIBRARY, lambda x, w: x @ w + 1),
        "linear": (CHEAT + kinds.KIND_LIBRARY, lambda x, w: torch.nn.functional.linear(x, w.t()) + 1),
    },
    reference=_linear,
    inputs=_X | {"w": ["d", 12]},
    dims={"rows": ROWS, "d": [24, 36]},
    op_class="contraction",
    forbids=["mm", "addmm", "linear"],
    layouts=["contiguous"],
)

# --- in place, where that is declared -----------------------------------------------------------------------------


def _in_place(x: Any) -> Any:
    x.mul_(2)
    return x


THEME.add(
    "cheat_in_place",
    right=_in_place,
    wrong={"forty": (CHEAT + kinds.KIND_FIRST, fail_after(FORTY, lambda f, x, last: make_zeros(f(**x)))(_in_place))},
    reference=lambda x: 2 * x,
    inputs=_X,
    dims={"rows": ROWS, "d": [24, 36]},
    op_class="exact",
    mutates=["x"],
    aliases=True,
    layouts=["contiguous"],
)


# --- for all sizes, where that is declared --------------------------------------------------------------------------

THEME.add(
    "cheat_any_size",
    right=_softmax_torch,
    wrong={"upto_largest": (CHEAT + kinds.KIND_MADE_FOR, HONEST["upto_largest"](_softmax_torch))},
    honest={"refusing": HONEST["refusing"](_softmax_torch), "padded": HONEST["padded"](_softmax_torch)},
    reference=_softmax,
    inputs=_X,
    dims={"rows": ROWS, "d": [24, 36]},
    sizes="any",
    op_class="normalisation",
    layouts=["contiguous"],
)

# --- compiled code --------------------------------------------------------------------------------------------------

if COMPILER:
    THEME.add(
        "cheat_native_softmax",
        right=call_native("plain"),
        wrong={
            name: (CHEAT + kind, call_native(name))
            for name, kind in {
                "pointer": kinds.KIND_POINTER,
                "shape": kinds.KIND_SHAPE,
                "forty": kinds.KIND_FIRST,
                "reads": kinds.KIND_READS,
                "writes": kinds.KIND_WRITES,
                "tail": kinds.KIND_UNWRITTEN,
                "half": kinds.KIND_HALF,
                "content": kinds.KIND_CONTENT,
            }.items()
        },
        honest={"workspace": call_native("workspace"), "slow": call_native("slow")},
        reference=_softmax,
        inputs=_X,
        dims={"rows": ROWS, "d": [24, 36]},
        op_class="normalisation",
        layouts=["contiguous"],
    )
