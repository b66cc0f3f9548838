"""Checks whose samples are made of the first sample of an op that is an ONNX model (`tasks.prepare.derived`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.checks.base import FORWARD, Check

if TYPE_CHECKING:
    from tasks.catalogs.base import Catalog, Entry


class Derived(Check):
    """Base of these checks; ``numbers``: of its samples, which are their places in a ``case_id``; ``any_size``: whether they are
    made of the model that `Catalog.any_size` has."""

    prepared = True
    numbers: tuple[int, ...] = (0,)
    any_size = False

    @property
    def needs(self) -> str:
        return FORWARD

    def asks(self, entry: Entry, catalog: Catalog) -> bool:
        return FORWARD in entry.checks and "onnx" in catalog.forms

    def wanted(self, samples: int) -> int:
        return len(self.numbers)
