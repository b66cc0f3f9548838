"""A vision transformer: patches, a class token, attention over all of them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tasks.training.networks.base import Network
from tasks.training.networks.convolution import CLASSES, SIDE, draw, loss
from tasks.training.networks.parts import NetworkAttention, draw_network_weights
from tasks.training.networks.sizes import HEADS, PATCH
from tasks.training.recipe import TrainingRecipe

WIDTH = 32


class VisionBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = NetworkAttention(WIDTH, HEADS, causal=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        made: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return made


class VisionNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.zeros(1, (SIDE // PATCH) ** 2 + 1, WIDTH))
        self.blocks, self.norm = nn.Sequential(VisionBlock(), VisionBlock()), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1).to(x.dtype), x], 1) + self.places
        made: torch.Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return made


NETWORK = Network(
    lambda: draw_network_weights(VisionNetwork), draw, loss, TrainingRecipe(clip=1.0, warm_up=4, steps=24)
)
