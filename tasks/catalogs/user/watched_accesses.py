"""What the programs of an interpreted Triton kernel do to memory: accesses out of bounds, and races.

The interpreter runs programs one after another and the lanes of a program in step, so a race never changes its result.
Here each load, store and atomic operation of a launch is logged by program, lane and line, and judged as if programs
ran in any order:

- **bounds**: an access outside the storage of the tensor whose pointer it was computed from. Pointers are given to the kernel as
  addresses of ranges far apart, one a storage, so that no offset leads from one tensor into another.
- **programs**: two of them touch an address, one of them writes, not both with an atomic operation, and nothing orders them. An
  order is what atomic operations with acquire and release semantics give: who has read what another has released comes after it
  (vector clocks, as in FastTrack, Flanagan and Freund, PLDI 2009). An atomic whose result is thrown away acquires nothing.
- **lanes** of one program: one reads or overwrites what another has stored, or overwrites what another has read, with no
  ``tl.debug_barrier()`` between. A lane is a position in the block. A program of one warp runs in step and is not looked at.

A store that leaves memory as it is disturbs neither who has read nor who has written there, so programs that all write
the same value do not race. As in Triton's compiled code, an atomic operation on a scalar is a barrier of its program.

State is kept a cell (the smallest size of an access) as numbers of events, which grow: a cell last written by an event
before the first of the running program was written by another program.
"""

from __future__ import annotations

import bisect
import ctypes
import dis
import functools
import gc
import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from tasks.model import Misbehaviour
from tasks.model.errors import list_error_causes
from tasks.model.row import INTERPRETED

RACE, OUT_OF_BOUNDS = "race", "out_of_bounds"
#: Bits of the offset in a storage's range of addresses; no process has an address in the first FREE ranges.
RANGE, FREE = 44, 16
MIDDLE = 1 << (RANGE - 1)
#: Of an address, what its range keeps: kernels ask for alignment.
ALIGNED = 4096 - 1
#: Cells read, of storages that no program has written to, that are kept apart before they are entered.
WAITING = 1 << 22
#: The lane of what is one number: every lane reads it, one of them stores it.
SCALAR = -1
#: Triton's default.
NUM_WARPS = 4
#: Orders of an atomic operation, by Triton's names.
ACQUIRES, RELEASES = ("ACQUIRE", "ACQUIRE_RELEASE"), ("RELEASE", "ACQUIRE_RELEASE")
#: What an access does: a plain load or store, an atomic operation, a volatile or atomic load.
LOADS, STORES, UPDATES, POLLS = "loads", "stores", "updates", "polls"
#: An atomic operation of the scope of a block: none between programs.
WITHIN = "updates (scope cta)"
#: Characters of a line of source in a message.
SHOWN = 100

Array = np.ndarray[Any, Any]


