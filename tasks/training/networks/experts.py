"""A mixture of experts: a router sends each token to two of four, with a loss that balances them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tasks.training.networks.base import Network
from tasks.training.networks.llama import TOKENS, WIDTH, WORDS, draw
from tasks.training.networks.parts import NetworkAttention, draw_network_weights
from tasks.training.networks.sizes import BALANCE, CHOSEN, HEADS
from tasks.training.recipe import TrainingRecipe

EXPERTS = 4


class ExpertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, False)
        self.up = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(EXPERTS))
        self.down = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The experts' mean, weighted by the router's renormalised shares. Each expert computes all tokens: nothing
        depends on how many it was sent."""
        shares = torch.softmax(self.router(x), -1)
        best, chosen = shares.topk(CHOSEN, -1)
        weights = torch.zeros_like(shares).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        outputs = torch.stack([down(functional.gelu(up(x))) for up, down in zip(self.up, self.down)], -1)
        self.balance = (
            EXPERTS * ((weights > 0).to(shares.dtype).flatten(0, 1).mean(0) * shares.flatten(0, 1).mean(0)).sum()
        )
        return (outputs * weights.unsqueeze(-2)).sum(-1)


class ExpertBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.experts = NetworkAttention(WIDTH, HEADS), ExpertLayer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        made: torch.Tensor = x + self.experts(self.norm2(x))
        return made


class ExpertMixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks, self.norm = nn.ModuleList(ExpertBlock() for _ in range(2)), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        made: torch.Tensor = self.head(self.norm(x))
        return made


def loss(module: Any, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, and BALANCE times the sum of the layers' balances (Switch Transformer, eq. 4)."""
    logits = module(tokens).flatten(0, 1)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    balance = sum(block.experts.balance for block in module.blocks)
    return functional.cross_entropy(wide, targets.flatten()) + BALANCE * balance


# The balance of a batch is no mean of those of its parts: nothing is accumulated.
NETWORK = Network(
    lambda: draw_network_weights(ExpertMixture), draw, loss, TrainingRecipe(warm_up=4, steps=24), smooth=False
)
