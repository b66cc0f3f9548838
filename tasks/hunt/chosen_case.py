"""A generated case: the choices that made it, and what they made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tasks import catalogs
from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Sample
from tasks.draw.choices import DrawnChoices
from tasks.hunt.call_case import CallCase
from tasks.hunt.dialogue import Unfit
from tasks.hunt.graph_case import GraphCase
from tasks.model import Group


@dataclass(frozen=True, eq=False)
class ChosenCase:
    """taken: the choices; group: of the catalog that makes a case of them; draws: of the noise floor."""

    taken: tuple[int, ...]
    group: Group
    draws: int
    choose: DrawnChoices = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "choose", DrawnChoices.from_list(self.taken))

    @cached_property
    def _sample(self) -> Sample | str:
        try:
            sample = catalogs.get_catalog(self.group.catalog).chosen(self.group, self.choose, self.draws)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return sample if sample.failure is None else sample.failure.error

    def make_sample(self) -> tuple[Group, Sample]:
        if isinstance(self._sample, str):
            raise Unfit(self._sample)
        if any(0 in leaf.shape for leaf in self._sample.expected):
            raise Unfit("an output has no elements")
        return self.group, self._sample

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {str(k): x for k, x in enumerate(self.make_sample()[1].arrays)}

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> ChosenCase:
        raise NotImplementedError("arrays follow from choices")

    @property
    def integers(self) -> dict[str, int]:
        return {}

    def with_integers(self, integers: Mapping[str, int]) -> ChosenCase:
        return self

    def simpler(self) -> Iterator[tuple[str, ChosenCase]]:
        return iter(())

    @property
    def names(self) -> tuple[str, ...]:
        graph = self.graph()
        return graph.names if graph is not None else ()

    @property
    def ops(self) -> tuple[str, ...]:
        return (self.group.op_name,)

    def key(self) -> Any:
        return self.taken

    def graph(self) -> GraphCase | None:
        """What the choices made, as a graph with inputs; None where it is none."""
        import onnx

        sample = self.make_sample()[1]
        if sample.model is None or not all(isinstance(x, TensorSpec) for x in sample.args):
            return None
        model = onnx.load_from_string(sample.model)
        feeds = {x.name: sample.arrays[spec.id] for x, spec in zip(model.graph.input, sample.args)}
        return GraphCase(model, feeds, self.group, self.draws)

    def call(self) -> CallCase:
        """What the choices made, as a call."""
        return CallCase.of(self.make_sample()[1], self.group, self.draws)
