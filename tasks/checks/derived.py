"""Checks whose samples are made of the first sample of an op (`tasks.prepare.derived`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.checks.base import Check
from tasks.model import FORWARD

if TYPE_CHECKING:
    from tasks.catalogs.base import Catalog, Entry


class Derived(Check):
    """Base of these checks; ``of_model``: whether that sample must be an ONNX model, or its catalog makes references
    for other arguments instead (`Catalog.remade`); ``numbers``: of its samples, which are their places in a
    ``case_id``; ``any_size``: whether they are made of the model that `Catalog.any_size` has."""

    prepared = True
    of_model = True
    numbers: tuple[int, ...] = (0,)
    any_size = False

    @property
    def needs(self) -> str:
        return FORWARD

    def unasked(self, entry: Entry, catalog: Catalog) -> str:
        if self.of_model and "onnx" not in catalog.forms:
            return "no ONNX model, which its samples are made of"
        if not self.of_model and not catalog.remakes:
            return "no reference for other inputs than the catalog's own"
        return "" if FORWARD in entry.checks else "no forward samples"

    def wanted(self, samples: int) -> int:
        return len(self.numbers)
