"""Torch modules that transformers lacks: a U-Net, and a network as the catalog calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def build_unet(base: int = 32, classes: int = 4, levels: int = 4) -> Any:
    """A U-Net after Ronneberger et al. (2015), float [N, 3, H, W] → {"logits": float [N, classes, H, W]}.

    H and W are multiples of 8. The first way up is a transposed convolution, the others are bilinear: both are met in
    the field.
    """
    import torch
    from torch import nn

    def block(inputs: int, outputs: int) -> nn.Sequential:
        def make_convolution(inputs: int) -> tuple[nn.Module, ...]:
            return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()

        return nn.Sequential(*make_convolution(inputs), *make_convolution(outputs))

    def upward(below: int, here: int, learnt: bool) -> nn.Module:
        if learnt:
            return nn.ConvTranspose2d(below, here, 2, stride=2)
        return nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(below, here, 1))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [base * 2**k for k in range(levels)]
            steps = list(zip(widths[:0:-1], widths[-2::-1]))
            self.down = nn.ModuleList(block(a, b) for a, b in zip([3, *widths], widths))
            self.up = nn.ModuleList(upward(below, here, k == 0) for k, (below, here) in enumerate(steps))
            self.join = nn.ModuleList(block(2 * here, here) for _, here in steps)
            self.head = nn.Conv2d(base, classes, 1)

        def forward(self, image: torch.Tensor) -> dict[str, Any]:
            skips: list[torch.Tensor] = []
            x = image
            for k, down in enumerate(self.down):
                x = down(nn.functional.max_pool2d(x, 2) if k else x)
                skips.append(x)
            for up, join, skip in zip(self.up, self.join, skips[-2::-1]):
                x = join(torch.cat([skip, up(x)], 1))
            return {"logits": self.head(x)}

    return UNet()


def wrap_network_positional(model: Any, input_names: Sequence[str], output_names: Sequence[str]) -> Any:
    """``model``, which takes arguments by name and returns a mapping, as a module of positional inputs and a tuple of
    outputs; it keeps both lists of names as attributes."""
    import torch

    class Called(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.input_names, self.output_names = model, tuple(input_names), tuple(output_names)

        def forward(self, *inputs: Any) -> tuple[Any, ...]:
            found = self.model(**dict(zip(self.input_names, inputs)))
            return tuple(found[name] for name in self.output_names)

    return Called()
