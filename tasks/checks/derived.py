"""Checks whose samples are made of the first sample of an op that is an ONNX model, in the farm's own environment."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.checks.base import FORWARD, Check
from tasks.model import Form, Group, Vacuous

if TYPE_CHECKING:
    from tasks.catalogs.base import Catalog, Entry, Sample


class Spoilt(Exception):
    """A sample that cannot be made, and what is to blame: its rows are `invalid`, whatever a runtime does."""

    def __init__(self, culprit: str, text: str) -> None:
        super().__init__(text)
        self.culprit = culprit


class Derived(Check):
    """Base of these checks; ``numbers``: of its samples, which are their places in a ``case_id``."""

    prepared = True
    numbers: tuple[int, ...] = (0,)

    @property
    def needs(self) -> str:
        return FORWARD

    def asks(self, entry: Entry, catalog: Catalog) -> bool:
        return FORWARD in entry.checks and "onnx" in catalog.forms

    def wanted(self, samples: int) -> int:
        return len(self.numbers)

    def make(self, catalog: Catalog, group: Group, draws: int, skip: Collection[int]) -> Iterator[Sample]:
        """One sample for each of `numbers`, derived of the op's first one; a sample that cannot be comes with a failure."""
        from tasks.catalogs.base import Failure, Sample

        base = next(iter(catalog.samples(replace(group, check=FORWARD, samples=1), draws)))
        for place, number in enumerate(self.numbers):
            if place in skip:
                yield Sample(number)
                continue
            try:
                if base.failure:
                    yield replace(base, index=number)
                elif base.model is None:
                    yield Sample(number, failure=Failure.vacuous("the op is no ONNX model"))
                else:
                    yield self.derive(base, number, group, draws)
            except Vacuous as error:
                yield Sample(number, failure=Failure.vacuous(str(error)))
            except Spoilt as error:
                yield Sample(number, failure=Failure("invalid", "sample", "", str(error), error.culprit))
            except Exception as error:
                yield Sample(number, failure=Failure.of(error, "sample"))

    def derive(self, base: Sample, number: int, group: Group, draws: int) -> Sample:
        """The sample ``number`` of a sample with a model.

        Raises Vacuous; Spoilt, or anything: the case is then `invalid`.
        """
        raise NotImplementedError


def feeds_of(sample: Sample, model: Any, arrays: list[Any] | None = None) -> dict[str, Any]:
    """What each input of a ModelProto is given by a sample, or by other arrays in their places, by name."""
    from tasks.arrays.tree import encode
    from tasks.backends.shared.onnx_form import input_values

    form = Form("onnx", "", "", sample.arrays if arrays is None else arrays, args=encode(sample.args), model=b"")
    defaults = {x.name for x in model.graph.initializer}
    names = [x.name for x in model.graph.input if x.name not in defaults]
    return {k: v for k, v in zip(names, input_values(form), strict=True) if v is not None}


def apart(left: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    """How the float64 outputs of two graphs differ beyond float64's own rounding; "" where they do not."""
    from tasks.backends.shared.onnx_form import flatten

    pairs = [[np.asarray(x) for x in flatten(list(side.values()))] for side in (left, right)]
    if len(pairs[0]) != len(pairs[1]):
        return f"{len(pairs[1])} outputs instead of {len(pairs[0])}"
    for number, (a, b) in enumerate(zip(*pairs)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {number} is {b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}"
        if a.dtype.kind == "V":  # of few bits: exact in float64
            a, b = a.astype(np.float64), b.astype(np.float64)
        if a.dtype.kind not in "fc":
            if not np.array_equal(a, b):
                return f"output {number} differs in {int((a != b).sum())} of {a.size} elements"
            continue
        size = np.abs(a)
        scale = float(size.max(initial=0.0, where=np.isfinite(size)))
        if not np.allclose(a, b, rtol=2.0**-30, atol=scale * 2.0**-30, equal_nan=True):
            with np.errstate(invalid="ignore"):
                return f"output {number} differs by {np.nanmax(np.abs(a - b)):.3g} of at most {scale:.3g}"
    return ""
