"""One file of JSON header and raw aligned arrays, memory-mapped on reading: how prepared cases are kept.

Nothing in it is executable (no pickle). Layout: 8 bytes magic, 8 bytes header length (little endian), the
header as UTF-8 JSON, then every array's bytes, each at a multiple of 64 from the header's end, or from its "start".

What is larger than memory is made in the file that becomes its pack: `spool_arrays`, `make_spooled_array`.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import hashlib
import io
import itertools
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks.model.dtypes import get_numpy_dtype, name_numpy_dtype

MAGIC = b"FARMPK1\n"
ALIGN = 64
#: Packs larger than this, in bytes, are mapped instead of read.
MAPPED = 1 << 20
#: Arrays up to this size, in bytes, are copied on writing: that is faster than a view of their bytes.
COPIED = 1 << 16
#: Arrays from this size on, in bytes, are made in the file of their pack, where there is one.
SPOOLED = 1 << 24
#: Bytes before the first of these: room for the header, of which the file holds no more than is written.
ROOM = 1 << 24


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
        self._start = header.get("start") or _align_pack_offset(16 + length)

    def release(self) -> None:
        """Let go of the memory of what has been read; it is read again when it is asked for."""
        _release_mapped_pages(self._bytes)

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


class ArraySpool:
    """Arrays that are made in the file that becomes their pack: the system writes them when it wants their memory, and
    nothing is copied at the end."""

    def __init__(self, folder: str) -> None:
        self._folder, self.path, self.end = folder, "", ROOM
        self._file: Any = None
        self._made: dict[int, tuple[np.ndarray, int, list[bytes]]] = {}

    def make(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """An array, all zeros. Raises OSError where the disk has no room for it."""
        if self._file is None:
            self.path = _name_file_aside(self._folder)
            self._file = _open_new_file(self.path, "x+b")
        at, size = self.end, int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.fileno(), at, size)  # a page that cannot be written would end the process
        made = np.memmap(self._file, dtype, "r+", at, tuple(shape)).view(np.ndarray)
        self.end = _align_pack_offset(at + size)
        self._made[id(made)] = made, at, []
        return made

    def find(self, array: np.ndarray) -> int | None:
        """Where an array begins in the file; None for one that is not in it."""
        return found[1] if (found := self._made.get(id(array))) else None

    def digest_row(self, array: np.ndarray, row: int) -> None:
        """Note what the next row of an array is."""
        self._made[id(array)][2].append(hashlib.sha256(_view_array_bytes(array[row])).digest())

    def digest(self, array: np.ndarray) -> bytes:
        """The digests of the rows of an array: its bytes are not read again."""
        return b"".join(self._made[id(array)][2])

    def release(self) -> None:
        """Let go of the memory of what has been written; it is read again when it is asked for."""
        for made, _, _ in self._made.values():
            assert isinstance(made.base, np.memmap)
            _release_mapped_pages(made.base._mmap)  # type: ignore[attr-defined]

    def write(self, at: int, content: bytes | memoryview) -> None:
        assert self._file is not None
        self._file.seek(at)
        _write_pack_content(self._file, content)

    def close(self) -> None:
        """Forget the file, and remove it where it has become no pack."""
        self._made.clear()
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)


_spool: contextvars.ContextVar[ArraySpool | None] = contextvars.ContextVar("spool", default=None)


@contextlib.contextmanager
def spool_arrays(path: str | os.PathLike[str]) -> Iterator[ArraySpool]:
    """In here `make_spooled_array` makes large arrays in a file beside a pack that is to be written."""
    spool = ArraySpool(os.path.dirname(os.fspath(path)))
    before = _spool.set(spool)
    try:
        yield spool
    finally:
        _spool.reset(before)
        spool.close()


def make_spooled_array(shape: Sequence[int], dtype: str) -> np.ndarray:
    """An array of zeros, in the file of its pack where it is large; `put_digested_row` puts the rows of an input."""
    spool, size = _spool.get(), int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return np.zeros(shape, dtype) if spool is None or size < SPOOLED else spool.make(shape, dtype)


def put_digested_row(array: np.ndarray, row: int, value: Any) -> None:
    """Put the next row of such an array; one in a file has its digest noted, so that nobody reads the file for it."""
    array[row] = value
    if (spool := _spool.get()) is not None and spool.find(array) is not None:
        spool.digest_row(array, row)


def release_spooled_arrays() -> None:
    """Let go of the memory of all such arrays; what they hold is read again when it is asked for."""
    if (spool := _spool.get()) is not None:
        spool.release()


def digest_array_bytes(array: np.ndarray) -> bytes | memoryview:
    """What of an array goes into a digest: its bytes, of one that was made row by row in a file the digests of its
    rows."""
    spool = _spool.get()
    if spool is not None and spool.find(array) is not None:
        return spool.digest(array)
    return array.tobytes() if array.nbytes <= COPIED else _view_array_bytes(array)


def _view_array_bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _release_mapped_pages(mapped: Any) -> None:
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def save_pack(
    path: str | os.PathLike[str], header: dict[str, Any], arrays: Sequence[np.ndarray], spool: ArraySpool | None = None
) -> Written:
    """Write a pack aside and rename it, so that a reader sees all of it or nothing. Raises OSError.

    spool: where some of the arrays were made. Returns what has been written, for `ArrayPack`.
    """
    around = spool if spool is not None and any(spool.find(array) is not None for array in arrays) else None
    index, chunks, at = [], [], around.end - ROOM if around else 0
    for array in arrays:
        name = name_numpy_dtype(array.dtype)
        if around is not None and (place := around.find(array)) is not None:
            index.append((name, list(array.shape), place - ROOM, array.nbytes))
            continue
        raw: Any
        if name == "str":
            raw = json.dumps([x.decode() if isinstance(x, bytes) else str(x) for x in array.ravel().tolist()]).encode()
        else:
            native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
            raw = native.tobytes() if native.nbytes <= COPIED else _view_array_bytes(native)
        index.append((name, list(array.shape), at, len(raw)))
        chunks.append((at, raw))
        at = _align_pack_offset(at + len(raw))
    target = os.fspath(path)
    if around is not None:
        return _write_pack_around(target, header, index, chunks, around)
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
    aside = _name_file_aside(os.path.dirname(target))
    file = _open_new_file(aside, "xb")
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


def _write_pack_around(
    target: str, header: dict[str, Any], index: list[Any], chunks: list[tuple[int, Any]], spool: ArraySpool
) -> Written:
    """Write a header before and small arrays behind what a spool holds, whose file it then is."""
    size = ROOM + max(offset + length for _, _, offset, length in index)
    made = {"header": header, "arrays": index, "start": ROOM, "size": size}
    encoded = _ENCODER.encode(made).encode()
    if 16 + len(encoded) > ROOM:
        raise OSError(errno.EFBIG, f"a header of {len(encoded)} bytes, of {ROOM - 16} at most", target)
    for offset, raw in chunks:
        spool.write(ROOM + offset, raw)
    spool.write(0, MAGIC + len(encoded).to_bytes(8, "little") + encoded)
    os.truncate(spool.path, size)
    os.replace(spool.path, target)
    return Written(b"", made)


def _name_file_aside(folder: str) -> str:
    return os.path.join(folder, f".aside-{os.getpid()}-{next(_asides)}-{_OURS}")


def _open_new_file(path: str, mode: Any) -> Any:
    try:
        return open(path, mode, buffering=0)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, mode, buffering=0)


def _write_pack_content(file: io.FileIO, content: bytes | memoryview) -> None:
    """All of ``content``: a disk that is nearly full takes a part, and says so when it is given the rest."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
