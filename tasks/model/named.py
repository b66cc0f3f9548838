"""A function of a catalog's by its name: what a process says of it that does not have it, and that is not to import it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from tasks.model.case import Group, OwnKernel


@dataclass(frozen=True)
class Found:
    """The function, what the user declares of it, and what puts back what it keeps (`Form`)."""

    call: Callable[..., Any]
    own: OwnKernel | None
    renew: Callable[[], None] | None


@dataclass(frozen=True)
class Named:
    """The function that a catalog has for a group. public: by its name alone (`Catalog.public`); state: the tensors of
    a module, alike: their digest, "" of what is none; written: those that a call writes to; writes: whether it does;
    own: whether it is a kernel of the user's."""

    group: Group
    public: bool = False
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    alike: str = ""
    written: tuple[str, ...] = ()
    writes: bool = False
    own: bool = False

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"the function of {self.group.op} is not in this process: another one runs it")
