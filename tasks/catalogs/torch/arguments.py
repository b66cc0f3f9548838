"""How torch's arguments are taken apart, widened to float64, and moved as a draw of the noise floor says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.arrays import noise, torch_tree
from tasks.arrays.tree import map_leaves
from tasks.model import EPS


def widen_torch_argument(x: Any) -> Any:
    """float64 (complex128) twin of a tensor or dtype, never sharing memory; everything else as it is."""
    import torch

    if isinstance(x, torch.Tensor):
        if x.requires_grad:
            x = x.detach()
        if x.is_floating_point():
            return x.to(torch.float64, copy=True)
        return x.to(torch.complex128, copy=True) if x.is_complex() else x.clone()
    if isinstance(x, torch.dtype):
        return torch.float64 if x.is_floating_point else torch.complex128 if x.is_complex else x
    return x


def clone_torch_argument(x: Any) -> Any:
    import torch

    return (x.detach() if x.requires_grad else x).clone() if isinstance(x, torch.Tensor) else x


class TorchArguments:
    """The arguments of a call, taken apart once; what each of its tensors becomes in a draw is computed for many at
    once."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.leaves: list[Any] = []
        map_leaves(args, self.leaves.append)
        map_leaves(kwargs, self.leaves.append)
        self._wide: dict[int, np.ndarray] = {}
        self._flat = len(self.leaves) == len(args) + len(kwargs)  # no lists inside: the usual case
        if self._flat:
            self._flat = not any(type(x) in (tuple, list, dict) for x in (*args, *kwargs.values()))

    def of(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other leaves in the places of their own."""
        if self._flat:
            count = len(self.args)
            return tuple(leaves[:count]), dict(zip(self.kwargs, leaves[count:]))
        following = iter(leaves)
        return map_leaves(self.args, lambda _: next(following)), map_leaves(self.kwargs, lambda _: next(following))

    def movable(self, turned: bool, fixed: Sequence[int]) -> dict[int, int]:
        """Which leaves a draw moves, by place, with the number that tells the tensors of the call apart.

        Floating tensors, but for those whose number is in ``fixed``; ``turned``: the first tensor, whatever its dtype.
        """
        import torch

        found: dict[int, int] = {}
        number = 0
        for place, x in enumerate(self.leaves):
            if not isinstance(x, torch.Tensor):
                continue
            if x.is_floating_point() or x.is_complex() or (turned and not number):
                number += 1
                if number not in fixed:
                    found[place] = number
        return found

    def perturb(self, movable: dict[int, int], eps: float, draws: Sequence[int]) -> list[list[Any]]:
        """Per draw all leaves, widened; those in ``movable`` moved by ε, a weight in a coarser dtype than the call's by
        its own."""
        import torch

        columns: list[Sequence[Any]] = []
        for place, x in enumerate(self.leaves):
            if place in movable:
                own = max(eps, EPS.get(torch_tree.name_torch_dtype(x.dtype), eps))
                columns.append(self._perturb_leaf(place, own, draws, movable[place]))
            elif isinstance(x, torch.Tensor):
                columns.append([widen_torch_argument(x) for _ in draws])
            else:
                columns.append([widen_torch_argument(x)] * len(draws))
        return [list(leaves) for leaves in zip(*columns)]

    def _perturb_leaf(self, place: int, eps: float, draws: Sequence[int], number: int) -> Sequence[Any]:
        import torch

        x = self.leaves[place].detach()
        if x.layout != torch.strided:
            return [_perturb_sparse_tensor(x, eps, draw, number) for draw in draws]
        if place not in self._wide:
            self._wide[place] = torch_tree.tensor_to_numpy(x.to(torch.complex128 if x.is_complex() else torch.float64))
        return torch.from_numpy(noise.perturb_by_each_draw(self._wide[place], eps, draws, number)).unbind(0)


def _perturb_sparse_tensor(x: Any, eps: float, draw: int, number: int) -> Any:
    import torch

    wide = widen_torch_argument(x)
    values = wide._values() if x.layout == torch.sparse_coo else wide.values()
    values.copy_(torch.from_numpy(noise.perturb_by_noise(torch_tree.tensor_to_numpy(values), eps, draw, number)))
    return wide
