"""What a judge and a stranger say to each other: a verb, a JSON value, and arrays as plain bytes. Nothing is ever unpickled.

A message is a fixed head, the JSON text of [verb, body, array headers], and the arrays' bytes; text and arrays each
end, and each array begins, at a multiple of `ALIGN`. Bytes up to `LARGE` stand behind the text. The system copies them
into memory of the reader's own, which nobody writes to again and which the other side has no part in: what is checked
is what is used. More lie in a memory file that is sealed before it is sent: whoever made it cannot write to it any
more, so that the reader need not copy it either. There is no memory that both sides may write to.

What differs from case to case stands in the head and in the arrays, so that the texts of a kernel's cases are the same.
Each side remembers those of late: it writes none twice, and reads none twice. A text is only ever taken for another one
of exactly the same bytes.
"""

from __future__ import annotations

import fcntl
import json
import marshal
import math
import mmap
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tasks.model.dtypes import TABLE, get_numpy_dtype, name_numpy_dtype

#: Number of the request; of what it is about, and of what is needed no more (0: of nothing); bytes of arrays, bytes of
#: text; descriptors.
HEAD = struct.Struct("<QQQQII")
#: Bytes of arrays that travel within the message.
LARGE = 1 << 18
#: Most bytes of text, and of arrays, that are read.
MOST_TEXT, MOST_BYTES = 1 << 28, 1 << 40
ALIGN = 64
#: What makes the content of a memory file final.
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
#: Bytes that a reader has room for, and that it reads at a time at least.
_ROOM, _READ = 1 << 20, 1 << 16
#: Texts that are remembered, and bytes of the longest.
_REMEMBERED, _LONGEST = 64, 1 << 14
#: Room for the descriptors that come with a message.
_ANCILLARY = socket.CMSG_SPACE(4 * 4)
_NOTHING = bytes(ALIGN)

_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_loads = json.JSONDecoder().decode

T = TypeVar("T")


class Closed(Exception):
    """The other side has closed its end, or is gone."""


class Garbled(Exception):
    """The other side said what nobody says who keeps to the protocol."""


class Text:
    """What a message says beside its numbers and bytes; messages with the same text share it, and change nothing of it.

    headers: (dtype, shape, strides or None, offset, bytes) of each array, None of one that is None; the dtype None of
    strings."""

    __slots__ = ("_read", "body", "headers", "verb")

    def __init__(self, verb: str, body: Any, headers: Sequence[Any]) -> None:
        self.verb, self.body, self.headers = verb, body, headers
        self._read: dict[Any, Any] = {}

    def read(self, how: Callable[[Any], T]) -> T:
        """What a function makes of the body, which is asked once for each text. Raises what it raises."""
        if how not in self._read:
            self._read[how] = how(self.body)
        return self._read[how]  # type: ignore[no-any-return]


class StrangerMessage(NamedTuple):
    """number: of the request, or of the request that is answered; of: of what it is about; dropped: of what is needed
    no more; None in place of an array is None."""

    number: int
    of: int
    dropped: int
    text: Text
    arrays: list[Any]

    @property
    def verb(self) -> str:
        return self.text.verb

    @property
    def body(self) -> Any:
        return self.text.body


