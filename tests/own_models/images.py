"""Networks of images."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Small(nn.Module):
    """Convolution, batch norm in evaluation mode, ReLU in place, pooling, a linear layer."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.head = nn.Linear(8 * 8 * 8, 10)

    def forward(self, x):
        x = F.max_pool2d(self.features(x), 2)
        return self.head(x.flatten(1))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        y = self.second(F.relu(self.first(x)))
        y += x
        return F.relu_(y)


class Separable(nn.Module):
    """A depthwise convolution, group norm and SiLU."""

    def __init__(self):
        super().__init__()
        self.depth = nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False)
        self.point, self.norm = nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8)

    def forward(self, x):
        return F.silu(self.norm(self.point(self.depth(x))))


class Decoder(nn.Module):
    """A transposed convolution and bilinear sampling."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1)

    def forward(self, x):
        x = torch.sigmoid(self.up(x))
        return F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=False)


class Shuffled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.shuffle = nn.Conv2d(3, 12, 1), nn.PixelShuffle(2)

    def forward(self, x):
        return torch.tanh(self.shuffle(self.conv(x)))


class ChannelsLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        x = x.contiguous(memory_format=torch.channels_last)
        return F.adaptive_avg_pool2d(F.elu(self.conv(x)), 1).flatten(1)


def get_inputs():
    return [torch.randn(2, 3, 16, 16)]
