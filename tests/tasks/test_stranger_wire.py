"""What a judge and a stranger say to each other arrives as it was said, and nothing else is read."""

from __future__ import annotations

import json
import os
import socket

import ml_dtypes
import numpy as np
import pytest

from tasks.model import Fallback, Misbehaviour, Program, Unsupported
from tasks.stranger import records
from tasks.stranger.wire import HEAD, LARGE, Closed, Connection, Garbled


@pytest.fixture
def ends() -> tuple[Connection, Connection]:
    a, b = socket.socketpair()
    return Connection(a), Connection(b)


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(6, dtype=np.float32).reshape(2, 3).T,
    np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, ::2, ::-1],
    np.array(3.5),
    np.empty((0, 4), np.complex64),
    np.arange(5).astype(ml_dtypes.bfloat16),
    np.array(["a", "ß\udc80"], dtype=object),
    None,
    np.array([True, False]),
]


def test_arrays_arrive_as_they_were(ends: tuple[Connection, Connection]) -> None:
    ends[0].send(7, "run", {"a": [1, None, "x"]}, ARRAYS)
    ends[0].send(8, "next")
    message, fds = ends[1].receive()
    assert (message.number, message.verb, message.body, fds) == (7, "run", {"a": [1, None, "x"]}, [])
    for sent, found in zip(ARRAYS, message.arrays, strict=True):
        if sent is None:
            assert found is None
            continue
        assert (found.dtype, found.shape) == (sent.dtype, sent.shape) and found.tolist() == sent.tolist()
        if sent.dtype != object and sent.size:
            assert found.ctypes.data % 64 == 0 and not found.flags.writeable
    assert ends[1].receive()[0].verb == "next"


def test_large_arrays_cross_in_memory_that_nobody_can_change(ends: tuple[Connection, Connection]) -> None:
    sent = np.random.default_rng(0).normal(size=(LARGE // 4, 3)).astype(np.float32)
    ends[0].send(1, "run", None, [sent, sent.T])
    (message, _) = ends[1].receive()
    assert all((a == b).all() for a, b in zip(message.arrays, (sent, sent.T)))
    assert not message.arrays[0].flags.writeable and not message.arrays[0].flags.owndata


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (b"not json", 0),
        (b"[]", 0),
        (b'["1","run",null,[]]', 0),
        (b'[1,"run",null,[["float32",[4],null,0,16]]]', 8),
        (b'[1,"run",null,[["float32",[1000000000000],[0],0,4]]]', 4),
        (b'[1,"run",null,[["float32",[-1],null,0,4]]]', 4),
        (b'[1,"run",null,[["object",[1],null,0,8]]]', 8),
        (b'[1,"run",null,[["float32",[1],null,-64,4]]]', 4),
        (b"[" * 100000, 0),
    ],
)
def test_what_is_no_message_is_refused(ends: tuple[Connection, Connection], text: bytes, size: int) -> None:
    own = ends[0]._socket
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    own.sendall(HEAD.pack(len(text), size) + text + b"\0" * size)
    with pytest.raises(Garbled):
        ends[1].receive()


def test_memory_that_can_still_be_written_to_is_refused(ends: tuple[Connection, Connection]) -> None:
    size = LARGE + 4
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    text = json.dumps([1, "run", None, [["float32", [size // 4], None, 0, size]]]).encode()
    socket.send_fds(ends[0]._socket, [HEAD.pack(len(text), size) + text], [fd])
    with pytest.raises(Garbled, match="still be written"):
        ends[1].receive()


def test_an_end_that_is_closed(ends: tuple[Connection, Connection]) -> None:
    ends[0].close()
    with pytest.raises(Closed):
        ends[1].receive()


def test_errors_keep_their_name_text_and_class() -> None:
    class Own(Unsupported):
        pass

    broken = Misbehaviour("mutation", "it wrote")
    broken.outputs = [np.arange(3)]
    for error in (ValueError("a"), KeyError("k"), Own("b"), Fallback("c", raises=True), broken, MemoryError("m")):
        arrays: list[object] = []
        found = records.read_error(json.loads(json.dumps(records.write_error(error, None, arrays))), arrays)
        assert (type(found).__name__, str(found)) == (type(error).__name__, str(error))
        assert isinstance(found, next(x for x in type(error).__mro__ if x is not Own))
        if isinstance(found, Misbehaviour):
            assert found.kind == "mutation" and found.outputs is not None and found.outputs[0].tolist() == [0, 1, 2]
        if isinstance(found, Fallback):
            assert found.raises


def test_a_program_says_nothing_of_what_is_judged() -> None:
    program = Program(run=lambda: [])
    records.update_program(program, {"flags": "a=b"})
    assert program.flags == "a=b"
    for name in ("columns", "run"):
        with pytest.raises(Garbled):
            records.update_program(program, {name: {}})
