"""One file of JSON header and raw aligned arrays, memory-mapped on reading: how prepared cases are kept.

Nothing in it is executable (no pickle). Layout: 8 bytes magic, 8 bytes header length (little endian), the
header as UTF-8 JSON, then every array's bytes, each at a multiple of 64.
"""

from __future__ import annotations

import io
import itertools
import json
import mmap
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks.model.dtypes import get_numpy_dtype, name_numpy_dtype

MAGIC = b"FARMPK1\n"
ALIGN = 64
#: Packs larger than this, in bytes, are mapped instead of read.
MAPPED = 1 << 20
#: Arrays up to this size, in bytes, are copied on writing: that is faster than a view of their bytes.
COPIED = 1 << 16


_asides = itertools.count()
#: Tells the files of this process from those of another machine's that has the same number.
_OURS = os.urandom(4).hex()
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class PackError(Exception):
    """The file is not a pack, or is damaged; the text names it."""


class Written(NamedTuple):
    """What `save_pack` has written: the file's content (nothing of one so large that it is to be mapped), the JSON of
    its header."""

    content: bytes
    header: dict[str, Any]


class ArrayPack:
    """A pack read back: ``header`` (the JSON object) and ``array(i)`` (read-only views of the file)."""

    def __init__(self, path: str | os.PathLike[str], written: Written | None = None) -> None:
        """written: what `save_pack` has just put there. Raises PackError and, of the file, OSError."""
        self.path = os.fspath(path)
        self._bytes = (written and written.content) or _read_pack_content(self.path)
        size = len(self._bytes)
        if self._bytes[:8] != MAGIC:
            raise PackError(f"{path}: not a prepared case (wrong magic)")
        length = int.from_bytes(self._bytes[8:16], "little")
        try:
            header = written.header if written else json.loads(self._bytes[16 : 16 + length])
            self._index = header["arrays"]
            self.header: dict[str, Any] = header["header"]
            end = header["size"]
            if not isinstance(self.header, dict) or not isinstance(self._index, list):
                raise TypeError("no object of arrays")
        except (ValueError, KeyError, TypeError) as error:
            raise PackError(f"{path}: damaged header ({error})") from None
        if end != size:
            raise PackError(f"{path}: truncated ({size} bytes of {end})")
        self._start = _align_pack_offset(16 + length)

    def array(self, i: int) -> np.ndarray:
        """Array ``i``: a read-only view for numbers, an object array of str for strings. Raises PackError."""
        entry = self._index[i]
        try:
            dtype, shape, offset, nbytes = entry
            at = self._start + offset
            if dtype == "str":
                return np.array(json.loads(self._bytes[at : at + nbytes]), dtype=object).reshape(shape)
            array = np.ndarray(
                shape, get_numpy_dtype(dtype), self._bytes, at
            )  # not to be written to, as the bytes are not
        except (ValueError, TypeError) as error:
            raise PackError(f"{self.path}: array {i} is damaged ({error})") from None
        if array.nbytes != nbytes:
            raise PackError(f"{self.path}: array {i} is damaged ({nbytes} bytes for {array.nbytes})")
        return array


def _read_pack_content(path: str) -> bytes | mmap.mmap:
    """What a file holds: small packs are read whole, large ones mapped, so that all backends share their pages."""
    handle = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(handle).st_size
        if size < 16:
            raise PackError(f"{path}: truncated (only {size} bytes)")
        return mmap.mmap(handle, 0, access=mmap.ACCESS_READ) if size > MAPPED else os.read(handle, size)
    finally:
        os.close(handle)


def _align_pack_offset(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def save_pack(path: str | os.PathLike[str], header: dict[str, Any], arrays: Sequence[np.ndarray]) -> Written:
    """Write a pack aside and rename it, so that a reader sees all of it or nothing. Raises OSError.

    Returns what has been written, for `ArrayPack`.
    """
    index, chunks, at = [], [], 0
    for array in arrays:
        name = name_numpy_dtype(array.dtype)
        raw: Any
        if name == "str":
            raw = json.dumps([x.decode() if isinstance(x, bytes) else str(x) for x in array.ravel().tolist()]).encode()
        else:
            native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
            if native.nbytes <= COPIED:
                raw = native.tobytes()
            else:
                raw = np.ascontiguousarray(native).reshape(-1).view(np.uint8).data
        index.append((name, list(array.shape), at, len(raw)))
        chunks.append((at, raw))
        at = _align_pack_offset(at + len(raw))
    end = index[-1][2] + index[-1][3] if index else 0
    head = _ENCODER.encode({"header": header, "arrays": index})[:-1].encode()
    # The size is part of the header whose length it depends on: there is room for it, whatever it is.
    length = len(head) + 30
    start = _align_pack_offset(16 + length)
    encoded = (head + b',"size":%d}' % (start + end)).ljust(length)
    parts = [MAGIC, length.to_bytes(8, "little"), encoded, b"\0" * (start - 16 - length)]
    at = 0
    for offset, raw in chunks:
        parts += [b"\0" * (offset - at), raw]
        at = offset + len(raw)
    content = b"".join(parts) if start + at <= MAPPED else b""
    target = os.fspath(path)
    aside = os.path.join(os.path.dirname(target), f".aside-{os.getpid()}-{next(_asides)}-{_OURS}")
    try:
        file = open(aside, "xb", buffering=0)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        file = open(aside, "xb", buffering=0)
    try:
        with file:
            if content:
                _write_pack_content(file, content)
            else:
                with io.BufferedWriter(file, 1 << 18) as buffered:
                    buffered.writelines(parts)
        os.replace(aside, target)
    except BaseException:
        os.unlink(aside)
        raise
    return Written(content, {"header": header, "arrays": index, "size": start + end})


def _write_pack_content(file: io.FileIO, content: bytes) -> None:
    """All of ``content``: a disk that is nearly full takes a part, and says so when it is given the rest."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
