"""The first model of an introduction to testing compilers: its weights are drawn when it is made."""

import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(in_channels=1, out_channels=3, kernel_size=1)
        self.linear = torch.nn.Linear(3, 1)

    def forward(self, x):
        x = x.unsqueeze(1)
        x = self.conv(x)
        x = x.mean(dim=-1)
        return self.linear(x)


def get_inputs():
    return [torch.randn(1, 3)]
