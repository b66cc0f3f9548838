"""What a standalone script is made of: the case, the embedded arrays, the templates."""

from __future__ import annotations

import base64
import functools
import json
import textwrap
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from farm.fleet.envs import Environment
from tasks.backends.base import Backend
from tasks.judge.policy import Policy
from tasks.model import Form, Group, Leaf, OpClass
from tasks.model.dtypes import NATIVE, dtype_name

#: Columns of the embedded data.
WIDTH = 100
#: In place of an array's number of bytes: the script makes it.
EVERY = -1


@dataclass(frozen=True)
class Source:
    """What a script is made of. title, found: words for its first lines; actual: outputs of a run, if there was one;
    promised: the inputs, where what the row is about is what mathematics promises of the op on all of them; state: the tensors
    that a module of the user's holds, by name."""

    title: str
    found: str
    backend: Backend
    runtime: str
    form: Form
    expected: list[Leaf]
    group: Group
    policy: Policy
    op_class: OpClass
    oracle: str
    precision: str
    version: str
    device: str
    actual: list[np.ndarray] | None = None
    environment: Environment | None = None
    promised: tuple[np.ndarray, ...] = ()
    state: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Data:
    """The arrays of a script: one run of bytes and where each array lies in it; of every bit pattern of a dtype in order, `EVERY` for its size."""

    chunks: list[bytes] = field(default_factory=list)
    index: list[tuple[str, tuple[int, ...], int, int]] = field(default_factory=list)
    size: int = 0

    def add(self, array: np.ndarray) -> int:
        """Number of the array in the script. Its dtype must be numpy's own, or text."""
        name = dtype_name(array.dtype)
        if name == "str":
            raw = json.dumps([x.decode() if isinstance(x, bytes) else str(x) for x in array.ravel().tolist()]).encode()
        else:
            raw = np.ascontiguousarray(array).tobytes()
        if (
            name != "str"
            and array.itemsize <= 2
            and raw == np.arange(1 << 8 * array.itemsize, dtype=f"u{array.itemsize}").tobytes()
        ):
            self.index.append((name, tuple(int(n) for n in array.shape), 0, EVERY))
            return len(self.index) - 1
        self.index.append((name, tuple(int(n) for n in array.shape), self.size, len(raw)))
        self.chunks.append(raw)
        self.size += len(raw)
        return len(self.index) - 1

    def text(self) -> str:
        lines = textwrap.wrap(base64.b64encode(zlib.compress(b"".join(self.chunks), 9)).decode(), WIDTH)
        return "\n".join(lines)


def whole(array: np.ndarray) -> np.ndarray:
    """Low-bit integers as int8 or uint8: numpy alone cannot hold them."""
    if array.dtype.kind in "OUS" or array.dtype.name in NATIVE:
        return array
    return array.astype(np.uint8 if array.dtype.name.startswith("u") else np.int8)


@functools.cache
def templates() -> jinja2.Environment:
    """The texts of scripts. A value that is filled in is never looked into: it comes from a lake, and is made by repr()."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@dataclass(frozen=True)
class Runtime:
    """How a script calls a runtime: its template and what that needs; module: what is imported, under which alias."""

    template: str
    values: dict[str, Any]
    module: str
    alias: str = ""
