"""The heavy operators of ONNX by torch in float64: a second computation of what `tasks.operators.table` computes with NumPy."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.widening import NoOracle
from tasks.operators.call import Evaluate, OperatorCall
from tasks.operators.table import EVALUATED, NAMED, ROWS
from tasks.operators.torch_names import CASTS, Counterpart, OperatorOver

#: What rows call the oracle.
NAME = "torch-operators-float64"


def list_operators_by_torch(names: Iterable[str] | None = None) -> dict[str, Evaluate]:
    """By operator of ONNX's own domain, for `tasks.graphs.evaluate_graph.EvaluatedGraph`, those of some names by torch (by default
    those that it is to witness): what torch does not do is done by NumPy."""
    names = [row.name for row in ROWS if row.witnessed] if names is None else names
    return EVALUATED | {
        name: _compute_by_torch_or_numpy(compute_operator_by_torch(name), EVALUATED.get(name)) for name in names
    }


def evaluate_model_by_torch(
    model: Any, feeds: Mapping[str, np.ndarray], names: Iterable[str] | None = None
) -> list[np.ndarray] | None:
    """The outputs of a ModelProto in float64, its operators of some names by torch (see `list_operators_by_torch`); None where torch
    is not here or does not take them."""
    try:
        graph = EvaluatedGraph(model, list_operators_by_torch(names))
        found = graph.run(feeds)
    except (ImportError, RuntimeError, NoOracle):
        return None
    return [np.array(found[name], order="C") for name in graph.outputs]


def compute_operator_by_torch(op: str) -> Evaluate:
    """torch's computation of an operator that it has; None is what it returns where torch does not do it."""
    whole = {
        "Gelu": _compute_gelu_by_torch,
        "GRU": _compute_gru_by_torch,
        "LSTM": _compute_lstm_by_torch,
    }  # the latter are layers of torch, no functions
    return whole[op] if op in whole else _compute_over_torch(NAMED[op])


def _compute_by_torch_or_numpy(by_torch: Evaluate, by_numpy: Evaluate | None) -> Evaluate:
    def either(call: OperatorCall) -> list[np.ndarray] | None:
        found = by_torch(call)
        return by_numpy(call) if found is None and by_numpy else found

    return either


def _compute_over_torch(over: Counterpart) -> Evaluate:
    def by_torch(call: OperatorCall) -> list[np.ndarray] | None:
        if call.inputs[0].dtype != np.float64:
            return None
        found = over(
            OperatorOver(call.inputs, call.attributes, call.opset, call.outputs, find_torch_counterpart, _make_tensor)
        )
        return None if found is None else _list_output_arrays(*(found if isinstance(found, list) else [found]))

    return by_torch


@functools.cache
def find_torch_counterpart(name: str) -> Callable[..., Any]:
    """torch's function of a name of the table of counterparts: of itself, or of what it is a variant of."""
    import torch

    if name == "where":
        return lambda x, condition, other: torch.where(condition, x, other)
    if name == "critical:batch_norm":
        return lambda x, mean, variance, *weights: torch.batch_norm(
            x, *weights[:2], mean, variance, False, 0.0, weights[2], False
        )
    base, _, variant = name.rpartition(".")
    if base in ("nn.functional.pad", "nn.functional.interpolate"):
        function: Callable[..., Any] = operator.attrgetter(base)(torch)
        return functools.partial(function, mode=variant)
    found: Callable[..., Any] = operator.attrgetter(name)(
        torch.Tensor if name in (*CASTS.values(), "expand") else torch
    )
    return found


def _make_tensor(x: Any) -> Any:
    import torch

    return torch.from_numpy(np.array(x, order="C"))  # a scalar stays one


def _list_output_arrays(*values: Any) -> list[np.ndarray]:
    return [np.asarray(v.numpy()) for v in values]


def _compute_recurrent_by_torch(call: OperatorCall, kind: str, order: Sequence[int]) -> list[np.ndarray] | None:
    import torch

    a = call.attributes
    if any(call.at(k) is not None for k in (4, 7)) or a.get("layout") or a.get("activations") or a.get("clip"):
        return None
    if (kind == "GRU" and not a.get("linear_before_reset")) or a.get("direction") == "reverse" or a.get("input_forget"):
        return None
    x, w, r = map(np.asarray, call.inputs[:3])
    directions, hidden = w.shape[0], r.shape[-1]
    b = np.zeros((directions, 2 * len(order) * hidden)) if call.at(3) is None else call.at(3)
    layer = getattr(torch.nn, kind)(x.shape[-1], hidden, bidirectional=directions == 2, dtype=torch.float64)

    def ordered(v: np.ndarray) -> Any:
        parts = np.split(v, len(order))
        return _make_tensor(np.concatenate([parts[k] for k in order]))

    state = {}
    for d, end in zip(range(directions), ("", "_reverse")):
        first, second = np.split(b[d], 2)
        for name, v in (("weight_ih", w[d]), ("weight_hh", r[d]), ("bias_ih", first), ("bias_hh", second)):
            state[f"{name}_l0{end}"] = ordered(v)
    layer.load_state_dict(state)
    blank = np.zeros((directions, x.shape[1], hidden))
    start = [_make_tensor(blank if call.at(k) is None else call.at(k)) for k in ((5, 6) if kind == "LSTM" else (5,))]
    with torch.no_grad():
        y, last = layer(_make_tensor(x), tuple(start) if kind == "LSTM" else start[0])
    y = y.reshape(*y.shape[:2], directions, hidden).transpose(1, 2)
    return _list_output_arrays(y, *(last if kind == "LSTM" else (last,)))[: call.outputs]


def _compute_lstm_by_torch(call: OperatorCall) -> list[np.ndarray] | None:
    return _compute_recurrent_by_torch(call, "LSTM", (0, 2, 3, 1))


def _compute_gru_by_torch(call: OperatorCall) -> list[np.ndarray] | None:
    return _compute_recurrent_by_torch(call, "GRU", (1, 0, 2))


def _compute_gelu_by_torch(call: OperatorCall) -> list[np.ndarray]:
    """By torch's erfc and sigmoid: its own gelu adds 1 to what is nearly -1, and has no digit right below -8."""
    x = _make_tensor(call.inputs[0])
    if call.attributes.get("approximate", "none") == "tanh":
        return _list_output_arrays(x * (2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).sigmoid())
    return _list_output_arrays(0.5 * x * (x * -math.sqrt(0.5)).erfc())
