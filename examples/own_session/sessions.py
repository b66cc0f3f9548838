"""Sessions of your own: a decoder with a cache of keys and values, an optimiser with momentum, and of each a twin that loses its state."""

import numpy as np
import torch

import farm

# --- attention, one token at a time ---------------------------------------------------------------------------------


def attention_reference(q, k, v):
    """Causal attention of all tokens at once; row t of the result is what step t must return."""
    tokens, d = q.shape
    scores = q @ k.T / np.sqrt(d)
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


ATTENTION = {
    "reference": attention_reference,
    "dims": {"tokens": [10, 12], "d": [16, 64]},
    "inputs": {"q": ["tokens", "d"], "k": ["tokens", "d"], "v": ["tokens", "d"]},
    "steps": "tokens",  # each step is given row t of q, k and v
    "op_class": "composite",
}


class Cache:
    """The keys and values of the tokens so far; it grows when it is full."""

    def start(self):
        self.k, self.v, self.used = None, None, 0

    def step(self, q, k, v):
        if self.k is None:
            self.k, self.v = (x.new_zeros(4, len(x)) for x in (k, v))
        if self.used == len(self.k):
            self.grow()
        self.k[self.used], self.v[self.used] = k, v
        self.used += 1
        keys, values = self.k[: self.used], self.v[: self.used]
        weights = torch.softmax(keys @ q / len(q) ** 0.5, 0)
        return weights @ values

    def grow(self):
        raise NotImplementedError

    def state(self):
        return {"k": self.k[: self.used], "v": self.v[: self.used]}


@farm.op(**ATTENTION)
class decode(Cache):
    def grow(self):
        self.k, self.v = (torch.cat([x, torch.zeros_like(x)]) for x in (self.k, self.v))


@farm.op(**ATTENTION)
class decode_forgetting(Cache):
    """When the cache grows for the second time (step 8), the values are not copied."""

    def grow(self):
        kept = self.v if len(self.v) == 4 else torch.zeros_like(self.v)
        self.k, self.v = (torch.cat([x, torch.zeros_like(x)]) for x in (self.k, kept))


# --- an optimiser -----------------------------------------------------------------------------------------------------


def momentum_reference(x, y, w, rate, momentum):
    """The loss of each step of linear regression by gradient descent with momentum, and the weights after it."""
    kept, losses, weights = np.zeros_like(w), [], []
    for row, target in zip(x, y):
        error = row @ w - target
        kept = momentum * kept + 2 * row.T @ error / len(target)
        w = w - rate * kept
        losses.append((error**2).mean())
        weights.append(w)
    return np.stack(losses), np.stack(weights)


DESCENT = {
    "reference": momentum_reference,
    "dims": {"steps": [10], "n": [32], "d": [4, 8]},
    "inputs": {"x": ["steps", "n", "d"], "y": ["steps", "n"], "w": ["d"]},
    "kwargs": {"rate": 0.05, "momentum": 0.9},
    "steps": "steps",
}


@farm.op(**DESCENT)
class descent:
    def start(self, w, rate, momentum):
        self.w = w.clone().requires_grad_()
        self.optimiser = torch.optim.SGD([self.w], rate, momentum)

    def step(self, x, y):
        self.optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(x @ self.w, y)
        loss.backward()
        self.update()
        return loss.detach(), self.w.detach()

    def update(self):
        self.optimiser.step()

    def state(self):
        kept = self.optimiser.state[self.w].get("momentum_buffer")
        return {"w": self.w} | ({} if kept is None else {"momentum": kept})


@farm.op(**DESCENT)
class descent_restarted(descent):
    """Loses its momentum after the fifth step, as from a checkpoint without the optimiser: step 5 continues without
    it."""

    steps = 0

    def update(self):
        if self.steps == 5:
            self.optimiser.state.clear()
        self.steps += 1
        super().update()
