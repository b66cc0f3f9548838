"""What a kernel of the user's is timed against: its baseline, on inputs that nobody has met, and what is found out on the way."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasks.backends import BackendSpec
from tasks.backends.shared import ceilings, torch_timing
from tasks.catalogs.user import load_kernels
from tasks.catalogs.user.ops import UserOp
from tasks.checks import paired_timing, speedup
from tasks.judge import policy_files
from tasks.model import Group
from tasks.model.row import Row
from tasks.prepare.cases import prepare_group
from tasks.run_queue import RunQueueClock
from tasks.runner import Runner, make_item_of_whole_group

torch = pytest.importorskip("torch")

INPUTS = {"x": ["N", 64]}


def in_torch(x: Any) -> Any:
    return torch.softmax(x, -1)


def in_numpy(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def same(x: Any) -> Any:
    return torch.softmax(x, -1)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_timing, "MOST", paired_timing.FEWEST)
    monkeypatch.setattr(speedup, "EMPTYING", 0.0)  # to empty 480 MB of cache 66 times takes more than all else


@pytest.fixture
def no_ceilings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of its own for a test that says itself what is measured. All others share what was measured once: it
    takes seconds, and whatever a kernel does to its clock, a ceiling is measured by another."""
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "ceilings"))


def judge(tmp_path: Path, kernel: Any, reference: Any = in_torch, rows: int = 32, **declared: Any) -> Row:
    """The row of the check speedup of one case of a kernel."""
    if reference is in_torch:
        declared.setdefault("reference_framework", "torch")
    op = UserOp("op", kernel, reference, declared.pop("inputs", INPUTS), {"N": [rows]}, **declared)
    with load_kernels.lend_op(op, str(tmp_path)):
        prepared = prepare_group(Group("user:op", "", "float32", 1, check="speedup"), tmp_path / "cache")[1]
        backend = BackendSpec.parse("torch-cpu").create()
        prepared.check = "speedup"
        runner = Runner(
            backend, backend.start(), policy_files.load_policy("error_units"), lambda number, stage, span: None
        )
        (done,) = runner.run([make_item_of_whole_group(prepared)])
    return done.row


def of_keys(key: Callable[[Any], Any]) -> Callable[..., Any]:
    """A softmax that keeps its results by what ``key`` says of its input."""
    kept: dict[Any, Any] = {}

    def kernel(x: Any) -> Any:
        if key(x) not in kept:
            kept[key(x)] = torch.softmax(x, -1)
        return kept[key(x)].clone()

    return kernel


def test_a_reference_in_torch_is_the_baseline_and_the_row_has_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.backends.torch import TorchEager

    monkeypatch.setattr(speedup, "EMPTYING", 4.0)
    monkeypatch.setattr(TorchEager, "cache_bytes", lambda self: 16 << 20)  # of this machine it may be 480 MB
    row = judge(tmp_path, same)
    assert (row.status, row.baseline) == ("pass", "eager"), row.error
    assert row.call_ms and row.cold_call_ms and row.moved_bytes == 2 * 32 * 64 * 4
    assert "speedup_null=" in str(row.flags) and "cold_speedup_null=" in str(row.flags)


def test_caches_that_take_longer_to_empty_than_the_race_may_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.backends.torch import TorchEager

    monkeypatch.setattr(speedup, "EMPTYING", 4.0)
    monkeypatch.setattr(TorchEager, "cache_bytes", lambda self: 8 << 30)
    row = judge(tmp_path, same)
    assert row.status == "pass" and row.call_ms and row.cold_call_ms is None and row.cold_speedup is None


@pytest.mark.parametrize(("on_cpu", "cold"), [(True, False), (False, True)])
def test_a_devices_cache_is_not_emptied_by_one_thread_of_a_processor(
    on_cpu: bool, cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speedup, "EMPTYING", 4.0)
    race = speedup.SpeedupRace(list, eager=lambda arrays: list, arrays=[np.ones(4)], on_cpu=on_cpu, cache_bytes=1 << 29)
    form: Any = SimpleNamespace(race_s=0.3)
    assert speedup._RaceWatch(race, form).cold is cold


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        ({}, "numpy"),
        ({"baseline": "eager"}, "eager"),
        ({"baseline": same}, f"{__name__}:same"),
        (
            {
                "baseline": "torch.nn.functional:relu",
                "reference": lambda x: np.maximum(x, 0),
                "kernel": lambda x: torch.clamp(x, min=0),
            },
            "torch.nn.functional:relu",
        ),
    ],
)
def test_a_declaration_names_the_baseline(tmp_path: Path, declared: dict[str, Any], name: str) -> None:
    if name.endswith("relu"):
        declared |= {
            "inputs": {"input": ["N", 64]},
            "reference": lambda input: np.maximum(input, 0),
            "kernel": lambda input: input.clamp(min=0),
        }
    row = judge(tmp_path, declared.pop("kernel", same), declared.pop("reference", in_numpy), **declared)
    assert (row.status, row.baseline) == ("pass", name), row.error


