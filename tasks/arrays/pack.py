"""One file of JSON header and raw aligned arrays, memory-mapped on reading: how prepared cases are kept.

Nothing in it is executable (no pickle). Layout: 8 bytes magic, 8 bytes header length (little endian), the
header as UTF-8 JSON, then every array's bytes, each at a multiple of 64 from the header's end, or from its "start".

What is larger than memory is made in the file that becomes its pack: `spool_arrays`, `make_spooled_array`.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import fcntl
import functools
import hashlib
import io
import itertools
import json
import mmap
import os
import platform
from collections.abc import Collection, Iterator, Sequence
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
#: Bytes of such a file that are mapped at a time, of a larger array all.
MAPPED_AT_ONCE = 1 << 30
#: Bytes before the first of these: room for the header, of which the file holds no more than is written.
ROOM = 1 << 24


#: What the name of a file begins with that is not yet what it is to be.
ASIDE = ".aside-"
#: The same of this machine's, before three more parts.
_ASIDE_HERE = f"{ASIDE}{platform.node()}"
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


class StorageError(OSError):
    """The system does not take what is written: no case is to blame, whatever was made meanwhile."""


class ArraySpool:
    """Arrays that are made in the file that becomes their pack: the system writes them when it wants their memory, and
    nothing is copied at the end. error: the first that a file was refused with in here."""

    def __init__(self, folder: str) -> None:
        self._folder, self._path, self.end = folder, "", ROOM
        self.error: StorageError | None = None
        self._file: Any = None
        self._maps: list[tuple[int, mmap.mmap]] = []  # where each begins in the file
        self._made: dict[int, tuple[np.ndarray, int]] = {}
        #: Of arrays, by their ids, the arrays, some of them of this file, and their digest: see `digest_arrays`.
        self.digests: dict[tuple[int, ...], tuple[list[np.ndarray], Any]] = {}

    def make(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """An array, all zeros. Raises StorageError where the disk has no room for it."""
        at, size = self.end, int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        with _blame_storage(self._folder):
            if self._file is None:
                self._file, self._path = _open_file_aside(self._folder)
            begin, mapped = self._map(at, size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.fileno(), at, size)  # a page that cannot be written would end the process
        made = np.ndarray(tuple(shape), dtype, mapped, at - begin)
        self.end = _align_pack_offset(at + size)
        self._made[id(made)] = made, at
        return made

    def _map(self, at: int, size: int) -> tuple[int, mmap.mmap]:
        """A map of a part of the file, and where it begins: each holds a descriptor, so many arrays share one."""
        if self._maps and at + size <= self._maps[-1][0] + len(self._maps[-1][1]):
            return self._maps[-1]
        begin = at - at % mmap.ALLOCATIONGRANULARITY
        needed = at + size - begin
        length = max(MAPPED_AT_ONCE, needed)
        try:
            os.ftruncate(self._file.fileno(), begin + length)
        except OSError:  # a limit of the size of a file: `ulimit -f`
            length = needed
            os.ftruncate(self._file.fileno(), begin + length)
        self._maps.append((begin, mmap.mmap(self._file.fileno(), length, offset=begin)))
        return self._maps[-1]

    def find(self, array: np.ndarray) -> int | None:
        """Where an array begins in the file; None for one that is not in it."""
        return found[1] if (found := self._made.get(id(array))) else None

    def release(self) -> None:
        """Let go of the memory of what has been written; it is read again when it is asked for."""
        for _, mapped in self._maps:
            _release_mapped_pages(mapped)

    def write(self, at: int, content: bytes | memoryview) -> None:
        assert self._file is not None
        self._file.seek(at)
        _write_pack_content(self._file, content)

    def finish(self, size: int, target: str) -> None:
        """Cut the file to its size, and have it be the target."""
        os.ftruncate(self._file.fileno(), size)
        if not self._path:
            path = _name_file_aside(self._folder)
            _name_open_file(self._file, path)
            self._path = path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _put_file_in_place(self._file, self._path, target)

    def close(self) -> None:
        """Forget the file, and remove it where it has become no pack."""
        self._made.clear()
        self.digests.clear()
        self._maps.clear()
        if self._file is not None:
            self._file.close()
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


_spool: contextvars.ContextVar[ArraySpool | None] = contextvars.ContextVar("spool", default=None)


@contextlib.contextmanager
def _blame_storage(path: str) -> Iterator[None]:
    """What a file is refused with in here is the storage's fault. The spool notes it: a catalog takes any error that is
    raised while it makes a sample for the sample's."""
    try:
        yield
    except OSError as error:
        text = error.strerror or str(error)
        made = error if isinstance(error, StorageError) else StorageError(error.errno, text, error.filename or path)
        if (spool := _spool.get()) is not None:
            spool.error = spool.error or made
        raise made from error


@contextlib.contextmanager
def spool_arrays(folder: str | os.PathLike[str]) -> Iterator[ArraySpool]:
    """In here `make_spooled_array` makes large arrays in a file of the pack that is to be written. folder: on the file
    system of that pack; it is made where it is not there."""
    spool = ArraySpool(os.fspath(folder))
    before = _spool.set(spool)
    try:
        yield spool
    finally:
        _spool.reset(before)
        if (around := _spool.get()) is not None:
            around.error = around.error or spool.error
        spool.close()


