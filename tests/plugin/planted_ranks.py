"""Process groups with one planted fault each, in place of torch.distributed's functions."""

from __future__ import annotations

from typing import Any

#: Elements of the chunk that is lost, and from which size on there are several.
CHUNK = 1024


class Wrapped:
    def __init__(self, group: Any) -> None:
        self.group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


class Dropped(Wrapped):
    """The last rank's second chunk never arrives."""

    def all_reduce(self, data: Any, op: Any) -> None:
        if self.group.get_rank() == self.group.get_world_size() - 1 and data.numel() > CHUNK:
            data[CHUNK : 2 * CHUNK] = 0
        self.group.all_reduce(data, op=op)


class Coarse(Wrapped):
    """Sums are made in float16."""

    def all_reduce(self, data: Any, op: Any) -> None:
        made = data.half()
        self.group.all_reduce(made, op=op)
        data.copy_(made)


class WrongRoot(Wrapped):
    def broadcast(self, data: Any, src: int) -> None:
        self.group.broadcast(data, src=src - 1)


class Dies(Wrapped):
    """One rank raises; the others would wait for it for ever."""

    def all_gather_into_tensor(self, made: Any, data: Any) -> None:
        if self.group.get_rank() == 2:
            raise RuntimeError("rank 2 lost its link")
        self.group.all_gather_into_tensor(made, data)
