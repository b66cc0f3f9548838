"""Calls of torch kernels whose inputs lie where a `Placing` says, and whose outputs are read as plain memory."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.dispatch import make_dispatch_mode
from tasks.backends.shared import foreign, replaced
from tasks.model import Form, Misbehaviour, Placing, Program, Unsupported
from tasks.model.kind import KIND_JUDGE, KIND_LAZY, KIND_LIBRARY, KIND_WRITES

if TYPE_CHECKING:
    from tasks.backends.torch import TorchEager

#: Devices whose tensors are memory that can be written around.
TARGETS = ("cpu", "cuda")
#: Bytes before and behind what is guarded; a multiple of what memory is aligned to.
ZONE = 256
#: Bytes of inputs of earlier calls that are held.
HELD = 64 << 20
#: Blocks of the size of each output that are written and freed before a call, for memory that no dispatcher hands out.
FREED = 4
#: Cycles of a device that a stream is kept busy before it copies the inputs: about two milliseconds.
BUSY = 4_000_000
#: Operations that hand out memory as it is.
_UNWRITTEN = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided")


class TorchPlacer:
    """`Program.placed` of a torch program."""

    def __init__(self, backend: TorchEager, form: Form, program: Program) -> None:
        self._backend, self._form, self._program = backend, form, program
        #: The tensors of the last call's inputs, by number; those of earlier calls, so that no later one has the same
        #: addresses, and their bytes then: a kernel may have changed them since.
        self._last: dict[int, Any] = {}
        self._held: deque[tuple[Any, int]] = deque()
        self._held_bytes = 0
        #: Bytes of the outputs of the last call.
        self._sizes: list[int] = []

    def __call__(
        self, arrays: list[Any], placing: Placing, look: Callable[[], str] = replaced.describe_replaced_functions
    ) -> Sequence[Any]:
        """look: bound here, so that it is not what a kernel has put in its place."""
        import torch

        backend, target = self._backend, self._backend.target
        if placing.stream and target != "cuda":
            raise Unsupported(f"{target} has no streams")
        form, zones = self._form.with_arrays(arrays), _GuardZones(placing.fill)
        given: dict[int, Any] = {}
        late: list[tuple[Any, Any]] = []

        def place(number: int, array: np.ndarray) -> Any:
            values = torch_tree.tensor_from_numpy(array.copy())
            where = "cpu" if does_form_copy_tensors(form) else target
            made = self._last.get(number) if placing.same else None
            if made is None or made.shape != values.shape or made.dtype != values.dtype:
                made = zones.guard(torch.empty_like(values, device=where))
            given[number] = made
            if placing.stream:  # until the stream has come to the copy
                made.view(-1).view(torch.uint8).fill_(0xFF)
                late.append((made, values.to(where)))
            else:
                made.copy_(values)
            return made

        args, kwargs = backend.run_and_wait(lambda: backend.arguments(form, place))
        self._hold(self._last.values() if not placing.same else ())
        self._last = given
        if placing.fill is not None:
            _write_freed_memory(self._sizes, placing.fill, target)
        call = form.call
        assert call is not None
        watched = placing.counted or zones.fill is not None
        watch = _watch_operations(zones) if watched else None
        forbids = form.own.forbids if form.own and watched else ()
        profiled = _profile_operations() if forbids else None
        lines = _AutogradLines() if placing.counted else contextlib.nullcontext()

        taken: list[int] = []

        def compute() -> list[Any]:
            modes = backend.modes.watch_fallbacks(self._program) if backend.modes else contextlib.nullcontext()
            filled = _fill_new_memory(zones.fill if does_form_copy_tensors(form) else None)
            with (
                torch.no_grad(),
                backend.default_device(args, kwargs),
                modes,
                watch or contextlib.nullcontext(),
                filled,
                profiled or contextlib.nullcontext(),
                lines,
            ):
                begin = time.process_time_ns()  # of this process alone, as others may have the cores meanwhile
                made = torch_tree.list_output_tensors(call(*args, **kwargs))
                taken.append(time.process_time_ns() - begin)
                return made

        # Looked at before as well: what was sound is only compared afterwards, sooner than a kernel could put it back.
        was_replaced = look() if placing.pause else ""
        if placing.stream:
            outputs = _compute_on_stream(compute, late)
        else:
            outputs = backend.run_watched(compute, self._program)
        if placing.spoil:
            backend.run_and_wait(lambda: _spoil_input_memory(given.values(), outputs))
        found = [_read_torch_output(x) for x in outputs]
        if placing.pause:  # once the results are read, which must not be awaited, and before all else
            was_replaced = was_replaced or look()
        self._sizes = [x.nbytes for x in found]
        if words := zones.describe_damage():
            broken = Misbehaviour(KIND_WRITES, words)
            broken.outputs = found
            raise broken
        if profiled and (called := _find_forbidden_operation(profiled, forbids)):
            raise Misbehaviour(KIND_LIBRARY, f"it calls {called}, which its declaration forbids")
        if placing.pause:
            if was_replaced:
                raise Misbehaviour(KIND_JUDGE, was_replaced)
            time.sleep(placing.pause / 1e3)
            found += [_read_torch_output(x) for x in outputs]
        if getattr(lines, "was_replaced", False):
            raise Misbehaviour(
                KIND_JUDGE,
                "it puts a tracer (sys.settrace) in the place of the one that counts its lines, or turns it off",
            )
        if placing.counted:
            found.append(np.array([watch.operations if watch else 0, getattr(lines, "count", 0), *taken], np.int64))
        return found

    def _hold(self, tensors: Iterable[Any]) -> None:
        for x in tensors:
            self._held.append((x, x.untyped_storage().nbytes()))
            self._held_bytes += self._held[-1][1]
        while self._held_bytes > HELD:
            self._held_bytes -= self._held.popleft()[1]


def does_form_copy_tensors(form: Form) -> bool:
    """Whether a form's call takes tensors of the CPU's memory and copies them to the device itself, as a kernel of
    NumPy arrays does."""
    return form.own is not None and form.own.own_copies


# --- memory -------------------------------------------------------------------------------------------------------


class _GuardZones:
    """Memory with red zones of a byte before and behind it. fill: that byte; None for memory without."""

    def __init__(self, fill: int | None) -> None:
        self.fill = fill
        self._guarded: list[tuple[Any, int, int]] = []

    def guard(self, plain: Any) -> Any:
        """A tensor as ``plain``, filled with the byte, between red zones; on the CPU its storage ends where it ends."""
        import torch

        size = plain.untyped_storage().nbytes()
        if self.fill is None or not size or plain.layout is not torch.strided:
            return plain
        begin = ZONE
        if plain.device.type == "cpu":
            block = np.full(size + 2 * ZONE + 64, self.fill, np.uint8)
            begin += -(block.ctypes.data + ZONE) % 64
            around, inside = torch.from_numpy(block), torch.from_numpy(block[begin : begin + size])
        else:
            around = torch.full((size + 2 * ZONE,), self.fill, dtype=torch.uint8, device=plain.device)
            inside = around[begin : begin + size]
        self._guarded.append((around, begin, size))
        made = inside.view(plain.dtype)
        return made.as_strided(plain.shape, plain.stride(), made.storage_offset())

    def describe_damage(self) -> str:
        """Where something was written to a red zone, in words; "" where nothing was."""
        for around, begin, size in self._guarded:
            for zone, where in ((around[:begin], "before"), (around[begin + size :], "behind")):
                raw = zone.cpu().numpy().tobytes()
                if count := len(raw) - raw.count(self.fill):
                    return f"it wrote {count} bytes {where} a tensor of {size} bytes, to memory that is not its own"
        return ""


def _write_freed_memory(sizes: Sequence[int], fill: int, target: str) -> None:
    """Write a byte all over memory that the allocators are likely to hand out next for tensors of some sizes, and free
    it."""
    import torch

    for size in sizes:
        blocks = [np.full(size, fill, np.uint8) for _ in range(FREED)]
        tensors = [torch.full((size,), fill, dtype=torch.uint8, device=target) for _ in range(FREED)]
        del blocks, tensors


@contextlib.contextmanager
def _fill_new_memory(fill: int | None) -> Iterator[None]:
    """NumPy's functions that hand out memory as it is write a byte all over it; None for as they are."""
    if fill is None:
        yield
        return
    own = {name: getattr(np, name) for name in ("empty", "empty_like")}

    def filled(make: Callable[..., np.ndarray], fill: int) -> Callable[..., np.ndarray]:
        def empty(*args: Any, **kwargs: Any) -> np.ndarray:
            made = make(*args, **kwargs)
            if not made.dtype.hasobject and made.flags.forc:
                made.ravel(order="K").view(np.uint8)[...] = fill
            return made

        return empty

    try:
        for name, make in own.items():
            setattr(np, name, filled(make, fill))
        yield
    finally:
        for name, make in own.items():
            setattr(np, name, make)