@dataclass
class WatchedMemory:
    """One storage: its address and size in bytes, the address that kernels are told, its name, and what its cells have
    seen.

    item, begin: bytes of an element of the tensor of that name, and where it begins in the storage; cell: bytes of a
    cell; written, read: the last event that stored, and read, a cell; first_read: the first that read it; updated: the
    last atomic operation; writer, reader, updater: the lanes of those. written_to: whether a program has written at
    all.
    """

    real: int
    size: int
    told: int
    name: str
    item: int = 1
    begin: int = 0
    cell: int = 0
    written: Array = field(default_factory=lambda: _EMPTY)
    writer: Array = field(default_factory=lambda: _EMPTY)
    first_read: Array = field(default_factory=lambda: _EMPTY)
    read: Array = field(default_factory=lambda: _EMPTY)
    reader: Array = field(default_factory=lambda: _EMPTY)
    updated: Array = field(default_factory=lambda: _EMPTY)
    updater: Array = field(default_factory=lambda: _EMPTY)
    written_to: bool = False
    _waiting: list[_AccessStep] = field(default_factory=list)
    _cells_waiting: int = 0

    def element(self, byte: int) -> str:
        """The element of the tensor that a byte of the storage is of."""
        return f"{self.name}[{(byte - self.begin) // self.item}]"

    def cells(self, addresses: Array, size: int) -> Array | slice:
        """The cells of accesses of ``size`` bytes each, those of one access side by side."""
        offsets = (addresses - np.uint64(self.told)).astype(np.int64)
        if not self.cell:
            self._divide(size)
        if self.cell > size or (self.cell > 1 and (offsets % self.cell).any()):
            self._refine(size if not (offsets % size).any() else 1)
        cells = offsets // self.cell if self.cell > 1 else offsets
        if self.cell < size:
            cells = (cells[:, None] + np.arange(size // self.cell)).ravel()
        first, last = int(cells[0]), int(cells[-1])
        if last - first == len(cells) - 1 and (len(cells) == 1 or (np.diff(cells) == 1).all()):
            return slice(first, last + 1)  # views are twice as fast as lists of numbers
        return cells

    def wait(self, read: _AccessStep) -> None:
        """Keep a read, to be entered when a program writes: most storages are never written to."""
        self._waiting.append(read)
        self._cells_waiting += len(read.lanes)
        if self._cells_waiting > WAITING:
            self.enter()

    def enter(self) -> None:
        """Enter the reads that wait."""
        for read in self._waiting:
            self.note_read(read)
        self._waiting, self._cells_waiting = [], 0

    def note_read(self, read: _AccessStep) -> None:
        first = self.first_read[read.cells]
        self.first_read[read.cells] = np.where(first == 0, read.event, first)
        self.read[read.cells], self.reader[read.cells] = read.event, read.lanes

    def _divide(self, cell: int) -> None:
        self.cell = cell
        count = -(-self.size // cell)
        for name in _STATE:
            setattr(self, name, np.zeros(count, np.int32))

    def _refine(self, cell: int) -> None:
        """Smaller cells, each with what the larger one has seen."""
        self.enter()
        times = self.cell // cell
        self.cell = cell
        for name in _STATE:
            setattr(self, name, np.repeat(getattr(self, name), times))


_EMPTY: Array = np.zeros(0, np.int32)
_STATE = ("written", "writer", "first_read", "read", "reader", "updated", "updater")


@dataclass(frozen=True)
class _AccessStep:
    """An access to one storage: its cells, the lane of each, and its event."""

    memory: WatchedMemory
    cells: Array | slice
    lanes: Array
    event: int

    def cell(self, place: int) -> int:
        return self.cells.start + place if isinstance(self.cells, slice) else int(self.cells[place])

    def byte(self, place: int) -> int:
        return self.cell(place) * self.memory.cell


@dataclass(frozen=True)
class KernelAccess:
    """What an event is: a line of the kernel, and one of LOADS, STORES, UPDATES, POLLS."""

    code: CodeType
    line: int
    verb: str

    @property
    def place(self) -> str:
        return f"{self.code.co_filename}:{self.line}"

    @property
    def source(self) -> str:
        """The line; what is said where the kernel has no source that can be read."""
        text = linecache.getline(self.code.co_filename, self.line).strip()
        if not text:
            return f"no source of {self.code.co_name}"
        return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


@functools.lru_cache(maxsize=4096)
def _find_kernel_access(code: CodeType, line: int, verb: str) -> KernelAccess:
    return KernelAccess(code, line, verb)


@dataclass(frozen=True)
class AccessOrder:
    """The memory semantics and the scope of an atomic operation, by Triton's names: "ACQUIRE_RELEASE", "GPU"."""

    semantics: str
    scope: str


class LaunchWatch:
    """What is found in the launches of one call of a kernel; the first race is kept.

    broken: what is to be raised of them, once the kernel has returned."""

    def __init__(self) -> None:
        self.launches = 0
        self.broken: Misbehaviour | None = None

    @property
    def execution(self) -> str:
        """Of the row of what was called: whether an interpreter has run it."""
        return INTERPRETED if self.launches else ""

    def check(self) -> None:
        """Raise what was found, if anything was."""
        broken, self.broken = self.broken, None
        if broken is not None:
            raise broken


class WatchedLaunch:
    """One launch of a kernel: its storages, its running program, and the events so far. grid: programs along x, y and
    z."""

    def __init__(self, watch: LaunchWatch, warps: int = NUM_WARPS) -> None:
        watch.launches += 1
        _count[0] += 1
        self.watch, self.lanes_race = watch, warps > 1
        self.grid: tuple[int, int, int] = (1, 1, 1)
        self.names: dict[int, str] = {}
        self.accesses: list[KernelAccess] = [_find_kernel_access(_refuse_access.__code__, 0, "")]  # 0 is no event
        self.begins: list[int] = []  # the first event of each program
        self.programs: list[tuple[int, int, int]] = []
        self.start = 1
        self.barrier = self.exchange = 0  # the last event before a barrier, and before what moves values between lanes
        self.order: AccessOrder | None = None  # of the atomic load or store that runs
        self._memories: list[WatchedMemory] = []
        self._at: dict[tuple[int, int], WatchedMemory] = {}
        self._foreign: list[WatchedMemory] | None = None
        self._clock: Array | None = None  # of each program, the last event that comes before the running program
        self._begun: Array = _EMPTY
        self._released: dict[int, Array] = {}

    # --- what the interpreter tells ---

    def begin(self, program: tuple[int, int, int]) -> None:
        """Another program runs."""
        self.start = len(self.accesses)
        self.begins.append(self.start)
        self.programs.append(program)
        self.synchronise()
        self._clock = None

    def synchronise(self) -> None:
        """A barrier: what lanes have done before comes before what they do from here on."""
        self.barrier = self.exchange = len(self.accesses) - 1

    def note_exchange(self) -> None:
        """Values have moved between lanes, in a reduction or a product: all have been read, and stored, by then."""
        self.exchange = len(self.accesses) - 1

    def address(self, tensor: Any, begin: int) -> int:
        """What the kernel is told is the address of a tensor, which begins at ``begin``."""
        storage = tensor.untyped_storage()
        real, size = storage.data_ptr(), storage.nbytes()
        memory = self._at.get((real, size))
        if memory is None:
            name, item = self.names.get(begin, "a tensor"), tensor.element_size()
            base = ((FREE + len(self._memories)) << RANGE) + MIDDLE + (real & ALIGNED)
            memory = self._at[real, size] = WatchedMemory(real, size, base, name, item, begin - real if size else 0)
            self._memories.append(memory)
        return memory.told + begin - real if size else memory.told

    def load(self, pointers: Array, mask: Array, size: int, frame: FrameType, volatile: bool = False) -> Array:
        """The real addresses of a load of elements of ``size`` bytes. Raises Misbehaviour where a lane is out of
        bounds."""
        return self._access(POLLS if volatile else LOADS, pointers, mask, size, frame)

    def store(self, pointers: Array, mask: Array, size: int, frame: FrameType, values: Array) -> Array:
        """The real addresses of a store of ``values``. Raises Misbehaviour as `load` does."""
        return self._access(STORES, pointers, mask, size, frame, values)

    def update(
        self, pointers: Array, mask: Array, size: int, frame: FrameType, order: AccessOrder, verb: str = UPDATES
    ) -> Array:
        """The real addresses of an atomic operation. Raises Misbehaviour as `load` does."""
        scalar, key = pointers.size == 1, int(pointers.flat[0])
        key = key if scalar else key >> RANGE
        if scalar:
            self.synchronise()
        if order.scope == "CTA":
            return self._access(WITHIN, pointers, mask, size, frame)
        if order.semantics in ACQUIRES and not _is_result_thrown_away(frame):
            self._acquire(key)
        real = self._access(verb, pointers, mask, size, frame)
        if order.semantics in RELEASES:
            self._release(key)
        if scalar:
            self.synchronise()
        return real

    # --- order between programs ---

    def _clock_of(self) -> Array:
        if self._clock is None:
            self._clock = np.zeros(self.grid[0] * self.grid[1] * self.grid[2], np.int32)
            self._begun = np.array(self.begins)
        return self._clock

    def _acquire(self, key: int) -> None:
        for one in {key, key >> RANGE}:
            if one in self._released:
                np.maximum(self._clock_of(), self._released[one], out=self._clock_of())

    def _release(self, key: int) -> None:
        clock = self._clock_of().copy()
        clock[len(self.begins) - 1] = len(self.accesses) - 1
        before = self._released.get(key)
        self._released[key] = clock if before is None else np.maximum(before, clock)

    def _find_unordered(self, events: Array) -> Array | None:
        """Which events are of another program, that nothing orders before the running one; 0 is none. None where there
        is no such event, which the first and the last of them mostly tell."""
        last = int(events.max())
        if not last:
            return None
        first = int(events.min())
        if first >= self.start or (first == last and self._is_ordered(first)):
            return None
        others = (events > 0) & (events < self.start)
        if self._clock is not None:
            some = events[others]
            others[others] = some > self._clock[np.searchsorted(self._begun, some, side="right") - 1]
        return others if others.any() else None

    def _is_ordered(self, event: int) -> bool:
        if self._clock is None:
            return False
        return event <= int(self._clock[bisect.bisect_right(self.begins, event) - 1])

    # --- one access ---

    def _access(
        self, verb: str, pointers: Array, mask: Array, size: int, frame: FrameType, values: Array | None = None
    ) -> Array:
        """The real addresses of an access, which is judged and entered."""
        addresses, lanes = pointers.reshape(-1), _list_lanes(pointers.size)
        values = values if values is None else np.broadcast_to(values, pointers.shape).reshape(-1)
        if not mask.all():
            chosen = np.flatnonzero(np.broadcast_to(mask, pointers.shape))
            if not len(chosen):
                return pointers
            addresses, lanes = addresses[chosen], lanes[chosen]
            values = values if values is None else values[chosen]
        self.accesses.append(_find_kernel_access(frame.f_code, frame.f_lineno, verb))
        low, high = int(addresses.min()), int(addresses.max())
        if low >> RANGE == high >> RANGE:
            memory = self._memory(low, high)
            if memory is None:
                return pointers
            self._bounds(memory, addresses, low, high, size)
            self._judge(memory, addresses, lanes, size, values)
            return np.asarray(pointers - np.uint64(memory.told - memory.real))
        real, ranges = pointers.copy(), addresses >> np.uint64(RANGE)
        for one in np.unique(ranges):
            at = ranges == one
            some = addresses[at]
            low, high = int(some.min()), int(some.max())
            memory = self._memory(low, high)
            if memory is not None:
                self._bounds(memory, some, low, high, size)
                self._judge(memory, some, lanes[at], size, values if values is None else values[at])
                real[(pointers >> np.uint64(RANGE)) == one] -= np.uint64(memory.told - memory.real)
        return real

    def _memory(self, low: int, high: int) -> WatchedMemory | None:
        """The storage of addresses of one range; None where nobody knows: memory that is no tensor's, whose address the
        kernel was given as a number. Raises Misbehaviour where there is no memory."""
        of = (low >> RANGE) - FREE
        if 0 <= of < len(self._memories):
            return self._memories[of]
        if self._foreign is None:
            known = [WatchedMemory(x.real, x.size, x.real, x.name, x.item, x.begin) for x in self._memories]
            self._foreign = known + list(_list_live_storages({x.real for x in known}))
        found = next((x for x in self._foreign if x.real <= low and high < x.real + x.size), None)
        bad = next((x for x in (low, high) if found is None and not _is_address_mapped(x)), None)
        if bad is not None:
            where = self._places((self._who(), len(self.accesses) - 1))
            text = f"there is no memory at {bad:#x}: {where}"
            raise Misbehaviour(OUT_OF_BOUNDS, f"out of bounds: {text}")
        return found

    def _bounds(self, memory: WatchedMemory, addresses: Array, low: int, high: int, size: int) -> None:
        if low >= memory.told and high + size <= memory.told + memory.size:
            return
        begin, end = np.uint64(memory.told), np.uint64(memory.told + memory.size)
        outside = (addresses < begin) | (addresses + np.uint64(size) > end)
        byte = int(addresses[int(np.argmax(outside))]) - memory.told
        has = f"{memory.element(0)} to {memory.element(memory.size - 1)}" if memory.size else "empty"
        many = f" ({int(outside.sum())} of {len(addresses)} lanes)" if len(addresses) > 1 else ""
        where = self._places((self._who(), len(self.accesses) - 1))
        text = f"{memory.element(byte)}{many}, but its storage is {has}: {where}"
        raise Misbehaviour(OUT_OF_BOUNDS, f"out of bounds: {text}")

    def _judge(self, memory: WatchedMemory, addresses: Array, lanes: Array, size: int, values: Array | None) -> None:
        """Look for a race of one access with those before it, and enter it. values: of a store."""
        if self.watch.broken is not None:
            return
        verb = self.accesses[-1].verb
        cells = memory.cells(addresses, size)
        if size > memory.cell:
            lanes = np.repeat(lanes, size // memory.cell)
        one = _AccessStep(memory, cells, lanes, len(self.accesses) - 1)
        if verb == LOADS and not memory.written_to:
            memory.wait(one)
            return
        memory.enter()
        if verb == LOADS:
            self._judge_load(one)
            memory.note_read(one)
        elif verb == POLLS:
            self._report(one, memory.written)
        elif verb in (UPDATES, WITHIN):
            if verb == WITHIN:
                self._report(one, memory.updated)
            self._judge_update(one)
            memory.updated[cells], memory.updater[cells] = one.event, lanes
        else:
            self._judge_store(one, lambda: _collect_stored_bytes(memory, addresses, size, values))
            memory.written[cells], memory.writer[cells] = one.event, lanes
        memory.written_to |= verb != POLLS

    def _judge_load(self, one: _AccessStep) -> None:
        memory = one.memory
        for before, lane in ((memory.written, memory.writer), (memory.updated, memory.updater)):
            if before[one.cells].any():
                self._report(one, before)
                self._report_lanes(one, before, lane, self.barrier)

    def _judge_update(self, one: _AccessStep) -> None:
        memory = one.memory
        for before in (memory.written, memory.first_read, memory.read):
            self._report(one, before)
        self._report_lanes(one, memory.written, memory.writer, self.exchange)

    def _judge_store(self, one: _AccessStep, stored: Callable[[], tuple[Array, Array]]) -> None:
        """stored: the bytes that are stored and those that are there, a row a cell."""
        memory = one.memory
        self._report(one, memory.updated)

        @functools.cache
        def changes() -> Array:
            new, old = stored()
            found: Array = (new != old).any(axis=1)
            return found

        for before in (memory.written, memory.first_read, memory.read):
            self._report(one, before, changes)
        for before, lane in ((memory.written, memory.writer), (memory.read, memory.reader)):
            self._report_lanes(one, before, lane, self.exchange, changes)
        if self.watch.broken is None and not isinstance(one.cells, slice):
            self._judge_twice(one, stored)

    def _judge_twice(self, one: _AccessStep, stored: Callable[[], tuple[Array, Array]]) -> None:
        """Lanes of one store that write different values to one cell."""
        memory, places = one.memory, np.arange(len(one.lanes))
        memory.writer[one.cells] = places
        last = memory.writer[one.cells]
        if (last == places).all():
            return
        new, _ = stored()
        bad = (new != new[last]).any(axis=1)
        if bad.any():
            place = int(np.argmax(bad))
            lanes = f"{_name_lane(one.lanes[place])} and {_name_lane(one.lanes[last[place]])}"
            text = f"{lanes} of {self._who()} store different values to {memory.element(one.byte(place))}"
            self._keep(text, ("", one.event))

    def _report(self, one: _AccessStep, before: Array, changes: Callable[[], Array] | None = None) -> None:
        """Keep the race of an access with what another program has done ``before``, an event a cell. changes: whether a
        store changes a cell; one that does not disturbs nobody."""
        if self.watch.broken is not None:
            return
        bad = self._find_unordered(before[one.cells])
        if bad is None or (changes is not None and not (bad := bad & changes()).any()):
            return
        place = int(np.argmax(bad))
        first = int(before[one.cell(place)])
        text = (
            f"two programs use {one.memory.element(one.byte(place))} in no certain order (no atomic operation, no lock)"
        )
        self._keep(text, (self._program(first), first), (self._who(), one.event))

    def _report_lanes(
        self, one: _AccessStep, before: Array, lane: Array, since: int, changes: Callable[[], Array] | None = None
    ) -> None:
        """Keep the race of an access with what another lane of this program has done after the event ``since``."""
        if self.watch.broken is not None or not self.lanes_race:
            return
        bad = (before[one.cells] > max(since, self.start - 1)) & (lane[one.cells] != one.lanes)
        if not bad.any() or (changes is not None and not (bad := bad & changes()).any()):
            return
        place = int(np.argmax(bad))
        cell = one.cell(place)
        text = f"lanes of {self._who()} use {one.memory.element(one.byte(place))} with no tl.debug_barrier() between"
        self._keep(text, (_name_lane(lane[cell]), int(before[cell])), (_name_lane(one.lanes[place]), one.event))

    def _keep(self, text: str, *who: tuple[str, int]) -> None:
        self.watch.broken = Misbehaviour(RACE, f"race: {text}: {self._places(*who)}")

    def _places(self, *who: tuple[str, int]) -> str:
        """Who does what, where: of each (name, event) its line, and the source of each line once."""
        said: list[str] = []
        shown: set[tuple[CodeType, int]] = set()
        for name, event in who:
            one = self.accesses[event]
            source = "" if (one.code, one.line) in shown else f" `{one.source}`"
            shown.add((one.code, one.line))
            said.append(f"{name} {one.verb}, {one.place}{source}".strip())
        return "; ".join(said)

    def _who(self) -> str:
        return self._program(len(self.accesses) - 1)

    def _program(self, event: int) -> str:
        index = int(np.searchsorted(self.begins, event, side="right")) - 1
        x, y, z = self.programs[index]
        return f"program {x}" if self.grid[1:] == (1, 1) else f"program ({x}, {y}, {z})"


def _name_lane(lane: int) -> str:
    return "the whole program" if lane == SCALAR else f"lane {lane}"


@functools.lru_cache(maxsize=64)
def _list_lanes(count: int) -> Array:
    return np.full(1, SCALAR, np.int32) if count == 1 else np.arange(count, dtype=np.int32)


def _collect_stored_bytes(
    memory: WatchedMemory, addresses: Array, size: int, values: Array | None
) -> tuple[Array, Array]:
    """The bytes that are stored and those that are there, a row a cell."""
    assert values is not None
    if values.itemsize != size:  # what another version of the interpreter may do: taken as a change
        cells = len(addresses) * (size // memory.cell)
        return np.ones((cells, 1), np.uint8), np.zeros((cells, 1), np.uint8)
    new = np.ascontiguousarray(values).view(np.uint8)
    real = addresses - np.uint64(memory.told - memory.real)
    low, high = int(real.min()), int(real.max()) + size
    whole = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
    old = whole[(real - np.uint64(low)).astype(np.int64)[:, None] + np.arange(size)]
    return new.reshape(-1, memory.cell), old.reshape(-1, memory.cell)


def _list_live_storages(seen: set[int]) -> Iterator[WatchedMemory]:
    """Storages of the tensors of this process, to which a kernel may have a pointer in memory."""
    import torch

    for x in gc.get_objects():
        if isinstance(x, torch.Tensor) and x.layout == torch.strided and x.device.type == "cpu":
            storage = x.untyped_storage()
            try:
                address = storage.data_ptr()
            except RuntimeError:  # a tensor without memory, of a tracer
                continue
            if address and address not in seen:
                seen.add(address)
                yield WatchedMemory(address, storage.nbytes(), address, "a tensor", x.element_size())


def _is_address_mapped(address: int) -> bool:
    """Whether this process has memory there; where the system does not say, it is taken to have it."""
    try:
        text = Path("/proc/self/maps").read_text()
    except OSError:
        return True
    ends = (line.split(maxsplit=1)[0].split("-") for line in text.splitlines())
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ends)


_THROWN: dict[tuple[CodeType, int], bool] = {}


def _is_result_thrown_away(frame: FrameType) -> bool:
    """Whether a kernel throws away the result of the call that runs in its frame: who does not look at it waits for
    nobody."""
    key = frame.f_code, frame.f_lasti
    if key not in _THROWN:
        following = [x for x in dis.get_instructions(frame.f_code) if x.offset > frame.f_lasti and x.opname != "CACHE"]
        _THROWN[key] = bool(following) and following[0].opname == "POP_TOP"
    return _THROWN[key]


def _refuse_access() -> None: ...


# --- the interpreter
# ------------------------------------------------------------------------------------------------------------

#: Functions of the interpreter's builder that move values between lanes.
EXCHANGES = ("create_dot", "create_dot_scaled", "create_trans", "create_gather", "create_histogram", "create_reshape")
_watches: list[LaunchWatch] = []
_count = [0]
_launches: list[WatchedLaunch] = []


def is_launch_watched() -> bool:
    """Whether a launch runs that somebody watches."""
    return bool(_launches)


def count_watched_launches() -> int:
    """How many launches have been watched in this process."""
    return _count[0]


def _get_current_launch() -> WatchedLaunch:
    return _launches[-1]


class watching:
    """Around the call of a kernel: its launches are watched. The result is the `LaunchWatch`."""

    def __enter__(self) -> LaunchWatch:
        _watches.append(LaunchWatch())
        return _watches[-1]

    def __exit__(self, *error: object) -> None:
        _watches.pop()


def unwrap_kernel_misbehaviour(error: BaseException) -> Misbehaviour | None:
    """What was found, in an error that the interpreter has wrapped."""
    return next((x for x in list_error_causes(error) if isinstance(x, Misbehaviour)), None)


def watch_interpreter_accesses(module: Any) -> None:
    """Have Triton's interpreter tell of its accesses. module: triton.runtime.interpreter.

    What another version of Triton does not have stays as it is: its accesses are then not seen.
    """
    triton = Path(sys.modules["triton"].__file__ or "").parent
    inside = (str(triton / "language"), str(triton / "runtime"), str(Path(__file__).parent))
    builder, executor, handle = module.InterpreterBuilder, module.GridExecutor, module.TensorHandle
    own: dict[CodeType, bool] = {}
    #: The interpreter keeps its place in the grid for all threads at once; a GPU takes launches from any number of
    #: them.
    alone = threading.RLock()

    def caller() -> FrameType:
        """The frame of the kernel, or of a function of its author's, that has called the interpreter."""
        frame: FrameType = sys._getframe(1)
        while True:
            code = frame.f_code
            if code not in own:
                own[code] = not code.co_filename.startswith(inside)
            if own[code] or frame.f_back is None:
                return frame
            frame = frame.f_back

    def size_of(pointers: Any) -> int:
        return max(1, pointers.get_element_ty().primitive_bitwidth // 8)

    def wrap(owner: Any, name: str, change: Callable[..., Any]) -> None:
        plain = getattr(owner, name, None)
        if plain is not None:

            @functools.wraps(plain)
            def call_changed(self: Any, *arguments: Any, **named: Any) -> Any:
                return (
                    change(self, plain, *arguments, **named)
                    if is_launch_watched()
                    else plain(self, *arguments, **named)
                )

            setattr(owner, name, call_changed)

    def data(x: Any) -> Array:
        """The numbers of what a builder is given: a handle or, of a descriptor's mask in Triton 3.6, an array."""
        return x if isinstance(x, np.ndarray) else x.data

    def watch_update(pointers: Any, mask: Array | None, order: AccessOrder, verb: str = UPDATES) -> Any:
        mask = np.ones(pointers.data.shape, bool) if mask is None else mask
        return handle(
            _get_current_launch().update(pointers.data, mask, size_of(pointers), caller(), order, verb), pointers.dtype
        )

    def load(builder: Any, plain: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        launch = _get_current_launch()
        if launch.order is not None:
            real = watch_update(pointers, data(mask), launch.order, POLLS)
        else:
            volatile = named.get("is_volatile", rest[-1] if rest else None) is True
            real = handle(launch.load(pointers.data, data(mask), size_of(pointers), caller(), volatile), pointers.dtype)
        return plain(builder, real, mask, *rest, **named)

    def store(builder: Any, plain: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        launch = _get_current_launch()
        if launch.order is not None:
            real = watch_update(pointers, data(mask), launch.order)
        else:
            real = handle(
                launch.store(pointers.data, data(mask), size_of(pointers), caller(), data(value)), pointers.dtype
            )
        return plain(builder, real, value, mask, *rest, **named)

    def rmw(builder: Any, plain: Any, what: Any, pointers: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        real = watch_update(pointers, data(mask), AccessOrder(sem.name, scope.name))
        return plain(builder, what, real, value, mask, sem, scope)

    def cas(builder: Any, plain: Any, pointers: Any, compared: Any, value: Any, sem: Any, scope: Any) -> Any:
        return plain(
            builder, watch_update(pointers, None, AccessOrder(sem.name, scope.name)), compared, value, sem, scope
        )

    def atomic(builder: Any, plain: Any, *arguments: Any) -> Any:
        launch, (sem, scope) = _get_current_launch(), arguments[-2:]
        launch.order = AccessOrder(sem.name, scope.name)
        try:
            return plain(builder, *arguments)
        finally:
            launch.order = None

    def barrier(builder: Any, plain: Any, *arguments: Any) -> Any:
        _get_current_launch().synchronise()
        return plain(builder, *arguments)

    def exchange(builder: Any, plain: Any, *arguments: Any) -> Any:
        _get_current_launch().note_exchange()
        return plain(builder, *arguments)

    def dimensions(builder: Any, plain: Any, *grid: Any) -> Any:
        _get_current_launch().grid = (int(grid[0]), int(grid[1]), int(grid[2]))
        return plain(builder, *grid)

    def program(builder: Any, plain: Any, *at: int) -> Any:
        _get_current_launch().begin((at[0], at[1], at[2]))
        return plain(builder, *at)

    def watch_host_call(self: Any, plain: Any, given: Any, named: Any) -> Any:
        made = plain(self, given, named)
        for name, x in (*zip(self.arg_names, made[0]), *made[1].items()):
            for one in x if isinstance(x, tuple) else (x,):
                base: Any = getattr(one, "base", one)  # a descriptor's, a reinterpreted tensor's
                if hasattr(base, "data_ptr"):
                    _get_current_launch().names.setdefault(base.data_ptr(), name)
        return made

    for owner, change, names in (
        (builder, load, ("create_masked_load",)),
        (builder, store, ("create_masked_store",)),
        (builder, rmw, ("create_atomic_rmw",)),
        (builder, cas, ("create_atomic_cas",)),
        (builder, atomic, ("create_atomic_load", "create_atomic_store", "create_atomic_poll")),
        (builder, barrier, ("create_barrier",)),
        (builder, exchange, EXCHANGES),
        (builder, dimensions, ("set_grid_dim",)),
        (builder, program, ("set_grid_idx",)),
        (module.ReduceScanOpInterface, exchange, ("apply",)),
        (executor, watch_host_call, ("_init_args_hst",)),
    ):
        for name in names:
            wrap(owner, name, change)
    call, convert = executor.__call__, module._implicit_cvt

    @functools.wraps(call)
    def launch_alone(self: Any, *arguments: Any, **named: Any) -> Any:
        with alone:
            return watch_launch(self, *arguments, **named)

    def watch_launch(self: Any, *arguments: Any, **named: Any) -> Any:
        if not _watches:
            return call(self, *arguments, **named)
        warps = named.get("num_warps")
        _launches.append(WatchedLaunch(_watches[-1], warps if isinstance(warps, int) else NUM_WARPS))
        try:
            return call(self, *arguments, **named)
        finally:
            _launches.pop()

    def convert_argument(argument: Any) -> Any:
        made = convert(argument)
        if is_launch_watched() and hasattr(argument, "data_ptr"):
            told = _get_current_launch().address(module._unwrap_tensor(argument), argument.data_ptr())
            made.handle.data = np.array([told], np.uint64)
        return made

    executor.__call__, module._implicit_cvt = launch_alone, convert_argument
