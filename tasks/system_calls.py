"""System calls that a stranger is denied (seccomp(2)): those that reach what no namespace and no right to files stands before.

Sockets that have a name in the file system are reached by connect(2), whatever may be read or written there; datagrams
need no connection, and virtual machines have sockets to their host (AF_VSOCK), which a network namespace does not take
away. A keyring belongs to the user, and outlives all processes of a kernel. io_uring makes calls that no filter sees.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any, NamedTuple

#: prctl(2): PR_SET_NO_NEW_PRIVS; seccomp(2): SECCOMP_SET_MODE_FILTER, SECCOMP_GET_ACTION_AVAIL. The flag leaves
#: mitigations of speculation as they are, which the filter would make the kernel's code pay for before Linux 5.16.
_NO_NEW_PRIVS, _SET_FILTER, _IS_AVAILABLE, _SPEC_ALLOW = 38, 1, 2, 4
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
#: Offsets in `struct seccomp_data`: the number, the architecture, the lower halves of the first two arguments.
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
#: Classic BPF: load a word, keep some bits of it, jump where it is (at least) a number, return.
_LOAD, _AND, _EQUAL, _LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
#: Bits of a socket's type that are no flags.
_TYPE = 0xF
#: Families of sockets that a stranger may have: those of its network namespace. It may have AF_UNIX too, on which the
#: driver of a device listens, but no datagrams, which reach a name without a connection.
_FAMILIES = (socket.AF_INET, getattr(socket, "AF_INET6", 10), getattr(socket, "AF_NETLINK", 16))
#: Types of AF_UNIX that are datagrams: Linux takes the second for the first.
_DATAGRAMS = (socket.SOCK_DGRAM, socket.SOCK_RAW)


class SystemCallNumbers(NamedTuple):
    """Of an architecture (linux/audit.h) the numbers of calls. bound: of the first call of another convention, 0 for
    none."""

    architecture: int
    seccomp: int
    socket: int
    socketpair: int
    denied: tuple[int, ...]  # connect, add_key, request_key, keyctl, io_uring_setup
    bound: int = 0


_NUMBERS = {
    "x86_64": SystemCallNumbers(0xC000003E, 317, 41, 53, (42, 248, 249, 250, 425), bound=0x40000000),
    "aarch64": SystemCallNumbers(0xC00000B7, 277, 198, 199, (203, 217, 218, 219, 425)),
}

_libc = ctypes.CDLL(None, use_errno=True)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def can_deny_calls() -> bool:
    """Whether this system denies calls."""
    numbers, action = _NUMBERS.get(platform.machine()), ctypes.c_uint32(_ERRNO)
    return numbers is not None and _libc.syscall(numbers.seccomp, _IS_AVAILABLE, 0, ctypes.byref(action)) == 0


def deny_system_calls() -> bool:
    """Deny them to this process, which has one thread, and to all that it starts, for good: they raise PermissionError.
    Whether that was done."""
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        return False
    text = b"".join(_assemble_filter(numbers))
    _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    program = _FilterProgram(len(text) // 8, text)
    return bool(_libc.syscall(numbers.seccomp, _SET_FILTER, _SPEC_ALLOW, ctypes.byref(program)) == 0)


#: Calls that may be denied, as Python tells of them before it makes them; the places of this process's code that have
#: made one, each a code object and an offset in it.
_TOLD = ("socket.connect", "socket.__new__")
_made = dict[tuple[CodeType, int], str]()


def note_denied_calls() -> None:
    """From now on note what makes which call, so that who is denied one can be told which it was."""

    def note(event: str, arguments: Any) -> None:
        if event in _TOLD:
            frame = sys._getframe(1)
            _made[frame.f_code, frame.f_lasti] = event

    sys.addaudithook(note)


def describe_denied_call(errors: Iterable[BaseException]) -> str:
    """Which call that was denied one of these errors comes of, in words; "" where none does."""
    for error in errors:
        if isinstance(error, PermissionError) and error.errno == errno.EPERM and error.filename is None:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            if trace is not None and (call := _made.get((trace.tb_frame.f_code, trace.tb_lasti))):
                return f"{call.replace('__new__', 'socket')} is denied to a kernel's process"
    return ""


def _assemble_filter(numbers: SystemCallNumbers) -> Iterator[bytes]:
    """The filter. A jump says how many instructions are passed over, where its condition holds and where not."""

    def deny_if(code: int, value: int) -> Iterator[bytes]:
        yield _encode_filter_step(code, 0, 1, value)
        yield _encode_filter_step(_RETURN, 0, 0, _ERRNO | errno.EPERM)

    yield _encode_filter_step(_LOAD, 0, 0, _ARCHITECTURE)
    yield _encode_filter_step(_EQUAL, 1, 0, numbers.architecture)
    yield _encode_filter_step(_RETURN, 0, 0, _ERRNO | errno.EPERM)
    yield _encode_filter_step(_LOAD, 0, 0, _NUMBER)
    if numbers.bound:
        yield from deny_if(_LEAST, numbers.bound)
    for number in numbers.denied:
        yield from deny_if(_EQUAL, number)
    yield _encode_filter_step(_EQUAL, 2, 0, numbers.socket)
    yield _encode_filter_step(_EQUAL, 1, 0, numbers.socketpair)
    yield _encode_filter_step(_RETURN, 0, 0, _ALLOW)
    yield _encode_filter_step(_LOAD, 0, 0, _FIRST)
    for family in _FAMILIES:
        yield _encode_filter_step(_EQUAL, 0, 1, family)
        yield _encode_filter_step(_RETURN, 0, 0, _ALLOW)
    yield _encode_filter_step(_EQUAL, 1, 0, socket.AF_UNIX)
    yield _encode_filter_step(_RETURN, 0, 0, _ERRNO | errno.EPERM)
    yield _encode_filter_step(_LOAD, 0, 0, _SECOND)
    yield _encode_filter_step(_AND, 0, 0, _TYPE)
    for kind in _DATAGRAMS:
        yield from deny_if(_EQUAL, kind)
    yield _encode_filter_step(_RETURN, 0, 0, _ALLOW)


def _encode_filter_step(code: int, held: int, failed: int, value: int) -> bytes:
    """A `struct sock_filter`."""
    return struct.pack("=HBBI", code, held, failed, value)
