"""A failing call of an op (torch's samples, critical ops, kernels of the user), as a search makes it smaller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tasks import catalogs
from tasks.arrays import layouts
from tasks.arrays.layouts import make_array_contiguous
from tasks.arrays.tree import (
    TensorSpec,
    encode_tensor_spec,
    list_tensor_specs,
    make_contiguous_tensor,
    map_tree_tensors,
)
from tasks.catalogs.base import Sample
from tasks.hunt.case import digest_searched_case, list_case_integers, put_case_integers
from tasks.hunt.dialogue import Unfit
from tasks.model import Group
from tasks.prepare import derived


@dataclass(frozen=True, eq=False)
class CallCase:
    """args, kwargs: encoded trees (`tasks.arrays.tree`) over ``stored``; group: of its catalog, which makes its
    reference; draws: of the noise floor; structure: the labels of its structured inputs (`tasks.draw.structure`)."""

    args: Any
    kwargs: Any
    stored: tuple[np.ndarray, ...] = field(repr=False)
    group: Group
    draws: int
    structure: str = ""

    @classmethod
    def of(cls, sample: Sample, group: Group, draws: int) -> CallCase:
        return cls(*sample.encoded(), tuple(sample.arrays), group, draws, sample.columns.get("structure") or "")

    def ordinary(self, seed: int, every: bool = False) -> CallCase | None:
        """The case with ordinary values in the place of structured inputs, or of every one; None where nobody knows
        any."""
        given = Sample(0, self.args, self.kwargs, arrays=list(self.stored))
        try:
            found = catalogs.get_catalog(self.group.catalog).ordinary(
                self.group, given, "" if every else self.structure, seed
            )
        except (ValueError, KeyError, TypeError):
            return None
        return self.with_arrays({str(place): x for place, x in found.items()}) if found else None

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        specs = list_tensor_specs(self.args) + list_tensor_specs(self.kwargs)
        plain = [x for x in specs if x.layout == "strided"]
        return {str(x.id): make_contiguous_tensor(self.stored[x.id], x) for x in plain}

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> CallCase:
        """The case with other arrays, which lie in memory as those did whose place they take."""
        return self._with({name: _store_searched_array(x, self._specs[name]) for name, x in arrays.items()})

    @property
    def _specs(self) -> dict[str, TensorSpec]:
        return {str(x.id): x for x in list_tensor_specs([self.args, self.kwargs]) if x.layout == "strided"}

    def _with(self, placed: Mapping[str, tuple[np.ndarray, TensorSpec]]) -> CallCase:
        """The case with other storages, and other views of them."""
        stored = list(self.stored)
        for name, (x, _) in placed.items():
            stored[int(name)] = x

        def node(one: dict[str, Any]) -> Any:
            found = placed.get(str(one["id"]))
            return one if found is None else encode_tensor_spec(replace(found[1], flags=one.get("flags", "")))

        args, kwargs = (map_tree_tensors(tree, node) for tree in (self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs, stored=tuple(stored))

    @property
    def integers(self) -> dict[str, int]:
        return dict([*list_case_integers(self.args, ("args",)), *list_case_integers(self.kwargs, ("kwargs",))])

    def with_integers(self, integers: Mapping[str, int]) -> CallCase:
        return replace(self, **put_case_integers({"args": self.args, "kwargs": self.kwargs}, integers))

    def simpler(self) -> Iterator[tuple[str, CallCase]]:
        for name, spec in self._specs.items():
            if spec.strides is not None:
                yield (
                    f"layout of {self.tensor_names[name]}",
                    self._with({name: _store_searched_array(self.arrays[name], TensorSpec(spec.id))}),
                )
        if self.group.catalog == "user":
            return  # a kernel's arguments are declared with it
        for k, (name, _) in enumerate(self.kwargs["v"]):
            left = [pair for j, pair in enumerate(self.kwargs["v"]) if j != k]
            yield f"argument {name}", replace(self, kwargs={**self.kwargs, "v": left})
        if len(self.args["v"]) > 1:
            yield f"argument {len(self.args['v']) - 1}", replace(self, args={**self.args, "v": self.args["v"][:-1]})

    @property
    def named_arguments(self) -> list[tuple[str, Any]]:
        """(name, value) of the arguments."""
        return [*((f"argument {k}", x) for k, x in enumerate(self.args["v"])), *self.kwargs["v"]]

    @property
    def tensor_names(self) -> dict[str, str]:
        """What its tensors are called, by their number."""
        found = dict[str, str]()
        for name, node in self.named_arguments:
            specs = list_tensor_specs(node)
            found |= {str(x.id): name if len(specs) == 1 else f"{name}[{k}]" for k, x in enumerate(specs)}
        return found

    @property
    def lie(self) -> dict[str, str]:
        """How its tensors that are not contiguous lie in memory, by their number."""
        return {
            k: f"input, strides {list(x.strides)}, offset {x.offset}"
            for k, x in self._specs.items()
            if x.strides is not None
        }

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    @property
    def ops(self) -> tuple[str, ...]:
        return (self.group.op_name,)

    def make_sample(self) -> tuple[Group, Sample]:
        return self._made

    @cached_property
    def _made(self) -> tuple[Group, Sample]:
        given = Sample(0, self.args, self.kwargs, arrays=list(self.stored))
        try:
            sample = derived.remake_derived_sample(
                catalogs.get_catalog(self.group.catalog), self.group, given, self.draws
            )
        except Exception as error:
            raise Unfit(f"{type(error).__name__}: {error}") from None
        if sample.failure is not None:
            raise Unfit(sample.failure.error)
        if any(0 in leaf.shape for leaf in sample.expected):
            raise Unfit("an output has no elements")
        return replace(self.group, samples=1), sample

    def as_made(self) -> CallCase:
        """The case with the arguments that its catalog made of it: sizes that are among a kernel's own follow its
        inputs'."""
        return replace(CallCase.of(self.make_sample()[1], self.group, self.draws), structure=self.structure)

    def key(self) -> Any:
        return digest_searched_case([self.args, self.kwargs], self.arrays)


def _store_searched_array(x: np.ndarray, like: TensorSpec) -> tuple[np.ndarray, TensorSpec]:
    """The storage of an array that lies in memory as a view does, and the view of it."""
    if like.strides is not None and like.shape is not None and len(like.shape) == x.ndim:
        return layouts.lay_out_like(x, like)
    return make_array_contiguous(x), TensorSpec(like.id)
