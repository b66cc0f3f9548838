"""A diffusion U-Net: group norms, a time embedding, a skip connection; it predicts the noise in an image."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tasks.training.networks.base import Network
from tasks.training.networks.parts import draw_network_weights
from tasks.training.networks.sizes import NORM_GROUPS
from tasks.training.recipe import TrainingRecipe

CHANNELS, SIDE, BATCH = 16, 8, 4


class DiffusionResidual(nn.Module):
    """A block that is told the time."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(NORM_GROUPS, given), nn.GroupNorm(NORM_GROUPS, made)
        self.conv1, self.conv2 = nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1)
        self.time, self.skip = nn.Linear(CHANNELS, made), nn.Conv2d(given, made, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        made: torch.Tensor = self.skip(x) + self.conv2(functional.silu(self.norm2(y)))
        return made


class DiffusionUnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time, self.stem = nn.Linear(CHANNELS, CHANNELS), nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.down = nn.Conv2d(CHANNELS, CHANNELS, 3, 2, 1)
        self.first, self.middle = DiffusionResidual(CHANNELS, CHANNELS), DiffusionResidual(CHANNELS, CHANNELS)
        self.last, self.head = DiffusionResidual(2 * CHANNELS, CHANNELS), nn.Conv2d(CHANNELS, 3, 3, padding=1)

    def forward(self, images: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        speed = torch.exp2(-torch.arange(CHANNELS // 2, device=images.device, dtype=images.dtype))
        angle = times[:, None] * speed
        time = functional.silu(self.time(torch.cat([angle.sin(), angle.cos()], -1)))
        kept = self.first(self.stem(images), time)
        x = functional.interpolate(self.middle(self.down(kept), time), scale_factor=2, mode="nearest")
        made: torch.Tensor = self.head(self.last(torch.cat([x, kept], 1), time))
        return made


def draw(rng: np.random.Generator) -> list[np.ndarray]:
    """Noisy images, their times, the noise."""
    images, noise = (rng.standard_normal((BATCH, 3, SIDE, SIDE)).astype(np.float32) for _ in range(2))
    return [images, rng.uniform(0, 8, BATCH).astype(np.float32), noise]


def loss(module: Any, images: torch.Tensor, times: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(module(images, times).to(noise.dtype), noise)


NETWORK = Network(
    lambda: draw_network_weights(DiffusionUnet),
    draw,
    loss,
    TrainingRecipe("adam", decay=1e-3, accumulate=2, warm_up=4, steps=24),
)
