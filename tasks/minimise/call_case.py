"""A failing call of an op (torch's samples, critical ops, kernels of the user), as a search makes it smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tasks import catalogs
from tasks.arrays.tree import contiguous, tensor_specs, with_tensors
from tasks.catalogs.base import Sample
from tasks.minimise.case import Unfit, digest, integers, with_integers
from tasks.model import Group
from tasks.prepare import derived


@dataclass(frozen=True, eq=False)
class CallCase:
    """args, kwargs: encoded trees (`tasks.arrays.tree`) over ``stored``; group: of its catalog, which makes its reference;
    draws: of the noise floor."""

    args: Any
    kwargs: Any
    stored: tuple[np.ndarray, ...] = field(repr=False)
    group: Group
    draws: int

    @classmethod
    def of(cls, sample: Sample, group: Group, draws: int) -> CallCase:
        return cls(*sample.encoded(), tuple(sample.arrays), group, draws)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        specs = tensor_specs(self.args) + tensor_specs(self.kwargs)
        plain = [x for x in specs if x.layout == "strided"]
        return {str(x.id): contiguous(self.stored[x.id], x) for x in plain}

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> CallCase:
        stored = list(self.stored)
        for name, x in arrays.items():
            stored[int(name)] = np.ascontiguousarray(x).reshape(x.shape)

        def dense(node: dict[str, Any]) -> Any:
            if str(node["id"]) not in arrays:
                return node
            return {k: v for k, v in node.items() if k not in ("shape", "strides", "offset")}

        args, kwargs = (with_tensors(tree, dense) for tree in (self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs, stored=tuple(stored))

    @property
    def integers(self) -> dict[str, int]:
        return dict([*integers(self.args, ("args",)), *integers(self.kwargs, ("kwargs",))])

    def with_integers(self, integers: Mapping[str, int]) -> CallCase:
        return replace(self, **with_integers({"args": self.args, "kwargs": self.kwargs}, integers))

    def simpler(self) -> Iterator[tuple[str, CallCase]]:
        if self.group.catalog == "user":
            return  # a kernel's arguments are declared with it
        for k, (name, _) in enumerate(self.kwargs["v"]):
            left = [pair for j, pair in enumerate(self.kwargs["v"]) if j != k]
            yield f"argument {name}", replace(self, kwargs={**self.kwargs, "v": left})
        if len(self.args["v"]) > 1:
            yield f"argument {len(self.args['v']) - 1}", replace(self, args={**self.args, "v": self.args["v"][:-1]})

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    @property
    def ops(self) -> tuple[str, ...]:
        return (self.group.op_name,)

    def made(self) -> tuple[Group, Sample]:
        given = Sample(0, self.args, self.kwargs, arrays=list(self.stored))
        try:
            sample = derived.remade(catalogs.get(self.group.catalog), self.group, given, self.draws)
        except Exception as error:
            raise Unfit(f"{type(error).__name__}: {error}") from None
        if sample.failure is not None:
            raise Unfit(sample.failure.error)
        if any(0 in leaf.shape for leaf in sample.expected):
            raise Unfit("an output has no elements")
        return replace(self.group, samples=1), sample

    def as_made(self) -> CallCase:
        """The case with the arguments that its catalog made of it: sizes that are among a kernel's own follow its inputs'."""
        return CallCase.of(self.made()[1], self.group, self.draws)

    def key(self) -> Any:
        return digest([self.args, self.kwargs], self.arrays)
