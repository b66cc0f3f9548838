"""Adequacy of a network that has a torch form: most layers are seen to be observed by one backward pass, the rest one by one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.graphs import torch_module
from tasks.graphs.adequacy import NOTICED, SCALE, compute_graph_row_unit

#: Projections on random signs; and how far beyond the limit one must lie, a random sum being up to so many deviations
#: off.
_PROJECTIONS, _SURE = 3, 3.0


def find_unobserved_parameters(
    module: Any,
    inputs: Sequence[np.ndarray],
    references: Sequence[np.ndarray],
    row_floors: Sequence[np.ndarray],
    among: Collection[str] | None = None,
) -> list[str]:
    """As `tasks.graphs.adequacy.find_unobserved_layers`, for the parameters of more than one axis of a float32 module.

    If outputs in row units move by d when a layer is scaled, then max|d| ≥ ‖d‖/√n, and Σ ±d for random signs, which one
    gradient gives for all layers at once, tells ‖d‖. What that leaves open is evaluated in float64.
    """
    import torch

    layers = {
        name: p
        for name, p in module.named_parameters()
        if p.ndim > 1 and p.numel() > 1 and (among is None or name in among)
    }
    if not layers:
        return []
    units = [compute_graph_row_unit("float32", y, floor) for y, floor in zip(references, row_floors)]
    try:
        moved = _estimate_layer_moves(module, [torch.from_numpy(np.array(x)) for x in inputs], layers, units)
    except Exception:  # an operator without a gradient, a write in place: then each layer is looked at by itself
        moved = dict.fromkeys(layers, 0.0)
    sure = _SURE * NOTICED * math.sqrt(sum(y.size for y in references))
    left = [name for name in layers if not moved[name] >= sure]
    return [name for name in left if not _is_layer_noticed(module, inputs, layers[name], references, units)]


def _estimate_layer_moves(
    module: Any, inputs: Sequence[Any], layers: Mapping[str, Any], units: Sequence[np.ndarray]
) -> dict[str, float]:
    """By layer: |Σ ±d|, to first order, for the outputs' moves d in row units when it is scaled; the largest of
    some."""
    import torch

    before = {name: p.requires_grad for name, p in layers.items()}
    found = dict.fromkeys(layers, 0.0)
    g = np.random.default_rng(7)
    try:
        for p in layers.values():
            p.requires_grad_(True)
        with torch.enable_grad():
            outputs = module(*inputs)
        for last in reversed(range(_PROJECTIONS)):
            signs = [
                torch.from_numpy((g.integers(0, 2, u.shape) * 2 - 1) / u).to(y.dtype) for y, u in zip(outputs, units)
            ]
            kept = [(y, s) for y, s in zip(outputs, signs) if y.requires_grad]
            if not kept:
                break
            grads = torch.autograd.grad(
                [y for y, _ in kept], list(layers.values()), [s for _, s in kept], bool(last), allow_unused=True
            )
            for (name, p), grad in zip(layers.items(), grads):
                if grad is not None:
                    move = (SCALE - 1.0) * abs(float((grad.double() * p.detach().double()).sum()))
                    found[name] = max(found[name], move)
    finally:
        for name, p in layers.items():
            p.requires_grad_(before[name])
    return found


def _is_layer_noticed(
    module: Any, inputs: Sequence[np.ndarray], layer: Any, references: Sequence[np.ndarray], units: Sequence[np.ndarray]
) -> bool:
    import torch

    with torch.no_grad():
        kept = layer.detach().clone()
        layer.mul_(SCALE)
        try:
            found = torch_module.evaluate_module_exactly(module, inputs)
        finally:
            layer.copy_(kept)
    return any(not (np.abs(a - y) <= NOTICED * u).all() for a, y, u in zip(found, references, units))