class StrangerConnection:
    """One end of a connection. Not thread-safe: a thread that asks has one of its own."""

    def __init__(self, own: socket.socket) -> None:
        self._socket, self._fds = own, list[int]()
        self._room_to_send = own.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 4
        self._can_send = select.poll()
        self._can_send.register(own, select.POLLOUT)
        #: What has come and is not read yet lies in the room from begin to end; messages begin at multiples of `ALIGN`.
        self._room, self._begin, self._end = memoryview(b""), 0, 0
        self._written: dict[bytes, bytes] = {}
        self._known: dict[bytes, Text] = {}

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self._socket.close()

    # --- saying ---

    def send(
        self,
        number: int,
        verb: str,
        body: Any = None,
        arrays: Sequence[Any] = (),
        fds: Sequence[int] = (),
        of: int = 0,
        dropped: int = 0,
        waits: bool = True,
    ) -> bool:
        """Send a message, and say so; fds: descriptors that go with it, of a message without large arrays. Raises
        Closed.

        waits: whether it may wait for the other side. If not, only what surely finds room is sent: the system says that
        it can be written to as long as three quarters of its room are free (poll(2))."""
        if not waits and not self._can_send.poll(0):
            return False
        headers, parts, size = _lay_out_message_arrays(arrays)
        text = self._write(verb, body, headers)
        large = size > LARGE
        if not waits and HEAD.size + len(text) + size > self._room_to_send:
            return False
        head = HEAD.pack(number, of, dropped, size, len(text), 1 if large else len(fds)) + text
        try:
            if large:
                fd = _make_sealed_memory(parts, size)
                try:
                    self._send_all([head], len(head), [fd])
                finally:
                    os.close(fd)
            else:
                self._send_all([head, *_fill_message_gaps(parts)], len(head) + size + -size % ALIGN, fds)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None
        return True

    def _write(self, verb: str, body: Any, headers: list[Any]) -> bytes:
        """The text, as long as is to stand behind a head."""
        said = verb, body, headers
        try:
            key = marshal.dumps(said, 2)  # tells 1, 1.0 and True apart, which are equal; it is never read
        except ValueError:  # of a class of its own, which JSON may know
            key = b""
        text = self._written.get(key) if key else None
        if text is None:
            text = _dumps(said).encode(errors="surrogatepass")
            text += b" " * (-(HEAD.size + len(text)) % ALIGN)
            if key:
                _remember_text(self._written, key, text, len(text))
        return text

    def _send_all(self, parts: list[Any], whole: int, fds: Sequence[int]) -> None:
        """whole: bytes of all parts."""
        if fds:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))
            sent = self._socket.sendmsg(parts, [rights])
        else:
            sent = self._socket.sendmsg(parts)
        if sent < whole:
            self._socket.sendall(b"".join(parts)[sent:])

    # --- hearing ---

    def receive(self) -> tuple[StrangerMessage, list[int]]:
        """The next message, and the descriptors that came with it. Raises Closed, Garbled."""
        if self._end - self._begin < HEAD.size:
            self._read_to(HEAD.size)
        number, of, dropped, size, length, count = HEAD.unpack_from(self._room, self._begin)
        if length > MOST_TEXT or size > MOST_BYTES or (HEAD.size + length) % ALIGN:
            raise Garbled(f"a message of {length} and {size} bytes")
        inside = HEAD.size + length
        whole = inside + (size + -size % ALIGN if size <= LARGE else 0)
        if self._end - self._begin < whole:
            self._read_to(whole)
        begin, room, fds = self._begin, self._room, list[int]()
        self._begin += whole
        if count:  # others may have come already, of a message that is still to be read
            fds, self._fds = self._fds[:count], self._fds[count:]
            if len(fds) < count:
                raise Garbled("descriptors that did not come")
        try:
            text = self._recall(bytes(room[begin + HEAD.size : begin + inside]))
            if size > LARGE:
                if not fds:
                    raise Garbled("large arrays without their memory")
                memory: Any = _open_sealed_memory(fds.pop(0), size)
            else:
                memory = room[begin + inside : begin + inside + size].toreadonly()
            arrays = [None if x is None else _read_message_array(x, memory) for x in text.headers]
            return StrangerMessage(number, of, dropped, text, arrays), fds
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise Garbled(f"a message that cannot be read: {error}") from None

    def _recall(self, raw: bytes) -> Text:
        """A text by its bytes. Raises Garbled, and what it raises to read what is none."""
        text = self._known.get(raw)
        if text is None:
            verb, body, headers = _loads(raw.decode(errors="surrogatepass"))
            if type(verb) is not str or type(headers) is not list:
                raise Garbled("a message without a verb")
            text = Text(verb, body, [_read_array_header(x) for x in headers])
            _remember_text(self._known, raw, text, len(raw))
        return text

    def _read_to(self, whole: int) -> None:
        """Read until the message in hand has come, of which ``whole`` bytes are known of."""
        if len(self._room) - self._begin < whole:
            have = self._room[self._begin : self._end]
            self._room = _make_aligned_memory(max(whole + _READ, _ROOM))
            self._room[: len(have)] = have
            self._begin, self._end = 0, len(have)
        while self._end - self._begin < whole:
            try:
                read, ancillary, _, _ = self._socket.recvmsg_into([self._room[self._end :]], _ANCILLARY)
            except OSError:
                raise Closed from None
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    self._fds += struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
            if len(self._fds) > 8:
                raise Garbled("descriptors that nobody asked for")
            if not read:
                raise Closed
            self._end += read


