"""A residual convolutional network: batch norms, ReLUs, SGD with momentum."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tasks.training.networks.base import Network
from tasks.training.networks.parts import draw_network_weights
from tasks.training.recipe import TrainingRecipe

CHANNELS, SIDE, CLASSES, BATCH = 8, 8, 10, 8


class ResidualConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(x + self.norm2(self.conv2(y)))


class ConvolutionalNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS)
        self.blocks, self.head = (
            nn.Sequential(ResidualConvolution(), ResidualConvolution()),
            nn.Linear(CHANNELS, CLASSES),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.blocks(functional.relu(self.norm(self.stem(images))))
        made: torch.Tensor = self.head(x.mean((2, 3)))
        return made


def draw(rng: np.random.Generator) -> list[np.ndarray]:
    """Images and classes."""
    images = rng.standard_normal((BATCH, 3, SIDE, SIDE)).astype(np.float32)
    return [images, rng.integers(0, CLASSES, BATCH)]


def loss(module: Any, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(module(images).to(images.dtype), classes)


NETWORK = Network(
    lambda: draw_network_weights(ConvolutionalNetwork),
    draw,
    loss,
    TrainingRecipe("sgd", 0.05, decay=1e-3, accumulate=2, warm_up=4, steps=24),
    smooth=False,
)
