"""A GPT: learned positions, pre-norm blocks, tied embeddings; dropout by masks that come with the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tasks.training.networks.base import Network
from tasks.training.networks.parts import NetworkAttention, draw_network_weights
from tasks.training.networks.sizes import HEADS
from tasks.training.recipe import TrainingRecipe

WIDTH, LAYERS, WORDS, TOKENS, BATCH = 32, 2, 61, 12, 3
#: Of the dropout: a quarter is dropped.
KEPT = 0.75


class GptBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = (
            nn.LayerNorm(WIDTH),
            NetworkAttention(WIDTH, HEADS),
            nn.LayerNorm(WIDTH),
        )
        self.up, self.act, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x)) * mask
        made: torch.Tensor = x + self.down(self.act(self.up(self.norm2(x))))
        return made


class Gpt(nn.Module):
    #: Whether blocks compute their activations again in the backward pass.
    checkpoint = False

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks, self.norm = nn.ModuleList(GptBlock() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        """Logits (batch, tokens, words). masks: (batch, layers, tokens, width)."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for number, block in enumerate(self.blocks):
            given = (x, masks[:, number])
            x = checkpoint(block, *given, use_reentrant=False) if self.checkpoint else block(*given)
        return functional.linear(self.norm(x), self.words.weight)


def draw(rng: np.random.Generator) -> list[np.ndarray]:
    """Tokens, masks, targets; a sixth of the targets is padding (−100)."""
    tokens = rng.integers(0, WORDS, (BATCH, TOKENS + 1))
    targets = tokens[:, 1:].copy()
    targets[rng.random(targets.shape) < 1 / 6] = -100
    masks = (rng.random((BATCH, LAYERS, TOKENS, WIDTH)) < KEPT) / KEPT
    return [tokens[:, :-1].copy(), masks.astype(np.float32), targets]


def loss(module: Any, tokens: torch.Tensor, masks: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = module(tokens, masks)
    return functional.cross_entropy(logits.flatten(0, 1).to(masks.dtype), targets.flatten())


NETWORK = Network(
    lambda: draw_network_weights(Gpt), draw, loss, TrainingRecipe(clip=1.0, accumulate=2, warm_up=4, steps=24)
)
