"""What processes say to each other: frozen dataclasses, and the one pair that makes lines of them and back."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.model.row import Row


@dataclass(frozen=True)
class Done:
    """A case of a batch has its row; number: which case, in the order of the batch."""

    number: int
    row: Row
