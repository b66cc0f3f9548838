"""What a judge and a stranger say to each other arrives as it was said, and nothing else is read."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import threading
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tasks.arrays.varied import digest_outputs
from tasks.model import Chain, Fallback, Misbehaviour, Program, Unsupported
from tasks.stranger import records
from tasks.stranger.wire import ALIGN, HEAD, LARGE, Closed, Garbled, StrangerConnection, StrangerMessage


def test_a_large_array_is_copied_once_to_the_memory_that_is_handed_over(
    ends: tuple[StrangerConnection, StrangerConnection],
) -> None:
    sent = np.ones((64, LARGE), np.float32)
    tracemalloc.start()  # which NumPy tells of its arrays
    try:
        for array in (sent, sent.T):
            ends[0].send(1, "done", None, [array])
            (message, _) = ends[1].receive()
            assert message.arrays[0].shape == array.shape
            _, most = tracemalloc.get_traced_memory()
            copies = most / sent.nbytes
            tracemalloc.reset_peak()
            assert copies < 0.1, f"{copies:.1f} copies in this process's own memory"
    finally:
        tracemalloc.stop()


@pytest.fixture
def ends() -> tuple[StrangerConnection, StrangerConnection]:
    a, b = socket.socketpair()
    return StrangerConnection(a), StrangerConnection(b)


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


def test_arrays_arrive_as_they_were(ends: tuple[StrangerConnection, StrangerConnection]) -> None:
    ends[0].send(7, "run", {"a": [1, None, "x"]}, ARRAYS, of=3, dropped=2)
    ends[0].send(8, "next")
    message, fds = ends[1].receive()
    assert (message.number, message.verb, message.body, fds) == (7, "run", {"a": [1, None, "x"]}, [])
    assert (message.of, message.dropped) == (3, 2)
    for sent, found in zip(ARRAYS, message.arrays, strict=True):
        if sent is None:
            assert found is None
            continue
        assert (found.dtype, found.shape) == (sent.dtype, sent.shape) and found.tolist() == sent.tolist()
        if sent.dtype != object and sent.size:
            assert found.ctypes.data % 64 == 0 and not found.flags.writeable
    assert ends[1].receive()[0].verb == "next"


def test_large_arrays_cross_in_memory_that_nobody_can_change(
    ends: tuple[StrangerConnection, StrangerConnection],
) -> None:
    sent = np.random.default_rng(0).normal(size=(LARGE // 4, 3)).astype(np.float32)
    ends[0].send(1, "run", None, [sent, sent.T])
    (message, _) = ends[1].receive()
    assert all((a == b).all() for a, b in zip(message.arrays, (sent, sent.T)))
    assert not message.arrays[0].flags.writeable and not message.arrays[0].flags.owndata


def test_messages_follow_one_another_however_they_are_cut(ends: tuple[StrangerConnection, StrangerConnection]) -> None:
    sizes = [*range(0, 3000, 7), LARGE // 4, 1, LARGE // 4 - 9, 0] * 3
    sent = [np.full(n, n, np.int32) for n in sizes]

    def say() -> None:
        for number, array in enumerate(sent):
            ends[0].send(number, "run", None, [array, array[:1]])

    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    heard = [ends[1].receive()[0] for _ in sent]
    speaker.join()
    for number, (message, array) in enumerate(zip(heard, sent)):  # none lies where a later one was read
        assert message.number == number and (message.arrays[0] == array).all()


@pytest.mark.parametrize("words", [0, 30_000], ids=["short", "long_text"])
@pytest.mark.parametrize("size", [0, 1000, 16_512])
def test_what_there_is_room_for_is_sent_though_nobody_reads(size: int, words: int) -> None:
    """The other side may be waiting until it is read itself."""
    a, b = socket.socketpair()
    sender, reader = StrangerConnection(a), StrangerConnection(b)
    a.setblocking(False)  # a message that had to wait raises BlockingIOError, or is cut

    def send(number: int, *arrays: Any) -> bool:
        return sender.send(number, "call", {"name": "placed", "data": "x" * words}, arrays, waits=False)

    given = [np.zeros(size, np.uint8), None, np.array(["a"], object)]
    sent = next(n for n in range(5000) if not send(n + 1, *given))
    assert sent > 0
    assert [reader.receive()[0].number for _ in range(sent)] == list(range(1, sent + 1))
    for long in (np.zeros(1 << 20, np.uint8), np.zeros(100_000, np.uint8), np.array(["a" * 100_000], object)):
        assert not send(1, long), "it finds no room, however little else is there"
    assert not sender.send(1, "build", "x" * 300_000, waits=False)
    assert send(sent + 1, *given) and reader.receive()[0].number == sent + 1


def test_a_descriptor_of_any_number_is_asked_for_room() -> None:
    """select(2) takes none beyond 1,023."""
    a, b = socket.socketpair()
    with a, b:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
        try:
            high = socket.socket(fileno=fcntl.fcntl(a, fcntl.F_DUPFD, 1500))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with high:
            assert StrangerConnection(high).send(1, "call", waits=False)
        assert StrangerConnection(b).receive()[0].number == 1


def test_what_is_equal_and_not_the_same_is_said_anew(ends: tuple[StrangerConnection, StrangerConnection]) -> None:
    for body in (1, True, 1.0, 0.0, -0.0, [1], [True], {"a": 1, "b": 2}, {"b": 2, "a": 1}, "1", None, 1, True):
        ends[0].send(1, "run", body)
        (message, _) = ends[1].receive()
        assert repr(message.body) == repr(body)


def test_messages_of_one_text_share_it_and_not_their_bytes(ends: tuple[StrangerConnection, StrangerConnection]) -> None:
    def crosses(number: int, array: np.ndarray) -> StrangerMessage:
        ends[0].send(number, "run", {"a": 1}, [array])
        return ends[1].receive()[0]

    first, second = crosses(1, np.zeros(4)), crosses(2, np.ones(4))
    assert first.text is second.text and first.text.read(lambda body: body["a"]) == 1
    assert first.arrays[0].tolist() == [0] * 4 and second.arrays[0].tolist() == [1] * 4
    other = crosses(3, np.ones((2, 2)))
    assert other.text is not first.text and other.arrays[0].shape == (2, 2)


def write_raw(text: bytes, size: int, number: int = 1, fds: int = 0) -> bytes:
    """The head and the text of a message, with what fills the text up."""
    text += b" " * (-(HEAD.size + len(text)) % ALIGN)
    return HEAD.pack(number, 0, 0, size, len(text), fds) + text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (b"not json", 0),
        (b"[]", 0),
        (b"[1,null,[]]", 0),
        (b'["run",null,{}]', 0),
        (b'["run",null,[["float32",[4],null,0,16]]]', 8),
        (b'["run",null,[["float32",[1000000000000],[0],0,4]]]', 4),
        (b'["run",null,[["float32",[-1],null,0,4]]]', 4),
        (b'["run",null,[["object",[1],null,0,8]]]', 8),
        (b'["run",null,[["float32",[1],null,-64,4]]]', 4),
        (b'["run",null,[["float32",[1],null,64,4]]]', 4),
        (b'["run",null,[["str",[1],null,0,4]]]', 4),
        (b"[" * 100000, 0),
    ],
)
def test_what_is_no_message_is_refused(
    ends: tuple[StrangerConnection, StrangerConnection], text: bytes, size: int
) -> None:
    own = ends[0]._socket
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    for number in (1, 2):  # also where it is said again
        own.sendall(write_raw(text, size, number) + b"\0" * (size + -size % ALIGN))
        with pytest.raises(Garbled):
            ends[1].receive()


def test_a_text_of_a_length_that_none_has_is_refused(ends: tuple[StrangerConnection, StrangerConnection]) -> None:
    ends[0]._socket.sendall(HEAD.pack(1, 0, 0, 0, 16, 0) + b'["run",null,[]] ')
    with pytest.raises(Garbled):
        ends[1].receive()


def test_memory_that_can_still_be_written_to_is_refused(ends: tuple[StrangerConnection, StrangerConnection]) -> None:
    size = LARGE + 4
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    text = json.dumps(["run", None, [["float32", [size // 4], None, 0, size]]]).encode()
    socket.send_fds(ends[0]._socket, [write_raw(text, size, fds=1)], [fd])
    with pytest.raises(Garbled, match="still be written"):
        ends[1].receive()


def test_descriptors_that_did_not_come_are_missed(ends: tuple[StrangerConnection, StrangerConnection]) -> None:
    ends[0]._socket.sendall(write_raw(b'["lane",null,[]]', 0, fds=1))
    with pytest.raises(Garbled, match="did not come"):
        ends[1].receive()


def test_an_end_that_is_closed(ends: tuple[StrangerConnection, StrangerConnection]) -> None:
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
        found = records.read_error_record(
            json.loads(json.dumps(records.write_error_record(error, None, arrays))), arrays
        )
        assert (type(found).__name__, str(found)) == (type(error).__name__, str(error))
        assert isinstance(found, next(x for x in type(error).__mro__ if x is not Own))
        if isinstance(found, Misbehaviour):
            assert found.kind == "mutation" and found.outputs is not None and found.outputs[0].tolist() == [0, 1, 2]
        if isinstance(found, Fallback):
            assert found.raises


def test_a_program_says_nothing_of_what_is_judged() -> None:
    program = Program(run=lambda: [])
    records.RemoteProgramClaims({"flags": "a=b"}).put_into(program)
    assert program.flags == "a=b"
    for name in ("columns", "run"):
        with pytest.raises(Garbled):
            records.RemoteProgramClaims({name: {}})


def test_results_that_are_no_arrays_are_refused_whoever_gives_the_digests() -> None:
    x, begin = np.ones(2), "0"
    own, following = Chain(calls=2, begin=begin), Chain(calls=2, begin=begin, digests=("a", "b"))
    first = digest_outputs([x], begin)
    digests = (first, digest_outputs([x], first))
    places = [[0, 1], [1, 2]]
    for chain, told in ((own, digests), (following, ())):
        assert records.read_remote_results(places, [x, x], chain, told) == [[x], [x]]
        with pytest.raises(Garbled, match="no array"):
            records.read_remote_results(places, [x, None], chain, told)
    with pytest.raises(Garbled, match="did not have"):
        records.read_remote_results(places, [x, 2 * x], own, digests)
