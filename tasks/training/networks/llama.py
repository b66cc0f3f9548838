"""A Llama: grouped queries, rotary positions, RMS norms, a gated feed-forward part, a head of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tasks.training.networks.base import Network
from tasks.training.networks.parts import NetworkAttention, draw_network_weights
from tasks.training.networks.sizes import HEADS, LLAMA_GROUPS
from tasks.training.recipe import TrainingRecipe

WIDTH, LAYERS, WORDS, TOKENS, BATCH = 32, 2, 61, 12, 3


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, 1e-5), nn.RMSNorm(WIDTH, 1e-5)
        self.attention = NetworkAttention(WIDTH, HEADS, LLAMA_GROUPS, rotary=True, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        made: torch.Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return made


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH, 1e-5)
        self.blocks, self.head = nn.ModuleList(LlamaBlock() for _ in range(LAYERS)), nn.Linear(WIDTH, WORDS, False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        made: torch.Tensor = self.head(self.norm(x))
        return made


def draw(rng: np.random.Generator) -> list[np.ndarray]:
    """Tokens and targets."""
    tokens = rng.integers(0, WORDS, (BATCH, TOKENS + 1))
    return [tokens[:, :-1].copy(), tokens[:, 1:].copy()]


def loss(module: Any, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = module(tokens).flatten(0, 1)
    return functional.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), targets.flatten())


NETWORK = Network(lambda: draw_network_weights(Llama), draw, loss, TrainingRecipe(clip=1.0, warm_up=4, steps=24))
