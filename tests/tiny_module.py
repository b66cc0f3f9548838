"""A small attention block as a torch module with realistic weights, and inputs of it."""

from __future__ import annotations

from typing import Any


def block(seed: int = 0) -> tuple[Any, list[Any]]:
    """(module, [ids, mask]): two heads over an embedding, a norm, a head; outputs are the states and a summary."""
    import torch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(32, 16)
            self.query_key = torch.nn.Linear(16, 32)
            self.value = torch.nn.Linear(16, 16)
            self.norm = torch.nn.LayerNorm(16)
            self.head = torch.nn.Linear(16, 4)

        def forward(self, ids: Any, mask: Any) -> Any:
            x = self.table(ids)
            q, k = self.query_key(x).chunk(2, dim=-1)
            scores = torch.matmul(q, k.transpose(1, 2)) * mask[:, None, :]
            x = self.norm(x + torch.matmul(torch.softmax(scores, -1), self.value(x)))
            return x, torch.tanh(self.head(x)).sum(1)

    torch.manual_seed(seed)
    module = Block().eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape) * (0.3 if weight.ndim > 1 else 0.5))
    return module, [torch.randint(0, 32, (2, 6)), torch.rand(2, 6)]
