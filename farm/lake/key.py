"""The key of a row: which case of which run on which backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Key:
    """Its text is run_id:case_id:backend, of which the case's id alone may have colons."""

    run_id: str
    case_id: str
    backend: str

    def __str__(self) -> str:
        return f"{self.run_id}:{self.case_id}:{self.backend}"

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> Key:
        """That of a row of the lake, or of what is kept of one."""
        return cls(row["run_id"], row["case_id"], row["backend"])

    @classmethod
    def parse(cls, text: str) -> Key | None:
        """The key in a text; None for what is none."""
        run_id, _, rest = text.partition(":")
        case_id, _, backend = rest.rpartition(":")
        return cls(run_id, case_id, backend) if run_id and case_id and backend else None
