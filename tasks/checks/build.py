"""The build check: a program is made of a sample; nothing is run."""

from __future__ import annotations

from collections.abc import Collection

from tasks.checks.base import Check


class Build(Check):
    name = "build"
    runs = False

    @property
    def needs(self) -> str:
        return self.name

    def planned(self, backend: Collection[str]) -> bool:
        return self.name in backend
