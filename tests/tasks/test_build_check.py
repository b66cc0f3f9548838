"""The build check: a program is made of the samples of the forward check, not run, and no evidence of numbers."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import checks, wire
from tasks.backends import BackendSpec, triton
from tasks.backends.base import Backend
from tasks.judge import policy_files
from tasks.model import Form, Group, Program, RuntimeInfo, Unsupported
from tasks.prepare.cases import PreparedGroup, find_pack_path, make_pack_key, prepare_group
from tasks.runner import Runner, make_item_of_whole_group

GROUP = Group("critical:softmax", "", "float32", 2)


class Compiler(Backend):
    """Builds for a device that is not there."""

    forms = ("torch",)
    checks: tuple[str, ...] = ("build",)

    def __init__(self, raised: Exception | None = None, fallback: str | None = None) -> None:
        super().__init__("compiler-gpu", "gpu", {})
        self.raised, self.fallback, self.seen = raised, fallback, []

    def build(self, form: Form) -> Program:
        self.seen.append((form.check, form.op, len(form.arrays)))
        if self.raised:
            raise self.raised
        return Program(lambda: pytest.fail("what is only built was run"), "nowhere", self.fallback, "target=gpu")


def rows(backend: Backend, cache: Path, check: str = "build") -> list[dict[str, Any]]:
    _, made = prepare_group(Group(GROUP.op, "", "float32", 2, check=check), cache)
    return run(backend, PreparedGroup(made.pack.path, check))


def run(backend: Backend, prepared: PreparedGroup) -> list[dict[str, Any]]:
    runner = Runner(backend, RuntimeInfo("1", "none"), policy_files.load_policy("error_units"), lambda *step: None)
    return [done.row.values() for done in runner.run([make_item_of_whole_group(prepared)])]


def test_a_program_that_is_built_passes_without_being_run(tmp_path: Path) -> None:
    backend = Compiler()
    made = rows(backend, tmp_path)
    assert [r["status"] for r in made] == ["pass", "pass"] and {r["check"] for r in made} == {"build"}
    assert {(r["stage"], r["placement"], r["flags"]) for r in made} == {("", "nowhere", "target=gpu")}
    assert all(r["weak"] and r["oracle"] == "" and r["run_ms"] is None and r["build_ms"] is not None for r in made)
    assert all(r.get("error_units") is None and r.get("max_diff") is None for r in made)
    assert backend.seen == [("forward", "critical:softmax", 1)] * 2  # what would be computed


@pytest.mark.parametrize(
    ("raised", "status", "stage"),
    [
        (Unsupported("no such op"), "unsupported", "build"),
        (ValueError("bad tile"), "error", "build"),
        (MemoryError(), "oom", "build"),
    ],
)
def test_what_goes_wrong_in_building(tmp_path: Path, raised: Exception, status: str, stage: str) -> None:
    row = rows(Compiler(raised), tmp_path)[0]
    assert (row["status"], row["stage"], row["check"]) == (status, stage, "build")


def test_a_program_for_elsewhere_is_a_fallback(tmp_path: Path) -> None:
    row = rows(Compiler(fallback="built for the CPU"), tmp_path)[0]
    assert (row["status"], row["error"]) == ("fallback", "built for the CPU")


def test_what_only_builds_runs_nothing_and_the_other_way_round(tmp_path: Path) -> None:
    row = rows(Compiler(), tmp_path, "forward")[0]
    assert row["status"] == "unsupported" and "does not run the forward check" in row["error"]

    class Runs(Compiler):
        checks = ("forward",)

    row = rows(Runs(), tmp_path)[0]
    assert row["status"] == "unsupported" and "does not run the build check" in row["error"]


def test_forward_and_build_share_their_pack(tmp_path: Path) -> None:
    build = Group(GROUP.op, "", "float32", 2, check="build")
    assert (
        make_pack_key(build) == make_pack_key(GROUP)
        and build.case_id(0) != GROUP.case_id(0)
        and build.unit != GROUP.unit
    )
    name, made = prepare_group(build, tmp_path)
    assert Path(made.pack.path) == find_pack_path(tmp_path, name) and made.group.check == "forward"
    assert make_pack_key(Group("torch:exp", "", "float32", 2, check="backward")) != make_pack_key(
        Group("torch:exp", "", "float32", 2)
    )


def test_what_this_process_has_read_is_not_read_again(tmp_path: Path) -> None:
    made = PreparedGroup(prepare_group(GROUP, tmp_path)[1].pack.path, "build")
    Path(made.pack.path).unlink()
    assert [r["status"] for r in run(Compiler(), made)] == ["pass", "pass"]
    asked = wire.Run((make_item_of_whole_group(made),), (), ())
    assert (
        wire.decode_wire_message(wire.encode_wire_message(asked)) == asked
    )  # and another process can be asked for it as well


class Joint(Compiler):
    """Builds all samples at once, and says how many."""

    checks = ("forward",)
    joint = True

    def build_all(self, forms: Sequence[Form]) -> list[Program | Exception]:
        return [Program(lambda: [np.zeros((8, 1024), np.float32)], f"joint {len(forms)}") for _ in forms]


@pytest.mark.parametrize("joint", [True, False])
def test_a_check_that_builds_otherwise_is_asked_for_each_sample(
    tmp_path: Path, joint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(checks.Check):
        name = "other"

        def build(self, backend: Backend, form: Form) -> Program:
            raise Unsupported("not by this check")

    monkeypatch.setitem(checks.BUILT_IN, "other", Other())
    checks.get_check.cache_clear(), checks.get_check_or_default.cache_clear()
    backend = Joint() if joint else type("Single", (Compiler,), {"checks": ("forward",)})()
    made = rows(backend, tmp_path, "other")
    assert [(r["status"], r["stage"], r["error"]) for r in made] == [("unsupported", "build", "not by this check")] * 2
    if joint:
        assert {r["placement"] for r in rows(backend, tmp_path, "forward")} == {"joint 2"}


def test_a_kernel_compiles_if_one_of_its_configurations_does() -> None:
    """As an autotuner takes it: a configuration that needs more than the GPU has is left out."""
    spec = BackendSpec.parse("triton-sm_90")
    made = spec.create()
    assert made.checks == ("build",) and made.device_vendor == "" and made.resource == "CPU"

    def too_large() -> None:
        raise RuntimeError("out of resource: shared memory")

    assert triton._keep_triton_compilations([too_large, lambda: "code", too_large]) == ["code"]
    assert triton._keep_triton_compilations([]) == []
    with pytest.raises(RuntimeError, match="shared memory"):
        triton._keep_triton_compilations([too_large, too_large])
    with pytest.raises(ValueError, match="its device is one of sm_90, sm_100, gfx942, gfx950"):
        BackendSpec.parse("triton-sm_70").create()


@pytest.mark.parametrize(
    ("device", "kib", "fits"), [("sm_90", 192, True), ("gfx942", 64, True), ("gfx942", 128, False)]
)
def test_a_kernel_without_room_for_its_shared_memory_is_refused(
    device: str, kib: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling says nothing of it: Triton asks for the memory where it loads a kernel."""

    class OutOfResources(Exception):
        pass

    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.runtime", types.ModuleType("triton.runtime"))
    monkeypatch.setitem(sys.modules, "triton.runtime.errors", types.SimpleNamespace(OutOfResources=OutOfResources))
    kernel = types.SimpleNamespace(metadata=types.SimpleNamespace(shared=kib << 10))
    if fits:
        assert triton._fit_kernel_to_target(triton.TARGETS[device], kernel) is kernel
    else:
        with pytest.raises(OutOfResources):
            triton._fit_kernel_to_target(triton.TARGETS[device], kernel)
