"""What a search makes smaller: a case taken apart into arrays, integers and parts, and put together again."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tasks.hunt.dialogue import Runnable
from tasks.model import Group


class HuntCase(Runnable, Protocol):
    """A case that can be made smaller; never changed, only made again."""

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Its tensors by name: inputs, and what weights it holds."""

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> HuntCase:
        """The case with other arrays in the place of some."""

    @property
    def integers(self) -> dict[str, int]:
        """The whole numbers beside its tensors that may follow their sizes, by place."""

    def with_integers(self, integers: Mapping[str, int]) -> HuntCase:
        """The case with other numbers in some of those places."""

    def simpler(self) -> Iterator[tuple[str, HuntCase]]:
        """Cases with one attribute, argument, input or output less, and what that was."""

    @property
    def names(self) -> tuple[str, ...]:
        """What an error may call its parts."""

    @property
    def ops(self) -> tuple[str, ...]:
        """Its operations."""

    def key(self) -> Any:
        """Equal for equal cases."""


def count_searched_elements(case: HuntCase) -> int:
    """Numbers in its tensors."""
    return sum(x.size for x in case.arrays.values())


#: Ops that the name of a case of several nodes tells.
_TOLD = 3


def build_searched_group(catalog: str, ops: Sequence[str], dtype: str) -> Group:
    """The group of a case that is made of some ops."""
    each = list(dict.fromkeys(ops))
    more = [f"{len(each) - _TOLD} more"] if len(each) > _TOLD else []
    return Group(f"{catalog}:{'+'.join([*each[:_TOLD], *more])}", "", dtype, 1)


def digest_searched_case(tree: Any, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Equal for equal trees (JSON) over equal arrays."""
    found = hashlib.sha256(json.dumps(tree).encode())
    for name in sorted(arrays):
        found.update(repr((name, arrays[name].shape, arrays[name].dtype)).encode() + arrays[name].tobytes())
    return found.digest()


def list_case_integers(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, int]]:
    """(place, value) of the whole numbers of an encoded tree (`tasks.arrays.tree`), but for what names a tensor."""
    if type(node) is int:
        yield json.dumps(path), node
    elif isinstance(node, list):
        for k, x in enumerate(node):
            yield from list_case_integers(x, (*path, k))
    elif isinstance(node, dict) and node["$"] in ("tuple", "dict", "slice"):
        yield from list_case_integers(node["v"], (*path, "v"))


def put_case_integers(tree: Any, found: Mapping[str, int]) -> Any:
    """A copy of a tree with other numbers in some places of it."""
    made = copy.deepcopy(tree)
    for place, value in found.items():
        *path, last = json.loads(place)
        at: Any = made
        for step in path:
            at = at[step]
        at[last] = value
    return made