def _spoil_input_memory(inputs: Any, outputs: Sequence[Any]) -> None:
    """Overwrite inputs, but those whose memory an output shares, which may be allowed."""
    import torch

    shared = set()
    for x in outputs:
        with contextlib.suppress(Exception):  # of what has no memory
            shared.add(torch.Tensor.untyped_storage(x).data_ptr())
    for x in inputs:
        if x.untyped_storage().data_ptr() not in shared and x.numel():
            x.view(-1).view(torch.uint8).fill_(0xFF)


def _compute_on_stream(compute: Callable[[], list[Any]], late: Sequence[tuple[Any, Any]]) -> list[Any]:
    """What a call returns on a stream of its own, which is busy when it is made and copies the inputs before it; the
    outputs are copied on that stream behind it, and it alone is waited for."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY)
        for there, values in late:
            there.copy_(values)
        outputs = [x.clone() if isinstance(x, torch.Tensor) else x for x in compute()]
    stream.synchronize()
    kept = [x.cpu() if isinstance(x, torch.Tensor) else x for x in outputs]
    torch.cuda.synchronize()
    return kept


# --- outputs ------------------------------------------------------------------------------------------------------


def _read_torch_output(x: Any) -> np.ndarray:
    """An output as an array of its own, from memory. Raises Misbehaviour where the memory of an object does not hold
    what it shows."""
    import torch

    if not isinstance(x, torch.Tensor) or (type(x) is torch.Tensor and not vars(x)):
        return np.array(torch_tree.make_output_array(torch_tree.dense(x)))
    name = type(x).__qualname__
    try:
        with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
            shape, strides, dtype = torch.Tensor.size(x), torch.Tensor.stride(x), torch.Tensor.dtype.__get__(x)
            storage, offset = torch.Tensor.untyped_storage(x), torch.Tensor.storage_offset(x)
            reach = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides))
            if 0 not in shape and storage.nbytes() < reach * dtype.itemsize:
                raise ValueError("too little memory")
            plain = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, strides)
            held = np.array(torch_tree.make_output_array(torch_tree.dense(plain)))
    except Exception:
        raise Misbehaviour(
            KIND_LAZY, f"the output is a {name} without memory: it is computed when it is read"
        ) from None
    try:
        shown = np.array(torch_tree.make_output_array(torch_tree.dense(x)))
    except Exception:
        return held
    if shown.tobytes() != held.tobytes():
        raise Misbehaviour(
            KIND_LAZY, f"the output is a {name} whose memory is not what it shows when it is read: it is computed then"
        )
    return held


# --- what a call does ---------------------------------------------------------------------------------------------


def _watch_operations(zones: _GuardZones) -> Any:
    """A dispatch mode that counts operations, and guards memory that is handed out unwritten."""
    return _make_watch_class()(zones)


@functools.cache
def _make_watch_class() -> type[Any]:
    """Made once: a class takes longer to make than a small kernel to run."""

    class Watch(make_dispatch_mode()):  # type: ignore[misc]
        def __init__(self, zones: _GuardZones) -> None:
            super().__init__()
            self.operations, self._zones = 0, zones

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.operations += 1
            made, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
            return self._zones.guard(made) if name in _UNWRITTEN and self._zones.fill is not None else made

    return Watch


def _profile_operations() -> Any:
    """torch's profiler, which sees operations that no dispatch mode does: those of other threads, and where Python's
    dispatch is off."""
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    try:
        every = _ExperimentalConfig(profile_all_threads=True)
    except TypeError:  # an older torch looks at the thread that asks
        every = None
    return profile(activities=[ProfilerActivity.CPU], experimental_config=every)


def _find_forbidden_operation(profiled: Any, forbidden: Sequence[str]) -> str:
    """The first operation of a profile that is forbidden, as aten::NAME; "" for none."""
    names = {name.strip("_") for name in forbidden}
    called = (event.name for event in profiled.events())
    return next((x for x in called if x.startswith("aten::") and x.removeprefix("aten::").strip("_") in names), "")


#: The code of the tracer that was there before any kernel: a debugger's, which may lie anywhere.
_TRACERS = frozenset({getattr(sys.gettrace(), "__code__", None)} - {None})


class _AutogradLines:
    """Counts the lines of code that are run which are no library's."""

    def __init__(self) -> None:
        self.count = 0
        #: Whether a tracer was put in the place of this one while it counted.
        self.was_replaced = False
        self._open = set[int]()

    def __enter__(self) -> _AutogradLines:
        before = sys.gettrace()
        code = getattr(before, "__code__", None)
        # A debugger, or who measures coverage, goes on undisturbed; what a kernel has set does not.
        self._counts = before is None or (foreign.is_code_of_user(code) and code not in _TRACERS)
        if self._counts:
            sys.settrace(self._enter_frame)
        return self

    def __exit__(self, *_: object) -> None:
        if self._counts:
            self.was_replaced |= sys.gettrace() != self._enter_frame or bool(self._open)
            sys.settrace(None)

    def _enter_frame(self, frame: FrameType, event: str, _: Any) -> Any:
        if not foreign.is_code_of_user(frame.f_code):
            return None
        self._open.add(id(frame))
        return self._count_line

    def _count_line(self, frame: FrameType, event: str, _: Any) -> Any:
        self.count += event == "line"
        if event == "return":  # also where it raises or yields
            self._open.discard(id(frame))
            self.was_replaced |= not frame.f_trace_lines
        return self._count_line