def test_a_kernel_of_arrays_is_timed_against_its_reference_of_arrays(tmp_path: Path) -> None:
    row = judge(tmp_path, lambda x: in_numpy(x), in_numpy, framework="numpy")
    assert (row.status, row.baseline) == ("pass", "numpy"), row.error


def test_a_reference_that_computes_wider_is_rounded_as_the_kernel_is(tmp_path: Path) -> None:
    row = judge(tmp_path, same, lambda x: in_numpy(x.astype(np.float64)))
    assert row.status == "pass", row.error


@pytest.mark.parametrize(
    ("baseline", "says"),
    [
        (lambda x: torch.softmax(x, 0), "is itself wrong"),
        (lambda x: torch.softmax(x, -1)[:1], "is itself wrong"),
        (lambda x: torch.softmax(x.half(), -1), "is itself wrong"),
        (lambda x: x.no_such_method(), "does not run: AttributeError"),
    ],
)
def test_a_baseline_that_is_wrong_is_one_line_and_nothing_is_timed(tmp_path: Path, baseline: Any, says: str) -> None:
    row = judge(tmp_path, same, baseline=baseline)
    assert (row.status, row.kind) == ("invalid", "baseline") and says in str(row.error), row.error
    assert "\n" not in str(row.error) and row.speedup is None


def test_a_script_has_no_time_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text("import sys, numpy as np\n")
    from tasks.catalogs.user.declaration_schema import list_declaration_mistakes

    op = UserOp("op", same, "right.py", INPUTS, {"N": [3]}, baseline="eager")
    assert [text for _, text in list_declaration_mistakes(op)] == [
        "the reference is a script, which cannot be timed: name a function (module:function)"
    ]


@pytest.mark.parametrize(
    ("declared", "key", "says"),
    [
        ({"baseline": "egaer"}, "baseline", "did you mean eager"),
        ({"baseline": "numpy", "reference_framework": "torch"}, "baseline", "eager times that"),
        ({"moved": "2*M"}, "bytes", "unknown dimension 'M'"),
        ({"moved": 0}, "bytes", "no size"),
        ({"flops": "N-100"}, "flops", "where N is 3: no size"),
        ({"flops": "N**2"}, "flops", "only + - * //"),
    ],
)
def test_bad_declarations_are_one_line_at_their_key(declared: dict[str, Any], key: str, says: str) -> None:
    from tasks.catalogs.user.declaration_schema import list_declaration_mistakes

    found = list(list_declaration_mistakes(UserOp("op", same, in_numpy, INPUTS, {"N": [3]}, **declared)))
    assert len(found) == 1 and found[0][0] == (key,) and says in found[0][1], found


# --- what is found out ----------------------------------------------------------------------------------------------


def test_results_kept_by_shape_are_found(tmp_path: Path) -> None:
    row = judge(tmp_path, of_keys(lambda x: tuple(x.shape)))
    assert row.status == "wrong" and row.kind in ("kept", "other inputs"), row.error


def test_results_kept_by_content_gain_nothing(tmp_path: Path) -> None:
    row = judge(tmp_path, of_keys(lambda x: x.numpy().tobytes()))
    assert row.status == "pass", row.error
    assert row.speedup is None or row.speedup_low is None or row.speedup_low < 1.05


def test_work_that_is_not_waited_for_is_found(tmp_path: Path) -> None:
    def late(x: Any) -> Any:
        made, given = torch.zeros_like(x), x.clone()

        def work() -> None:
            time.sleep(0.003)
            made.copy_(torch.softmax(given, -1))

        thread = threading.Thread(target=work)
        thread.start()
        if not timed():
            thread.join()
        return made

    def timed() -> bool:
        import sys

        frame: Any = sys._getframe()
        while frame is not None:
            if frame.f_code.co_name == "_time_torch_call":
                return True
            frame = frame.f_back
        return False

    row = judge(tmp_path, late)
    assert (row.status, row.kind) == ("wrong", "late"), row.error


def test_a_kernel_that_is_right_where_it_is_not_timed_is_judged_where_it_is(tmp_path: Path) -> None:
    """What it returns in a timed call is near the right result, which only float64 tells from it."""
    import sys

    def coarse(x: Any) -> Any:
        frame: Any = sys._getframe()
        while frame is not None and frame.f_code.co_name != "_time_torch_call":
            frame = frame.f_back
        return torch.softmax(x, -1) if frame is None else torch.softmax(x.bfloat16(), -1).float()

    row = judge(tmp_path, coarse)
    assert (row.status, row.kind) == ("wrong", "other inputs") and "timed is wrong" in str(row.error), row.error


