"""The checks that build or run a program more than once, each with a planted fault beside its sound twin."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.checks.replay import _make_other_inputs
from tasks.judge import policy_files
from tasks.model import Form, Group, Program, RuntimeInfo, Unsupported
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.runner import Runner, make_item_of_whole_group

SOFTMAX = Group("onnx:Softmax", "softmax_default_axis", "float32", 1)
Kernel = Callable[[list[np.ndarray]], list[np.ndarray]]


def softmax(arrays: list[np.ndarray]) -> list[np.ndarray]:
    wide = np.exp(arrays[0].astype(np.float64) - arrays[0].max(-1, keepdims=True))
    return [(wide / wide.sum(-1, keepdims=True)).astype(np.float32)]


def dropped(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Without its last node, the division."""
    return [np.exp(arrays[0] - arrays[0].max(-1, keepdims=True))]


def coarse(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [x.astype(np.float16).astype(np.float32) for x in softmax(arrays)]


def broken(arrays: list[np.ndarray]) -> list[np.ndarray]:
    raise RuntimeError("kernel missing")


class Planted(Backend):
    """Runs a kernel per level, made anew for each program; ``again`` and ``threads`` as a runtime would promise."""

    forms = ("onnx",)

    def __init__(self, *levels: Callable[[], Kernel], threads: bool = True, refusing: str = "") -> None:
        super().__init__("planted-cpu", "cpu", {})
        self.ladder, self.safe, self.refusing, self.level = levels, threads, refusing, len(levels) - 1

    def levels(self) -> Mapping[str, Backend]:
        return {f"O{i}": self.but(level=i) for i in range(len(self.ladder))} if len(self.ladder) > 1 else {}

    def build(self, form: Form) -> Program:
        if f"O{self.level}" == self.refusing:
            raise Unsupported("not at this level")
        kernel = self.ladder[self.level]()
        return Program(
            lambda: kernel(form.arrays), f"O{self.level}", None, "own=1", lambda x: lambda: kernel(x), self.safe
        )


def row(backend: Backend, check: str, cache: Path, group: Group = SOFTMAX) -> dict[str, Any]:
    _, made = prepare_group(Group(group.op, group.variant, group.dtype, 1, check=check), cache)
    info = RuntimeInfo("1", "cpu")
    runner = Runner(backend, info, policy_files.load_policy("error_units"), lambda *step: None)
    return next(iter(runner.run([make_item_of_whole_group(PreparedGroup(made.pack.path, check))]))).row.values()


# -- levels ---------------------------------------------------------------------------------------------------------


def sound() -> Kernel:
    return softmax


def test_the_first_level_that_is_wrong_is_to_blame(tmp_path: Path) -> None:
    made = row(Planted(sound, sound, lambda: dropped, lambda: dropped), "levels", tmp_path)
    assert (made["status"], made["culprit"], made["placement"]) == ("wrong", "level O2", "O3")
    assert made["error"] == "level O2 is wrong, level O0, level O1 not"
    assert made["flags"] == "own=1 levels=O0,O1,O2,O3 changed=O2,O3" and made["error_units"] > 32
    made = row(Planted(sound, lambda: coarse, lambda: dropped), "levels", tmp_path)
    assert (made["status"], made["culprit"]) == ("wrong", "level O2")
    made = row(Planted(sound, lambda: coarse, lambda: coarse), "levels", tmp_path)
    assert (made["status"], made["culprit"]) == ("imprecise", "level O1")


def racing(*wrong: int) -> Callable[[], Kernel]:
    """A kernel whose every run gives other bytes, and those of the numbers in ``wrong`` (of all levels together) are
    wrong."""
    runs = [0]

    def run(arrays: list[np.ndarray]) -> list[np.ndarray]:
        runs[0] += 1
        made = dropped(arrays) if runs[0] in wrong else softmax(arrays)
        return [x * np.float32(1 + runs[0] * 2.0**-23) for x in made]

    return lambda: run


@pytest.mark.parametrize("wrong", [(2,), (2, 3), (2, 4), (1,), (3,)])
def test_no_level_is_blamed_for_an_op_that_gives_other_bytes_each_time(wrong: tuple[int, ...], tmp_path: Path) -> None:
    kernel = racing(*wrong)
    made = row(Planted(kernel, kernel), "levels", tmp_path)
    assert (made["status"], made["kind"], made["culprit"]) == ("wrong", "nondeterministic", "")
    assert "give other bytes" in made["error"] and made["flags"].endswith("changed=O1 unsteady=O0,O1")


def test_a_level_that_is_wrong_each_time_is_to_blame_however_it_wobbles(tmp_path: Path) -> None:
    made = row(Planted(sound, racing(1, 2)), "levels", tmp_path)
    assert (made["status"], made["culprit"]) == ("wrong", "level O1")
    assert made["flags"].endswith("changed=O1 unsteady=O1")
    made = row(Planted(racing(), lambda: dropped), "levels", tmp_path)
    assert (made["status"], made["culprit"]) == ("wrong", "level O1")


def test_levels_that_wobble_within_the_floor_pass(tmp_path: Path) -> None:
    kernel = racing()
    assert row(Planted(kernel, kernel), "levels", tmp_path)["status"] == "pass"


def test_sound_levels_pass_and_one_that_is_wrong_at_all_of_them_is_no_levels_fault(tmp_path: Path) -> None:
    made = row(Planted(sound, sound), "levels", tmp_path)
    assert (made["status"], made["culprit"], made["flags"]) == ("pass", "", "own=1 levels=O0,O1 changed=none")
    made = row(Planted(lambda: dropped, lambda: dropped), "levels", tmp_path)
    assert (made["status"], made["culprit"], made["error"]) == ("wrong", "", "")


def test_a_level_that_fails_where_another_runs_is_to_blame(tmp_path: Path) -> None:
    made = row(Planted(sound, lambda: broken), "levels", tmp_path)
    assert (made["status"], made["stage"], made["culprit"]) == ("error", "run", "level O1")
    made = row(Planted(lambda: broken, sound), "levels", tmp_path)
    assert (made["status"], made["culprit"], made["error"]) == ("error", "level O0", "kernel missing")


def test_a_level_may_say_that_it_does_not_do_this(tmp_path: Path) -> None:
    made = row(Planted(sound, sound, sound, refusing="O1"), "levels", tmp_path)
    assert (made["status"], made["flags"]) == ("pass", "own=1 levels=O0,O2 changed=none")
    made = row(Planted(sound, sound, refusing="O1"), "levels", tmp_path)
    assert (made["status"], made["error"]) == ("unsupported", "not at this level")


def test_a_backend_without_levels_says_so(tmp_path: Path) -> None:
    made = row(Planted(sound), "levels", tmp_path)
    assert made["status"] == "unsupported" and "no optimisation levels" in made["error"]


@pytest.mark.parametrize("name", ["ort-cpu", "openvino-cpu"])
def test_levels_of_real_runtimes(name: str, tmp_path: Path) -> None:
    backend = BackendSpec.parse(name).create()
    backend.start()
    made = row(backend, "levels", tmp_path)
    assert made["status"] == "pass" and "levels=disable," in made["flags"] and ",all" in made["flags"]


def test_the_ladder_ends_at_the_level_that_is_asked_for() -> None:
    backend = BackendSpec.parse("ort-cpu", options={"graph_optimization": "basic"}).create()
    levels = backend.levels()
    assert list(levels) == ["disable", "basic"] and levels["basic"] is backend


# -- replay ---------------------------------------------------------------------------------------------------------


def counting() -> Kernel:
    """Gives another result from the second run on, as one that adds to what it returned before."""
    runs = [0]

    def run(arrays: list[np.ndarray]) -> list[np.ndarray]:
        runs[0] += 1
        return [x * np.float32(1 + (runs[0] > 1) * 2.0**-23) for x in softmax(arrays)]

    return run


def keeping() -> Kernel:
    """Gives the same until it is run on other inputs: what it then computed stays with it."""
    kept: list[tuple[bytes, list[np.ndarray]]] = []

    def run(arrays: list[np.ndarray]) -> list[np.ndarray]:
        seen = arrays[0].tobytes()
        if not kept or (len(kept) == 1 and kept[0][0] != seen):
            kept.append((seen, softmax(arrays)))
        return kept[-1][1]

    return run


def sharing() -> Kernel:
    """Has one scratch buffer for all its runs: sound one after another, not beside each other."""
    scratch: list[np.ndarray] = []
    met = threading.Barrier(2)

    def run(arrays: list[np.ndarray]) -> list[np.ndarray]:
        scratch[:] = arrays[:1]
        if threading.current_thread() is not threading.main_thread():
            met.wait(timeout=30)  # both have written
        return softmax(scratch)

    return run


def replayed(kernel: Callable[[], Kernel], cache: Path, **options: Any) -> dict[str, Any]:
    return row(Planted(kernel, **options), "replay", cache)


def test_a_sound_program_replays(tmp_path: Path) -> None:
    made = replayed(sound, tmp_path)
    assert (made["status"], made["flags"]) == ("pass", "own=1 replay=3,other,threads")
    made = replayed(sound, tmp_path, threads=False)
    assert (made["status"], made["flags"]) == ("pass", "own=1 replay=3,other")


@pytest.mark.parametrize(
    ("kernel", "kind", "text"),
    [
        (counting, "nondeterministic", "in run 2 on the same inputs"),
        (keeping, "state", "after a run on other inputs"),
        (sharing, "threads", "while another thread"),
    ],
)
def test_a_program_that_gives_other_bytes_is_found_out(
    kernel: Callable[[], Kernel], kind: str, text: str, tmp_path: Path
) -> None:
    made = replayed(kernel, tmp_path)
    assert (made["status"], made["kind"]) == ("wrong", kind) and text in made["error"]
    assert made["error_units"] is not None and made["error_units"] < 32  # the first run's numbers are right


def test_threads_are_not_used_where_the_runtime_does_not_promise_them(tmp_path: Path) -> None:
    assert replayed(sharing, tmp_path, threads=False)["status"] == "pass"


def test_an_op_that_draws_at_random_is_not_replayed(tmp_path: Path) -> None:
    backend = BackendSpec.parse("ort-cpu").create()
    backend.start()
    made = row(backend, "replay", tmp_path, Group("onnx:Bernoulli", "bernoulli_double", "float32", 1))
    assert made["status"] == "vacuous" and "random" in made["error"]


@pytest.mark.parametrize("name", ["ort-cpu", "openvino-cpu", "torch-cpu"])
def test_real_runtimes_replay(name: str, tmp_path: Path) -> None:
    backend = BackendSpec.parse(name).create()
    backend.start()
    group = Group("critical:softmax", "", "float32", 1) if name == "torch-cpu" else SOFTMAX
    made = row(backend, "replay", tmp_path, group)
    assert made["status"] == "pass" and "replay=3,other,threads" in made["flags"]


def outputs(program: Program) -> Sequence[Any]:
    assert program.again is not None
    return program.again([np.zeros((3, 4, 5), np.float32)])


@pytest.mark.parametrize("name", ["ort-cpu", "openvino-cpu"])
def test_a_program_is_run_on_other_inputs(name: str, tmp_path: Path) -> None:
    backend = BackendSpec.parse(name).create()
    backend.start()
    _, made = prepare_group(SOFTMAX, tmp_path)
    program = backend.build(made.samples[0].form("onnx"))
    assert np.allclose(outputs(program)[0], 1 / 5) and not np.allclose(program.run()[0], 1 / 5)


def test_other_inputs_are_as_valid_as_the_first_ones() -> None:
    data, sizes = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 4])
    changed, same = _make_other_inputs([data, sizes])
    assert changed.tolist() == [[2.5, 2.0, 1.5], [1.0, 0.5, 0.0]] and same is sizes
    scales = np.array([2.0, 4.0], np.float32)
    assert _make_other_inputs([data, scales])[1] is scales and _make_other_inputs([scales, sizes])[0].tolist() == [
        2.0,
        1.0,
    ]


@pytest.mark.parametrize("variant", ["Cast.cast_INT4_to_FLOAT", "QuantizeLinear.quantizelinear_uint4"])
def test_packed_inputs_live_as_long_as_their_program(variant: str, tmp_path: Path) -> None:
    """OpenVINO's tensors do not hold the memory of packed elements: it was used after it had been freed."""
    backend = BackendSpec.parse("openvino-cpu").create()
    backend.start()
    op, case = variant.split(".")
    dtype = "int4" if op == "Cast" else "float32"
    made = [row(backend, "replay", tmp_path, Group(f"onnx:{op}", case, dtype, 1)) for _ in range(3)]
    assert {x["status"] for x in made} == {"pass"}, made[0]["error"]
