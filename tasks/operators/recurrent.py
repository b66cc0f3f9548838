"""LSTM, GRU and RNN in float64 with the operator's default activations; onnx's own leaves sequence_lens aside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.operators.call import NoOracle, OperatorCall
from tasks.operators.formulas import compute_sigmoid

#: The next states (the first of them is the output) of an input and the states before.
Step = Callable[[np.ndarray, list[np.ndarray]], list[np.ndarray]]

_DEFAULT = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def evaluate_lstm(call: OperatorCall) -> list[np.ndarray]:
    """LSTM (gates i, o, f, c), with peepholes."""

    def step(w: np.ndarray, r: np.ndarray, b: np.ndarray, p: np.ndarray) -> Step:
        p_i, p_o, p_f = np.split(p, 3)

        def go(x: np.ndarray, state: list[np.ndarray]) -> list[np.ndarray]:
            h, c = state
            i, o, f, g = np.split(x @ w.T + h @ r.T + b[: len(b) // 2] + b[len(b) // 2 :], 4, axis=-1)
            f = (
                1.0 - compute_sigmoid(i + p_i * c)
                if call.attributes.get("input_forget")
                else compute_sigmoid(f + p_f * c)
            )
            new = f * c + compute_sigmoid(i + p_i * c) * np.tanh(g)
            return [compute_sigmoid(o + p_o * new) * np.tanh(new), new]

        return go

    return _evaluate_recurrent("LSTM", call, 4, step, [call.at(5), call.at(6)], call.at(7))


def evaluate_gru(call: OperatorCall) -> list[np.ndarray]:
    """GRU (gates z, r, h), in both orders of reset and product."""

    def step(w: np.ndarray, r: np.ndarray, b: np.ndarray, _: np.ndarray) -> Step:
        (w_z, w_r, w_h), (r_z, r_r, r_h) = np.split(w, 3), np.split(r, 3)
        b_z, b_r, b_h, c_z, c_r, c_h = np.split(b, 6)

        def go(x: np.ndarray, state: list[np.ndarray]) -> list[np.ndarray]:
            (h,) = state
            z = compute_sigmoid(x @ w_z.T + h @ r_z.T + b_z + c_z)
            reset = compute_sigmoid(x @ w_r.T + h @ r_r.T + b_r + c_r)
            if call.attributes.get("linear_before_reset"):
                new = np.tanh(x @ w_h.T + reset * (h @ r_h.T + c_h) + b_h)
            else:
                new = np.tanh(x @ w_h.T + (reset * h) @ r_h.T + c_h + b_h)
            return [(1.0 - z) * new + z * h]

        return go

    return _evaluate_recurrent("GRU", call, 3, step, [call.at(5)], None)


def evaluate_rnn(call: OperatorCall) -> list[np.ndarray]:
    """RNN with tanh."""

    def step(w: np.ndarray, r: np.ndarray, b: np.ndarray, _: np.ndarray) -> Step:
        return lambda x, state: [np.tanh(x @ w.T + state[0] @ r.T + b[: len(b) // 2] + b[len(b) // 2 :])]

    return _evaluate_recurrent("RNN", call, 1, step, [call.at(5)], None)


def _evaluate_recurrent(
    op: str, call: OperatorCall, gates: int, step: Callable[..., Step], initial: list[Any], peepholes: Any
) -> list[np.ndarray]:
    """Outputs Y (T, directions, N, H), then the last of every state (directions, N, H); or as ``layout`` 1 has them."""
    a = call.attributes
    kinds = [str(x) for x in a.get("activations") or ()]
    if kinds and kinds != list(_DEFAULT[op]) * (len(kinds) // len(_DEFAULT[op])):
        raise NoOracle(f"{op} with the activations {', '.join(kinds)} has no float64 evaluation here")
    if a.get("clip"):
        raise NoOracle(f"{op} with clip has no float64 evaluation here")
    x, w, r = (np.asarray(v) for v in call.inputs[:3])
    hidden, directions, by_batch = r.shape[-1], w.shape[0], bool(a.get("layout"))
    if by_batch:
        x = np.swapaxes(x, 0, 1)
        initial = [None if s is None else np.swapaxes(s, 0, 1) for s in initial]
    length, batch = x.shape[:2]
    b = np.zeros((directions, 2 * gates * hidden)) if call.at(3) is None else call.at(3)
    p = np.zeros((directions, 3 * hidden)) if peepholes is None else peepholes
    lengths = np.full(batch, length) if call.at(4) is None else np.asarray(call.at(4))
    y = np.zeros((length, directions, batch, hidden))
    last = []
    for d in range(directions):
        backward = d == 1 or a.get("direction") == "reverse"
        go = step(w[d], r[d], b[d], p[d])
        state = [np.zeros((batch, hidden)) if s is None else s[d] for s in initial]
        for t in reversed(range(length)) if backward else range(length):
            inside = (t < lengths)[:, None]
            new = go(x[t], state)
            y[t, d] = np.where(inside, new[0], 0.0)
            state = [np.where(inside, one, before) for one, before in zip(new, state)]
        last.append(state)
    found = [y, *(np.stack([states[k] for states in last]) for k in range(len(initial)))]
    if by_batch:
        found = [np.transpose(found[0], (2, 0, 1, 3)), *(np.swapaxes(s, 0, 1) for s in found[1:])]
    return found[: call.outputs]