def test_a_tensor_that_computes_when_it_is_read_is_timed_until_it_was(tmp_path: Path) -> None:
    class Lazy(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            return super().__torch_function__(func, types, args, kwargs or {})

    read: list[float] = []

    class Slow(Lazy):
        def numpy(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(0.01)
            read.append(time.perf_counter())
            return torch.Tensor.numpy(self.as_subclass(torch.Tensor), *args, **kwargs)

    x = torch.rand(4, 4)
    _, (wall_s, *_) = torch_timing._time_torch_call(
        lambda x: torch.softmax(x, -1).as_subclass(Slow), (x,), {}, "cpu", False, RunQueueClock()
    )
    assert read and wall_s >= 0.01


@pytest.fixture
def clock_that_lies() -> Iterator[Callable[[Any], Any]]:
    """A kernel that replaces the clock of the process that runs it."""
    before = torch_timing._wall
    now = [0.0]

    def lies() -> float:
        now[0] += 1e-9
        return now[0]

    def kernel(x: Any) -> Any:
        torch_timing._wall = lies  # type: ignore[assignment]
        return x * 2

    yield kernel
    torch_timing._wall = before


@pytest.mark.usefixtures("no_ceilings")
def test_a_call_faster_than_memory_is_wrong(
    tmp_path: Path, clock_that_lies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its inputs and outputs are larger than the last cache. The clock was the baseline's as well until it was first
    called."""
    monkeypatch.setattr(speedup.roofline, "TRIED", 2)
    # It is measured once more before anybody is blamed; what a cache gives is a ceiling as well.
    monkeypatch.setattr(ceilings.caches, "last_level_bytes", lambda *target: 16 << 20)
    monkeypatch.setattr(ceilings, "SECONDS", 0.0)
    row = judge_with_small_cache(tmp_path, clock_that_lies, monkeypatch)
    assert (row.status, row.kind) == ("wrong", "roofline") and "faster than the device" in str(row.error), row.error


def test_the_share_of_the_roofline_is_of_the_time_that_is_believed(tmp_path: Path, clock_that_lies: Any) -> None:
    """It says nanoseconds of what fits into a cache, of which some thousand times the roofline would be shown."""
    row = judge(tmp_path, clock_that_lies, lambda x: x * 2)
    assert row.status == "pass" and row.roofline and row.call_ms and row.moved_bytes, row.error
    assert row.call_ms > 1e-4 and row.roofline < row.moved_bytes / 1e9 / (row.call_ms / 1e3), (
        "no memory moves less than 1 GB/s"
    )


@pytest.mark.usefixtures("no_ceilings")
def test_what_its_baseline_does_as_well_is_not_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its inputs lie in a cache, which is larger than anybody says."""
    from tasks.backends.torch import TorchEager

    monkeypatch.setattr(TorchEager, "cache_bytes", lambda self: 1)
    monkeypatch.setattr(ceilings, "measure_device_ceiling", lambda target, what: 1.0)  # bytes a second
    row = judge(tmp_path, lambda x: x * 2, lambda x: x * 2)
    assert row.status == "pass" and row.roofline and row.roofline > 1, row.error


def judge_with_small_cache(tmp_path: Path, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> Row:
    from tasks.backends.torch import TorchEager

    monkeypatch.setattr(TorchEager, "cache_bytes", lambda self: 1 << 12)
    monkeypatch.setattr(speedup, "BASELINE_MARGIN", float("inf"))
    return judge(tmp_path, kernel, lambda x: x * 2, rows=4096)


def test_inputs_that_the_result_does_not_depend_on_need_not_be_read(tmp_path: Path) -> None:
    from tasks.arrays.tree import TensorSpec, encode_argument_tree
    from tasks.checks.roofline import CallWork, drop_unread_work
    from tasks.model import Form

    x, table = np.ones((4, 4), np.float32), np.ones((1000,), np.float32)
    form = Form(
        "torch",
        "user:op",
        "float32",
        [x, table],
        args=encode_argument_tree(()),
        kwargs=encode_argument_tree({"x": TensorSpec(0), "t": TensorSpec(1)}),
    )
    found = drop_unread_work(CallWork((64.0, 4000.0), 64), form, lambda arrays: [arrays[0] + arrays[1][:1]])
    assert found.read == (64.0, 0.0)


def test_products_are_counted_from_shapes_and_a_declaration_counts_instead(tmp_path: Path) -> None:
    inputs = {"a": ["N", 64], "b": [64, 16]}

    def product(a: Any, b: Any) -> Any:
        return a @ b

    row = judge(tmp_path, product, lambda a, b: a @ b, inputs=inputs, baseline="eager")
    assert row.status == "pass", row.error
    assert row.flops == 2 * 32 * 64 * 16 and row.moved_bytes == 4 * (32 * 64 + 64 * 16 + 32 * 16)
    assert row.roofline and row.roofline_low <= row.roofline <= row.roofline_high  # type: ignore[operator]
    row = judge(tmp_path, product, lambda a, b: a @ b, inputs=inputs, moved="N*itemsize", flops="N*3")
    assert (row.moved_bytes, row.flops) == (128, 96), row.error


@pytest.mark.usefixtures("no_ceilings")
def test_the_best_of_what_was_measured_is_kept() -> None:
    measured = iter([5.0, 3.0, 7.0])
    found = [
        ceilings.find_device_ceiling("", "memory", lambda what: next(measured), again)
        for again in (False, False, True, True, False)
    ]
    assert found == [5, 5, 5, 7, 7]


@pytest.mark.usefixtures("no_ceilings")
def test_a_device_without_the_dtype_has_no_ceiling() -> None:
    measure = functools.partial(ceilings.measure_device_ceiling, "cpu")
    assert ceilings.find_device_ceiling("", "no_such_dtype", measure) is None


def test_a_clock_that_the_judge_does_not_share_is_not_believed() -> None:
    fast, slow = [1e-6] * 20, [1e-3] * 20
    inner = {"program": fast, "baseline": slow, "null": slow}
    seen = {"program": [x + 2e-3 for x in fast], "baseline": [x + 1e-5 for x in slow], "null": slow}
    assert speedup._does_race_hide_work(inner, seen, 0.0, math.inf)
    assert not speedup._does_race_hide_work(inner, seen, 0.0, 1e-7), (
        "the system's count of CPU time leaves no room for it"
    )
    honest = {name: [x + 1e-5 for x in times] for name, times in inner.items()}
    assert not speedup._does_race_hide_work(inner, honest, 0.0, math.inf)


# --- a device, whose calls only ask for work
# ---------------------------------------------------------------------------


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Work that was asked of a device, which does it when it is waited for."""
    asked: list[Callable[[], None]] = []

    def synchronize(target: str) -> None:
        while asked:
            asked.pop(0)()

    monkeypatch.setattr(torch_timing, "synchronize_torch_device", synchronize)
    monkeypatch.setattr(torch_timing, "_make_device_events", lambda target: [])
    return asked


@pytest.mark.parametrize("waits", [True, False])
def test_outputs_of_a_stream_that_nobody_waits_for_are_seen_to_change(
    device: list[Callable[[], None]], waits: bool
) -> None:
    def kernel(x: Any) -> Any:
        made = torch.zeros_like(x)
        device.append(lambda: [made.copy_(x * 2)].clear())
        if waits:
            torch_timing.synchronize_torch_device("cuda")
        return made

    x = torch.arange(6.0)
    (at_once, later), _ = torch_timing._time_torch_call(kernel, (x,), {}, "cuda", True, RunQueueClock())
    assert (np.asarray(at_once[0]) == np.asarray(later[0])).all() == waits
    (timed,), _ = torch_timing._time_torch_call(kernel, (x,), {}, "cuda", False, RunQueueClock())
    assert (np.asarray(timed[0]) == 2 * x.numpy()).all(), "else its time is waited for"


@pytest.mark.parametrize(
    "x",
    [
        np.arange(24.0).reshape(2, 3, 4),
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(24.0)[::3],
        np.float32(3.0) * np.ones(()),
        np.zeros((0, 3)),
    ],
)
def test_outputs_are_copied_from_their_end_as_they_are(x: np.ndarray) -> None:
    found = torch_timing._copy_from_end(x)
    assert found.shape == x.shape and found.dtype == x.dtype and (found == x).all() and not np.shares_memory(found, x)


def test_what_is_expanded_lies_in_memory_once() -> None:
    from tasks.checks.roofline import count_call_work
    from tasks.model import Form

    x = np.ones((3, 1), np.float32)
    dense, spread, alone = (
        np.ones((3, 5), np.float32),
        np.broadcast_to(x, (3, 5)),
        np.float32(1) * np.ones((), np.float32),
    )
    form = Form("torch", "user:op", "float32", [], args={"$": "tuple", "v": []}, kwargs={"$": "dict", "v": []})
    assert [count_call_work(form, [y], None).written for y in (dense, spread, alone)] == [60, 12, 4]


def test_outputs_of_which_few_elements_change_are_told_apart_by_the_judge(tmp_path: Path) -> None:
    def sparse(x: Any) -> Any:
        return torch.relu(x - 2)  # of the usual values nearly all are 0

    assert judge(tmp_path, lambda x: sparse(x), sparse, reference_framework="torch").status == "pass"
    kept: list[Any] = []

    def keeps(x: Any) -> Any:
        kept.append(sparse(x))
        return kept[0].clone()

    assert judge(tmp_path, keeps, sparse, reference_framework="torch").status == "wrong"
