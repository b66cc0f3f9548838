"""Parts that several networks have: attention, and weights drawn by a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


class NetworkAttention(nn.Module):
    """Attention of ``heads`` queries over ``groups`` keys and values; causal or not, with positions as rotations or
    without."""

    def __init__(
        self, width: int, heads: int, groups: int = 0, causal: bool = True, rotary: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.causal, self.rotary = heads, groups or heads, causal, rotary
        each = width // heads
        self.query = nn.Linear(width, width, bias)
        self.key, self.value = (nn.Linear(width, self.groups * each, bias) for _ in range(2))
        self.out = nn.Linear(width, width, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (part(x).unflatten(-1, (self.groups, -1)).transpose(1, 2) for part in (self.key, self.value))
        if self.rotary:
            q, k = self.rotate(q), self.rotate(k)
        mixed = self.attend(q, *(self.repeat(y) for y in (k, v)))
        made: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return made

    def repeat(self, x: torch.Tensor) -> torch.Tensor:
        """Each key or value as often as queries share it."""
        return x.repeat_interleave(self.heads // self.groups, 1) if self.groups != self.heads else x

    def rotate(self, x: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
        """Rotary positions (RoFormer), halves of the width as pairs. x: (batch, heads, tokens, width)."""
        half = x.shape[-1] // 2
        speed = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
        angle = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)[:, None] * speed
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """(batch, heads, tokens, width of a head) of each."""
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if self.causal:
            hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, -1) @ v


def draw_network_weights(make: Callable[[], M], seed: int = 0) -> M:
    """A module with drawn weights: matrices of variance 1 / fan-in, embeddings small; no bias or scale is 0 or 1, so
    that a fault that leaves one out is seen."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make()
        small = {id(part.weight) for part in made.modules() if isinstance(part, nn.Embedding)}
        with torch.no_grad():
            for p in made.parameters():
                if p.ndim > 1:
                    p.normal_(0, 0.08 if id(p) in small else p[0].numel() ** -0.5)
                else:
                    p.add_(torch.randn_like(p) * 0.05)
    return made
