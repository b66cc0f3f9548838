"""Sessions: what is kept from one step to the next is lost, stale, of another step, or of another session.

The faults are right in their first steps; the check `steps` names the one from which on they are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.zoo.specimen import Theme, torch

THEME = Theme("sessions", __name__)
STALE = "stale state"

# --- a decoder with a cache of keys and values ----------------------------------------------------------------------


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = np.where(np.tri(len(q), dtype=bool), q @ k.T / np.sqrt(q.shape[1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out: np.ndarray = weights / weights.sum(-1, keepdims=True) @ v
    return out


class _Decoder:
    """Its cache has room for FIRST tokens and doubles."""

    FIRST = 4

    def start(self) -> None:
        self.k: Any = None
        self.v: Any = None
        self.used = 0

    def step(self, q: Any, k: Any, v: Any) -> Any:
        if self.k is None:
            self.k, self.v = (x.new_zeros(self.FIRST, len(x)) for x in (k, v))
        if self.used == len(self.k):
            self.grow()
        at = self.place()
        self.k[at], self.v[at] = k, v
        self.used += 1
        keys, values = (x[self.visible()] for x in (self.k, self.v))
        return torch.softmax(keys @ q / len(q) ** 0.5, 0) @ values

    def grow(self) -> None:
        self.k, self.v = (torch.cat([x, torch.zeros_like(x)]) for x in (self.k, self.v))

    def place(self) -> int:
        return self.used

    def visible(self) -> slice:
        return slice(min(self.used, len(self.k)))

    def state(self) -> dict[str, Any]:
        return {"k": self.k, "v": self.v}


class _ValuesLost(_Decoder):
    """When it grows, only the keys are copied."""

    def grow(self) -> None:
        super().grow()
        self.v = torch.zeros_like(self.v)


class _Ring(_Decoder):
    """Does not grow: from the fifth token on it overwrites the oldest one."""

    def grow(self) -> None:
        pass

    def place(self) -> int:
        return self.used % self.FIRST


class _OwnTokenUnseen(_Decoder):
    """Reads the cache as it was before this token, but for the first one."""

    def visible(self) -> slice:
        return slice(max(self.used - 1, 1))


THEME.add(
    "cached_attention",
    right=_Decoder,
    wrong={
        "values_lost": (STALE, _ValuesLost),
        "ring": (STALE, _Ring),
        "own_token_unseen": ("off by one", _OwnTokenUnseen),
    },
    reference=_attention,
    dims={"tokens": [10, 12], "d": [16, 64]},
    inputs={"q": ["tokens", "d"], "k": ["tokens", "d"], "v": ["tokens", "d"]},
    steps="tokens",
)

# --- an optimiser -----------------------------------------------------------------------------------------------------

BETAS, RATE, SMALL = (0.9, 0.99), 0.05, 1e-6


def _adam(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kingma and Ba 2015, algorithm 1, of a linear regression: the loss of each step and the weights after it."""
    m, s, losses, weights = np.zeros_like(w), np.zeros_like(w), [], []
    for t, (row, target) in enumerate(zip(x, y), 1):
        error = row @ w - target
        g = 2 * row.T @ error / len(target)
        m, s = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * s + (1 - BETAS[1]) * g * g
        w = w - RATE * (m / (1 - BETAS[0] ** t)) / (np.sqrt(s / (1 - BETAS[1] ** t)) + SMALL)
        losses.append((error**2).mean())
        weights.append(w)
    return np.stack(losses), np.stack(weights)


class _Adam:
    def start(self, w: Any) -> None:
        self.w, self.m, self.s, self.t = w.clone(), torch.zeros_like(w), torch.zeros_like(w), 0

    def step(self, x: Any, y: Any) -> tuple[Any, Any]:
        error = x @ self.w - y
        self.update(2 * x.T @ error / len(y))
        return error.square().mean(), self.w

    def update(self, g: Any) -> None:
        self.t += 1
        self.m = self.m * BETAS[0] + (1 - BETAS[0]) * g
        self.s = self.s * BETAS[1] + (1 - BETAS[1]) * g * g
        self.w = self.w - RATE * (self.m / (1 - BETAS[0] ** self.t)) / (
            (self.s / (1 - BETAS[1] ** self.t)).sqrt() + SMALL
        )

    def state(self) -> dict[str, Any]:
        return {"w": self.w, "m": self.m, "s": self.s}


class _NoGradientZeroed(_Adam):
    """Gradients add up from step to step."""

    sum: Any = 0

    def update(self, g: Any) -> None:
        self.sum = self.sum + g
        super().update(self.sum)


class _CountKept(_Adam):
    """The count of steps stays 1, and so does the correction of the averages."""

    def update(self, g: Any) -> None:
        self.t = 0
        super().update(g)


class _Resumed(_Adam):
    """After the fifth step goes on from a checkpoint that has the weights alone."""

    def update(self, g: Any) -> None:
        if self.t == 5:
            self.start(self.w)
        super().update(g)


THEME.add(
    "adam",
    right=_Adam,
    wrong={
        "gradients_added": (STALE, _NoGradientZeroed),
        "count_kept": (STALE, _CountKept),
        "resumed_without_averages": (STALE, _Resumed),
    },
    reference=_adam,
    dims={"steps": [10], "n": [32], "d": [4, 8]},
    # Squares of gradients of 1e20 are infinite in float32.
    inputs={
        name: {"shape": shape, "low": -2, "high": 2}
        for name, shape in (("x", ["steps", "n", "d"]), ("y", ["steps", "n"]), ("w", ["d"]))
    },
    steps="steps",
)
