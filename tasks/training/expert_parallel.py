"""Expert parallelism: each rank has some of the experts, and tokens are sent to theirs and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.training.parallel import ParallelLoop, count_training_ranks, find_training_rank


class ExpertParallel(ParallelLoop):
    """Every rank routes a part of the tokens, sends each to the ranks that have its experts, and gathers what comes
    back; all else is on every rank. Nobody looks into an expert, which sees the tokens that it is sent alone."""

    networks = ("experts",)

    def spread(self, module: Any) -> Any:
        for number, block in enumerate(module.blocks):
            experts = block.experts
            if len(experts.up) % count_training_ranks():
                raise ValueError(f"{len(experts.up)} experts cannot be shared by {count_training_ranks()} ranks")
            each = len(experts.up) // count_training_ranks()
            for k in range(len(experts.up)):
                for part in ("up", "down"):
                    for of in ("weight", "bias"):
                        self.holders[f"blocks.{number}.experts.{part}.{k}.{of}"] = [k // each]
            experts.forward = lambda x, experts=experts: self.run_experts(experts, x)
        return module

    def run_experts(self, experts: Any, x: Any) -> Any:
        """As `tasks.training.networks.experts.ExpertLayer`."""
        import torch

        from tasks.training.networks.experts import EXPERTS
        from tasks.training.networks.sizes import CHOSEN

        shares = torch.softmax(experts.router(x), -1)
        best, chosen = shares.topk(CHOSEN, -1)
        weights = torch.zeros_like(shares).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        used = (weights > 0).to(shares.dtype).flatten(0, 1).mean(0)
        experts.balance = EXPERTS * (used * shares.flatten(0, 1).mean(0)).sum()
        tokens, own = (self.scatter(y.flatten(0, 1)) for y in (x, weights))
        rows, of = self.list_destinations(own)
        sent = self.send(tokens[rows], of)
        made = self.compute_experts(experts, *sent[:2])
        back = self.send_back(made, *sent[2:])
        mixed = torch.zeros_like(tokens).index_add(0, rows, back * own[rows, of][:, None])
        return self.gather(mixed).unflatten(0, x.shape[:2])

    def list_destinations(self, weights: Any) -> tuple[Any, Any]:
        """(row of the token, expert) of everything that is sent, in the order of the experts."""
        of, rows = weights.T.nonzero(as_tuple=True)
        return rows, of

    def send(self, tokens: Any, of: Any) -> tuple[Any, Any, list[int], list[int]]:
        """(tokens of this rank's experts, which expert each is for, how many came from each rank, how many went to
        each)."""
        import torch
        import torch.distributed as dist

        from tasks.training.networks.experts import EXPERTS

        each = EXPERTS // count_training_ranks()
        counts = torch.bincount(of // each, minlength=count_training_ranks())
        came = torch.empty_like(counts)
        dist.all_to_all_single(came, counts)
        sizes = came.tolist(), counts.tolist()
        kinds = torch.empty(sum(sizes[0]), dtype=of.dtype, device=of.device)
        dist.all_to_all_single(kinds, of, *sizes)
        return _exchange_expert_rows()(tokens, *sizes), kinds, *sizes

    def compute_experts(self, experts: Any, tokens: Any, of: Any) -> Any:
        import torch
        from torch.nn.functional import gelu, linear

        made = torch.zeros_like(tokens)
        for k in of.unique().tolist():
            up, down = experts.up[k], experts.down[k]
            rows = (of == k).nonzero().flatten()
            inner = gelu(linear(tokens[rows], up.weight, up.bias))
            made = made.index_add(0, rows, linear(inner, down.weight, down.bias))
        return made

    def send_back(self, made: Any, came: Sequence[int], went: Sequence[int]) -> Any:
        return _exchange_expert_rows()(made, went, came)

    def scatter(self, x: Any) -> Any:
        """This rank's rows, of what every rank has; their gradients come together again."""
        return _scatter_expert_rows()(x)

    def gather(self, x: Any) -> Any:
        """All rows, of which each rank has its own."""
        return _gather_expert_rows()(x)

    def clip_gradients(self) -> None:
        self.clip_by_whole_norm()

    def gather_tap(self, name: str, x: Any) -> Any:
        return x


def _gather_rows_of_all(x: Any) -> Any:
    import torch
    import torch.distributed as dist

    parts = [torch.empty_like(x) for _ in range(count_training_ranks())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


def _take_own_expert_rows(x: Any) -> Any:
    each = len(x) // count_training_ranks()
    return x[find_training_rank() * each : (find_training_rank() + 1) * each].contiguous()


def _scatter_expert_rows() -> Any:
    import torch

    class Scatter(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return _take_own_expert_rows(x)

        @staticmethod
        def backward(_: Any, g: Any) -> Any:
            return _gather_rows_of_all(g)

    return Scatter.apply


def _gather_expert_rows() -> Any:
    import torch

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return _gather_rows_of_all(x)

        @staticmethod
        def backward(_: Any, g: Any) -> Any:
            return _take_own_expert_rows(g)

    return Gather.apply


def _exchange_expert_rows() -> Any:
    import torch
    import torch.distributed as dist

    class Exchange(torch.autograd.Function):
        """Rows to all ranks: of the result ``came`` from each, of the argument ``went`` to each."""

        @staticmethod
        def forward(ctx: Any, x: Any, came: Sequence[int], went: Sequence[int]) -> Any:
            ctx.sizes = came, went
            made = torch.empty(sum(came), x.shape[1], dtype=x.dtype, device=x.device)
            dist.all_to_all_single(made, x.contiguous(), list(came), list(went))
            return made

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            came, went = ctx.sizes
            made = torch.empty(sum(went), g.shape[1], dtype=g.dtype, device=g.device)
            dist.all_to_all_single(made, g.contiguous(), list(went), list(came))
            return made, None, None

    return Exchange.apply