def _remember_text(texts: dict[bytes, Any], key: bytes, found: Any, length: int) -> None:
    if length <= _LONGEST:
        if len(texts) >= _REMEMBERED:
            texts.clear()
        texts[key] = found


def _make_aligned_memory(size: int) -> memoryview:
    """Memory that begins at a multiple of `ALIGN`."""
    room = np.empty(size + ALIGN, np.uint8)
    start = -room.__array_interface__["data"][0] % ALIGN
    return room[start : start + size].data


def _lay_out_message_arrays(arrays: Sequence[Any]) -> tuple[list[Any], list[tuple[int, Any]], int]:
    """(headers, (offset, bytes) of each, bytes in all). A header is (dtype, shape, strides or None, offset, bytes);
    None of None."""
    headers: list[Any] = []
    parts: list[tuple[int, Any]] = []
    at = end = 0
    for array in arrays:
        if array is None:
            headers.append(None)
            continue
        name, strides = name_numpy_dtype(array.dtype), None
        if name == "str":
            raw: Any = _dumps([str(x) for x in array.ravel().tolist()]).encode(errors="surrogatepass")
        else:
            if not array.flags.c_contiguous:
                if not array.flags.f_contiguous:
                    array = np.array(array, order="K", copy=True)  # as it lies, without gaps
                strides = None if array.flags.c_contiguous else array.strides
            raw = array.ravel(order="K").view(np.uint8) if array.size else b""
        size = len(raw)
        headers.append((name, array.shape, strides, at, size))
        parts.append((at, raw))
        end = at + size
        at = end + -end % ALIGN
    return headers, parts, end


def _fill_message_gaps(parts: list[tuple[int, Any]]) -> list[Any]:
    """The bytes of arrays, each up to where the next one begins."""
    found: list[Any] = []
    for _, raw in parts:
        if size := len(raw):
            found.append(raw)
            if gap := -size % ALIGN:
                found.append(_NOTHING[:gap])
    return found


def _make_sealed_memory(parts: list[tuple[int, Any]], size: int) -> int:
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


def _open_sealed_memory(fd: int, size: int) -> Any:
    """The content of a memory file; arrays over it keep it. Raises Garbled where it could still be changed."""
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS or os.fstat(fd).st_size != size:
            raise Garbled("arrays in memory that can still be written to")
        return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError as error:
        raise Garbled(f"arrays in what is no memory: {error}") from None
    finally:
        os.close(fd)


def _read_array_header(header: Any) -> Any:
    """An array's header, checked as far as it can be without the bytes. Raises ValueError, TypeError, KeyError for what
    is none."""
    if header is None:
        return None
    name, shape, strides, offset, size = header
    for number in (*shape, offset, size, *(strides or ())):
        if type(number) is not int or number < 0:
            raise ValueError("a size that is no number")
    if name == "str":
        return None, shape, None, offset, size
    dtype = get_numpy_dtype(name)
    if name not in TABLE and dtype.kind not in "biufc":
        raise ValueError(f"an array of {name}")
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{size} bytes for an array of {name}{shape}")
    return dtype, shape, strides, offset, size


def _read_message_array(header: Any, memory: Any) -> Any:
    """An array over some memory. Raises ValueError, TypeError where that is not what the header says."""
    dtype, shape, strides, offset, size = header
    if dtype is None:
        said = _loads(bytes(memory[offset : offset + size]).decode(errors="surrogatepass"))
        if any(type(x) is not str for x in said):
            raise ValueError("strings that are none")
        return np.array(said, dtype=object).reshape(shape)
    return np.ndarray(shape, dtype, memory, offset, strides) if size else np.empty(shape, dtype)
