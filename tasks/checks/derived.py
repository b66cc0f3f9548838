"""Checks whose samples are made of the first sample of an op (`tasks.prepare.derived`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.checks.base import Check
from tasks.model import FORWARD

if TYPE_CHECKING:
    from tasks.catalogs.base import Catalog, Entry


class Derived(Check):
    """Base of these checks; ``of_model``: whether that sample must be an ONNX model, or its catalog makes references for other
    arguments instead (`Catalog.remade`); ``numbers``: of its samples, which are their places in a ``case_id``; ``any_size``: whether they are
    made of the model that `Catalog.any_size` has."""

    prepared = True
    of_model = True
    numbers: tuple[int, ...] = (0,)
    any_size = False

    @property
    def needs(self) -> str:
        return FORWARD

    def asks(self, entry: Entry, catalog: Catalog) -> bool:
        made_of = "onnx" in catalog.forms if self.of_model else catalog.remakes
        return FORWARD in entry.checks and made_of

    def wanted(self, samples: int) -> int:
        return len(self.numbers)
