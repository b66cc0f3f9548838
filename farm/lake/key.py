"""The key of a row: which case of which run on which backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RowKey:
    """Written as run_id:case_id:backend. Only the case id may contain colons."""

    run_id: str
    case_id: str
    backend: str

    def __str__(self) -> str:
        return f"{self.run_id}:{self.case_id}:{self.backend}"

    @property
    def names_no_run(self) -> bool:
        """Whether it is a case id and a backend: a case id begins with its check and a slash, which no run id has."""
        return "/" in self.run_id

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> RowKey:
        """The key of a row of the lake, or of a mapping with its key columns."""
        return cls(row["run_id"], row["case_id"], row["backend"])

    @classmethod
    def parse(cls, text: str) -> RowKey | None:
        """Parse the text of a key; None if it is not one."""
        run_id, _, rest = text.partition(":")
        case_id, _, backend = rest.rpartition(":")
        return cls(run_id, case_id, backend) if run_id and case_id and backend else None
