"""Training steps in JAX, each from a state that is given: `tasks.training.loop` in another framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tasks.training.in_jax.networks import LOSSES
from tasks.training.in_jax.parts import JaxLayers
from tasks.training.layout import StepLayout
from tasks.training.phases import (
    BUFFERS,
    CLIPPED,
    FIRST,
    LOSS,
    OF_PARAMETERS,
    PHASES,
    PROBE,
    RAW,
    SECOND,
    TAPS,
    WEIGHTS,
)
from tasks.training.recipe import CLIP_EPS, TrainingRecipe
from tasks.training.state import StatePlaces, cut_state_vector

Named = dict[str, Any]


class JaxLoop:
    """Products are in ``precision``, "" for float32; weights and all else stay float32. In float16 the loss is scaled.
    Each part of a step is a method, so that a planted fault takes the place of one. compiled: whether a step is one
    program, or each primitive by itself."""

    def __init__(
        self, network: str, recipe: TrainingRecipe, places: StatePlaces, precision: str, compiled: bool = True
    ) -> None:
        self.recipe, self.places, self.compiled = recipe, places, compiled
        self.network, self.narrow = LOSSES[network], getattr(jnp, precision) if precision else None
        self.scale = recipe.scale if precision == "float16" else 1.0

    def start(self) -> None:
        self.optimiser = self.build_optimiser()
        loss = jax.checkpoint(self.compute_loss) if self.recipe.checkpoint else self.compute_loss
        make: Callable[[Any], Any] = jax.jit if self.compiled else lambda function: function
        self._differentiate, self._compute_loss = make(jax.grad(loss, has_aux=True)), make(self.compute_loss)
        self._clip, self._apply = make(self.clip_gradients), make(self.apply_optimiser)

    def step(self, own: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """A `StepLayout` and the outputs of one step; own: as `tasks.training.loop.TrainingLoop.step` takes it."""
        number = int(own["number"].item())
        weights, first, second = (
            self._name(own[part], self.places.parameters) for part in ("weights", "first", "second")
        )
        buffers = self._name(own["buffers"], self.places.buffers)
        batches = list(zip(*(own[f"batch{k}"] for k in range(len(own)) if f"batch{k}" in own)))
        raw, loss, buffers, taps = self.accumulate(weights, buffers, batches)
        clipped = self._clip(raw)
        first, second, after = self._apply(number, self.recipe.rate_at(number), weights, first, second, clipped)
        probe = self._compute_loss(after, buffers, *(own[f"probe{k}"] for k in range(len(own)) if f"probe{k}" in own))[
            1
        ][0]
        found = {TAPS: taps, LOSS: {"": loss}, BUFFERS: buffers, RAW: raw, CLIPPED: clipped if self.recipe.clip else {}}
        found |= {FIRST: first if self.recipe.has_first else {}, SECOND: second, WEIGHTS: after, PROBE: {"": probe}}
        order = {BUFFERS: self.places.buffers} | dict.fromkeys(
            OF_PARAMETERS, self.places.parameters
        )  # a compiled step sorts them
        outputs = {p: [found[p][name] for name in order.get(p, found[p])] for p in PHASES if found.get(p)}
        layout = StepLayout({phase: len(some) for phase, some in outputs.items()}, tuple(taps))
        return [layout.encode(), *(np.asarray(x, np.float32) for some in outputs.values() for x in some)]

    def compute_loss(self, weights: Named, buffers: Named, *batch: Any) -> tuple[Any, tuple[Any, Named, Named]]:
        """(the loss as it is differentiated, (the loss, the buffers after it, outputs of modules))."""
        layers = JaxLayers(weights, buffers, self.narrow)
        loss = self.network(layers, *batch)
        return loss * self.scale, (loss, layers.buffers, layers.taps)

    def accumulate(
        self, weights: Named, buffers: Named, batches: Sequence[Sequence[Any]]
    ) -> tuple[Named, Any, Named, Named]:
        """(mean gradients of the micro-batches, their mean loss, the buffers after them, outputs of modules at the
        first)."""
        total, gradients, taps = jnp.float32(0), dict[str, Any](), dict[str, Any]()
        for batch in batches:
            found, (loss, buffers, seen) = self._differentiate(weights, buffers, *batch)
            taps, total = taps or seen, total + loss / len(batches)
            for name in self.places.parameters:
                part = found[name] / (self.scale * len(batches))
                gradients[name] = gradients[name] + part if name in gradients else part
        if self.recipe.compress:
            gradients = {name: g.astype(self.recipe.compress).astype(g.dtype) for name, g in gradients.items()}
        return gradients, total, buffers, taps

    def clip_gradients(self, gradients: Named) -> Named:
        """By the formula of torch, which adds to the norm; optax's own adds nothing."""
        if not self.recipe.clip:
            return gradients
        factor = jnp.minimum(1, self.recipe.clip / (optax.global_norm(gradients) + CLIP_EPS))
        return {name: g * factor for name, g in gradients.items()}

    def build_optimiser(self) -> Any:
        """optax's own, whose rate each step is told."""
        recipe = self.recipe
        decay = optax.add_decayed_weights(recipe.decay)

        def make(learning_rate: float) -> Any:
            if recipe.optimiser == "sgd":
                return optax.chain(decay, optax.sgd(learning_rate, recipe.momentum))
            if recipe.optimiser == "adam":
                return optax.chain(decay, optax.adam(learning_rate, *recipe.betas, recipe.eps))
            return optax.adamw(learning_rate, *recipe.betas, recipe.eps, weight_decay=recipe.decay)

        return optax.inject_hyperparams(make)(learning_rate=recipe.rate)

    def apply_optimiser(
        self, number: Any, rate: Any, weights: Named, first: Named, second: Named, gradients: Named
    ) -> tuple[Named, Named, Named]:
        """(first moments, second moments, weights) after the step."""
        moments = {"mu": first, "nu": second} if self.recipe.has_second else {"trace": first}
        told = moments | {"count": jnp.int32(number)}

        def put(node: Any) -> Any:
            return node._replace(**{name: told[name] for name in node._fields}) if _is_optimiser_state(node) else node

        state = self.optimiser.init(weights)
        state = state._replace(
            inner_state=jax.tree.map(put, state.inner_state, is_leaf=_is_optimiser_state),
            hyperparams={"learning_rate": jnp.float32(rate)},
        )
        updates, state = self.optimiser.update(gradients, state, weights)
        after = [optax.tree_utils.tree_get(state, name) for name in moments]
        return after[0], after[1] if len(after) > 1 else {}, optax.apply_updates(weights, updates)

    def _name(self, vector: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> Named:
        return dict(zip(shapes, cut_state_vector(vector, list(shapes.values()))))


def _is_optimiser_state(node: Any) -> bool:
    """Whether it holds an optimiser's moments."""
    return isinstance(node, (optax.ScaleByAdamState, optax.TraceState))
