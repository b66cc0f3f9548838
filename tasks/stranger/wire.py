"""What a judge and a stranger say to each other: a verb, a JSON value, and arrays as plain bytes. Nothing is ever unpickled.

A message is a fixed head, the JSON text of [number, verb, body, array headers], and the arrays' bytes, each at a multiple of 64. Bytes
up to `LARGE` stand behind the text, and are thereby a copy that the other side cannot change; more lie in a memory file that is sealed before it is
sent: whoever made it cannot write to it any more, so that the reader need not copy it either.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks.model.dtypes import TABLE, dtype_name, np_dtype

#: Bytes of text, bytes of arrays.
HEAD = struct.Struct("<QQ")
#: Bytes of arrays that travel within the message.
LARGE = 1 << 18
#: Most bytes of text, and of arrays, that are read.
MOST_TEXT, MOST_BYTES = 1 << 28, 1 << 40
ALIGN = 64
#: What makes the content of a memory file final.
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
#: Bytes that are read at a time at least.
_READ = 1 << 16

_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_loads = json.JSONDecoder().decode


class Closed(Exception):
    """The other side has closed its end, or is gone."""


class Garbled(Exception):
    """The other side said what nobody says who keeps to the protocol."""


class Message(NamedTuple):
    """number: of the request, or of the request that is answered; None in place of an array is None."""

    number: int
    verb: str
    body: Any
    arrays: list[Any]


class Connection:
    """One end of a connection. Not thread-safe: a thread that asks has one of its own."""

    def __init__(self, own: socket.socket) -> None:
        self._socket, self._have, self._fds = own, bytearray(), list[int]()

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self._socket.close()

    def send(
        self, number: int, verb: str, body: Any = None, arrays: Sequence[Any] = (), fds: Sequence[int] = ()
    ) -> None:
        """Send a message; fds: descriptors that go with it, of a message without large arrays. Raises Closed."""
        headers, parts, size = _lay_out(arrays)
        text = _dumps([number, verb, body, headers]).encode(errors="surrogatepass")
        head = HEAD.pack(len(text), size)
        try:
            if size > LARGE:
                fd = _seal(parts, size)
                try:
                    self._send_all([head, text], [fd])
                finally:
                    os.close(fd)
            else:
                self._send_all([head, text, *_fill_gaps(parts, size)], fds)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def _send_all(self, parts: list[Any], fds: Sequence[int]) -> None:
        sent = self._socket.sendmsg(
            parts, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        )
        if sent < sum(map(len, parts)):
            self._socket.sendall(b"".join(parts)[sent:])

    def receive(self) -> tuple[Message, list[int]]:
        """The next message, and the descriptors that came with it. Raises Closed, Garbled."""
        while len(self._have) < HEAD.size:
            self._read(_READ)
        length, size = HEAD.unpack_from(self._have)
        if length > MOST_TEXT or size > MOST_BYTES:
            raise Garbled(f"a message of {length} and {size} bytes")
        inline = size if size <= LARGE else 0
        end = HEAD.size + length + inline
        while len(self._have) < end:
            self._read(max(end - len(self._have), _READ))
        text = bytes(self._have[HEAD.size : HEAD.size + length])
        block = self._have[HEAD.size + length : end]
        del self._have[:end]
        try:
            number, verb, body, headers = _loads(text.decode(errors="surrogatepass"))
            if type(number) is not int or type(verb) is not str or type(headers) is not list:
                raise Garbled("a message without a number or a verb")
            if size > LARGE:
                if not self._fds:
                    raise Garbled("large arrays without their memory")
                memory: Any = _open_sealed(self._fds.pop(0), size)
            else:
                memory = _align(block)
            fds, self._fds = self._fds, []
            return Message(number, verb, body, [_read_array(x, memory) for x in headers]), fds
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise Garbled(f"a message that cannot be read: {error}") from None

    def _read(self, size: int) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, size, 4)
        except (ConnectionResetError, OSError):
            raise Closed from None
        self._fds += fds
        if len(self._fds) > 8:
            raise Garbled("descriptors that nobody asked for")
        if not data:
            raise Closed
        self._have += data


def _lay_out(arrays: Sequence[Any]) -> tuple[list[Any], list[tuple[int, Any]], int]:
    """(headers, (offset, bytes) of each, bytes in all). A header is (dtype, shape, strides or None, offset, bytes); None of None."""
    headers: list[Any] = []
    parts: list[tuple[int, Any]] = []
    at = 0
    for array in arrays:
        if array is None:
            headers.append(None)
            continue
        name, strides = dtype_name(array.dtype), None
        if name == "str":
            raw: Any = _dumps([str(x) for x in array.ravel().tolist()]).encode(errors="surrogatepass")
        else:
            if not array.flags.c_contiguous:
                array = np.array(array, order="K", copy=True)  # as it lies, without gaps
                strides = None if array.flags.c_contiguous else list(array.strides)
            raw = array.ravel(order="K").view(np.uint8).data if array.size else b""
        headers.append((name, array.shape, strides, at, len(raw)))
        parts.append((at, raw))
        at = -(-(at + len(raw)) // ALIGN) * ALIGN
    return headers, parts, (headers and parts and parts[-1][0] + len(parts[-1][1])) or 0


def _fill_gaps(parts: list[tuple[int, Any]], size: int) -> list[Any]:
    found: list[Any] = []
    at = 0
    for offset, raw in parts:
        if offset > at:
            found.append(b"\0" * (offset - at))
        if len(raw):
            found.append(raw)
        at = offset + len(raw)
    return found


def _seal(parts: list[tuple[int, Any]], size: int) -> int:
    """A memory file of some bytes, to which nobody can write."""
    fd = os.memfd_create("farm-arrays", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        for offset, raw in parts:
            rest = memoryview(raw)
            while len(rest):
                done = os.pwrite(fd, rest, offset)
                rest, offset = rest[done:], offset + done
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_sealed(fd: int, size: int) -> Any:
    """The content of a memory file; arrays over it keep it. Raises Garbled where it could still be changed."""
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS or os.fstat(fd).st_size != size:
            raise Garbled("arrays in memory that can still be written to")
        return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError as error:
        raise Garbled(f"arrays in what is no memory: {error}") from None
    finally:
        os.close(fd)


def _align(block: bytearray) -> Any:
    """The bytes in memory that begins at a multiple of `ALIGN`, not to be written to."""
    room = np.empty(len(block) + ALIGN, np.uint8)
    start = -room.ctypes.data % ALIGN
    found = room[start : start + len(block)]
    found[:] = np.frombuffer(block, np.uint8)
    found.flags.writeable = False
    return found.data


def _read_array(header: Any, memory: Any) -> Any:
    """An array over some memory. Raises ValueError, TypeError, KeyError for what is none."""
    if header is None:
        return None
    name, shape, strides, offset, size = header
    for number in (*shape, offset, size, *(strides or ())):
        if type(number) is not int or number < 0:
            raise ValueError("a size that is no number")
    if name == "str":
        said = _loads(bytes(memory[offset : offset + size]).decode(errors="surrogatepass"))
        if any(type(x) is not str for x in said):
            raise ValueError("strings that are none")
        return np.array(said, dtype=object).reshape(shape)
    dtype = np_dtype(name)
    if name not in TABLE and dtype.kind not in "biufc":
        raise ValueError(f"an array of {name}")
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{size} bytes for an array of {name}{shape}")
    return np.ndarray(shape, dtype, memory, offset, strides) if size else np.empty(shape, dtype)