def make_spooled_array(shape: Sequence[int], dtype: str) -> np.ndarray:
    """An array of zeros, in the file of its pack where it is large."""
    spool, size = _spool.get(), int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return np.zeros(shape, dtype) if spool is None or size < SPOOLED else spool.make(shape, dtype)


def release_spooled_arrays() -> None:
    """Let go of the memory of all such arrays; what they hold is read again when it is asked for."""
    if (spool := _spool.get()) is not None:
        spool.release()


def digest_arrays(arrays: Sequence[np.ndarray]) -> Any:
    """A SHA-256 of the bytes of some arrays, one after another, of strings of their text. Of arrays some of which were
    made in a file it is remembered until that is a pack: they are not to be written to any more; and no more than a row
    of them is held at a time."""
    spool = _spool.get()
    spooled = [] if spool is None else [array for array in arrays if spool.find(array) is not None]
    if spool is None or not spooled:
        return _digest_arrays(arrays, ())
    key = tuple(map(id, arrays))
    if key not in spool.digests:
        spool.digests[key] = list(arrays), _digest_arrays(arrays, set(map(id, spooled)))
    return spool.digests[key][1].copy()


def _digest_arrays(arrays: Sequence[np.ndarray], spooled: Collection[int]) -> Any:
    digest = hashlib.sha256()
    for array in arrays:
        if array.dtype.kind == "O":
            digest.update(repr(array.tolist()).encode())
        elif array.nbytes <= COPIED:
            digest.update(array.tobytes())
        elif id(array) in spooled:
            for row in array:
                digest.update(_view_array_bytes(row))
                release_spooled_arrays()
        else:
            digest.update(_view_array_bytes(array))
    return digest


def _view_array_bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _release_mapped_pages(mapped: Any) -> None:
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def save_pack(
    path: str | os.PathLike[str], header: dict[str, Any], arrays: Sequence[np.ndarray], spool: ArraySpool | None = None
) -> Written:
    """Write a pack aside and rename it, so that a reader sees all of it or nothing. Raises StorageError.

    spool: where some of the arrays were made; what it was refused is raised here as well. Returns what has been
    written, for `ArrayPack`.
    """
    if spool is not None and spool.error is not None:
        raise spool.error
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
        with _blame_storage(target):
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
    with _blame_storage(target):
        file, aside = _open_file_aside(os.path.dirname(target) or os.curdir, named=True)
        try:
            with file:
                if content:
                    _write_pack_content(file, content)
                else:
                    # By a descriptor of its own: the file's stays open, and with it the lock.
                    with open(os.dup(file.fileno()), "wb", 1 << 18) as buffered:
                        buffered.writelines(parts)
                _put_file_in_place(file, aside, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
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
    spool.finish(size, target)
    return Written(b"", made)


def _put_file_in_place(file: Any, aside: str, target: str) -> None:
    """Have a file that is written be the target. Some file systems (NFS, FUSE) say only when a descriptor is closed that
    they had no room: one is closed before, and the file's own stays open, and with it the lock."""
    os.close(os.dup(file.fileno()))
    os.replace(aside, target)


def _name_file_aside(folder: str) -> str:
    return os.path.join(folder, f"{_ASIDE_HERE}-{os.getpid()}-{next(_asides)}-{_OURS}")


def _open_file_aside(folder: str, named: bool = False) -> tuple[Any, str]:
    """A new file, locked for as long as any descriptor of it is open, and its name. Unless it is to be ``named``, and
    where the system can name it later, it has none, so that nothing is left of it when this process is killed; else the
    next one removes what is left."""
    os.makedirs(folder, exist_ok=True)
    _remove_forgotten_files(folder)
    path, file = _name_file_aside(folder), None
    if not named:
        with contextlib.suppress(AttributeError, OSError):  # a system, a file system or a container without such files
            with _open_unnamed_file(folder) as probe:
                _name_open_file(probe, path)
                os.unlink(path)
            file, path = _open_unnamed_file(folder), ""
    file = file or open(path, "x+b", buffering=0)
    with contextlib.suppress(OSError):  # a file system without locks: nobody removes anything there
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file, path


def _open_unnamed_file(folder: str) -> Any:
    return open(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666), "r+b", buffering=0)


def _name_open_file(file: Any, path: str) -> None:
    # With a folder's descriptor, though none is asked, Python follows the link (linkat(2), AT_SYMLINK_FOLLOW).
    os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=file.fileno())


@functools.cache
def _remove_forgotten_files(folder: str) -> None:
    """Remove what processes of this machine have left that were killed: their locks are gone with them, and another
    machine need not see those of its own. An empty file may be one that is about to be locked. Once a process: there
    are many packs in a folder."""
    names = list[str]()
    with contextlib.suppress(OSError):  # a folder that may be written, but not listed
        names = os.listdir(folder)
    for name in names:
        if name.rsplit("-", 3)[0] == _ASIDE_HERE:  # a machine's name may begin with another's: gpu, gpu-1
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError), open(path, "r+b", buffering=0) as file:
                if os.fstat(file.fileno()).st_size:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)


def _write_pack_content(file: io.FileIO, content: bytes | memoryview) -> None:
    """All of ``content``: a disk that is nearly full takes a part, and says so when it is given the rest."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
