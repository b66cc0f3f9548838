"""The check graph, on stand-ins for a device that captures: a replay that heeds no new inputs is found, beside its sound twin."""

from __future__ import annotations

import contextlib
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.backends.shared import torch_graphs
from tasks.checks import explain_check_exclusion
from tasks.judge import policy_files
from tasks.model import Form, Group, Program, RuntimeInfo, Unsupported
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.runner import Runner, make_item_of_whole_group

Replay = Callable[[list[np.ndarray]], list[np.ndarray]]


def relu(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [np.maximum(arrays[0], 0)]


def sound(arrays: list[np.ndarray]) -> Replay:
    held = [x.copy() for x in arrays]

    def replay(new: list[np.ndarray]) -> list[np.ndarray]:
        for old, x in zip(held, new):
            old[...] = x
        return relu(held)

    return replay


def stale(arrays: list[np.ndarray]) -> Replay:
    """New inputs lie where the recording does not look."""
    return lambda new: relu(arrays)


def halved(arrays: list[np.ndarray]) -> Replay:
    """The second half of the batch is that of the recording."""

    def replay(new: list[np.ndarray]) -> list[np.ndarray]:
        mixed = new[0].copy()
        mixed[len(mixed) // 3 :] = arrays[0][len(mixed) // 3 :]
        return relu([mixed])

    return replay


def late(arrays: list[np.ndarray]) -> Replay:
    """Each replay gives the outputs of the inputs before: it does not wait."""
    held = [arrays]

    def replay(new: list[np.ndarray]) -> list[np.ndarray]:
        before, held[0] = held[0], new
        return relu(before)

    return replay


class Capturing(Backend):
    forms = ("torch",)
    captures = True

    def __init__(self, capture: Callable[[list[np.ndarray]], Replay]) -> None:
        super().__init__("capturing-cpu", "cpu", {})
        self.make = capture

    def build(self, form: Form) -> Program:
        def given(arrays: list[Any]) -> Callable[[], list[np.ndarray]]:
            return lambda: relu(arrays)

        return Program(given(form.arrays), given=given, capture=lambda: self.make(form.arrays))


@pytest.mark.parametrize(
    ("capture", "status", "kind"),
    [(sound, "pass", ""), (stale, "wrong", "stale"), (halved, "wrong", "other inputs"), (late, "wrong", "stale")],
)
def test_a_replay_computes_on_the_inputs_that_it_is_given(
    capture: Callable[[list[np.ndarray]], Replay], status: str, kind: str, cache: Path
) -> None:
    _, made = prepare_group(Group("critical:relu", "", "float32", 1), cache)
    runner = Runner(
        Capturing(capture), RuntimeInfo("1", "cpu"), policy_files.load_policy("error_units"), lambda *step: None
    )
    (row,) = (x.row for x in runner.run([make_item_of_whole_group(PreparedGroup(made.pack.path, "graph"))]))
    assert (row.status, row.kind) == (status, kind), row.error
    if status == "pass":
        assert "replayed=same_bytes" in row.flags and row.apart_units == 0


def scalar(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(np.mean(np.square(arrays[0] - arrays[1])))]


def test_a_result_of_no_dimensions_is_compared_too(cache: Path) -> None:
    class Loss(Capturing):
        def build(self, form: Form) -> Program:
            def given(arrays: list[Any]) -> Callable[[], list[np.ndarray]]:
                return lambda: scalar(arrays)

            return Program(given(form.arrays), given=given, capture=lambda: scalar)

    _, made = prepare_group(Group("critical:mse_loss", "", "float32", 1), cache)
    runner = Runner(Loss(sound), RuntimeInfo("1", "cpu"), policy_files.load_policy("error_units"), lambda *step: None)
    (row,) = (x.row for x in runner.run([make_item_of_whole_group(PreparedGroup(made.pack.path, "graph"))]))
    assert (row.status, row.apart_units) == ("pass", 0), row.error


class AcceleratorError(RuntimeError):
    """As torch calls every error of a device's runtime."""


class Cuda:
    """torch.cuda where a recording ends as torch's does: raises: by the call, or by the end of a recording that was
    spoilt, over what the call raised. current: the stream."""

    def __init__(self, by_call: Exception | None, by_end: Exception | None) -> None:
        self.by_call, self.by_end, self.recording = by_call, by_end, False
        self.current: str = "default"

    def put(self, monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
        stream = types.SimpleNamespace(wait_stream=lambda other: None, device_index=0)
        for name, value in {
            "Stream": lambda: stream, "current_stream": lambda: stream, "stream": lambda s: contextlib.nullcontext(),
            "CUDAGraph": lambda: types.SimpleNamespace(replay=lambda: None), "graph_pool_handle": lambda: (0, 1),
            "synchronize": lambda: None, "graph": self.graph, "set_stream": lambda s: setattr(self, "current", "default"),
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)

    def call(self, x: Any) -> Any:
        if self.recording and self.by_call:
            raise self.by_call
        return x.relu()

    @contextlib.contextmanager
    def graph(self, graph: Any, pool: Any) -> Iterator[None]:
        self.recording, self.current = True, "recording"
        try:
            yield
        finally:
            self.recording = False
            if self.by_end:
                raise self.by_end
            self.current = "default"


INVALIDATED = AcceleratorError("CUDA error: operation failed due to a previous error during capture\nSearch for it")


@pytest.mark.parametrize(
    ("by_call", "by_end", "status", "said"),
    [
        (AcceleratorError("CUDA error: operation not permitted when stream is capturing"), INVALIDATED, "unsupported", "not permitted"),
        (None, INVALIDATED, "unsupported", "a previous error during capture"),
        (RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture"), None, "unsupported", "Cannot copy"),
        (RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR"), INVALIDATED, "unsupported", "CUSOLVER"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), INVALIDATED, "oom", "2 GiB"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_recorded_is_unsupported_and_spoils_nothing(
    by_call: Exception | None,
    by_end: Exception | None,
    status: str,
    said: str,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    cuda = Cuda(by_call, by_end)
    cuda.put(monkeypatch, torch)
    backend = BackendSpec("torch-cuda", "torch", "cuda").create()
    monkeypatch.setattr(backend, "target", "cpu")
    monkeypatch.setattr(
        type(backend), "is_sticky", lambda self, error: bool(re.search(self.known.sticky, str(error))), raising=True
    )
    _, made = prepare_group(Group("critical:relu", "", "float32", 1), cache)
    runner = Runner(backend, RuntimeInfo("1", "x"), policy_files.load_policy("error_units"), lambda *step: None)
    built = backend.build

    def build(form: Form) -> Program:
        return built(replace(form, call=cuda.call))

    monkeypatch.setattr(backend, "build", build)
    (row,) = (x.row for x in runner.run([make_item_of_whole_group(PreparedGroup(made.pack.path, "graph"))]))
    assert (row.status, cuda.current) == (status, "default") and said in row.error, row.error
    assert status == "oom" or row.error.startswith("it cannot be recorded: ")


def test_what_the_runs_before_a_recording_do_wrong_is_their_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    cuda = Cuda(None, None)
    cuda.put(monkeypatch, torch)

    def lost() -> None:
        raise AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    with pytest.raises(AcceleratorError, match="illegal memory access"):
        torch_graphs.capture_torch_call(cuda.call, lambda arrays: (tuple(arrays), {}), [torch.ones(2)], "cpu")


def test_a_tensor_that_stays_on_the_cpu_is_not_recorded() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(Unsupported, match="stays on the CPU"):
        torch_graphs.capture_torch_call(torch.tensor_split, lambda arrays: (tuple(arrays), {}), [torch.ones(2)], "cuda")


def test_it_is_planned_where_programs_can_be_captured_alone() -> None:
    pytest.importorskip("torch")
    fits = {
        name: not explain_check_exclusion("graph", BackendSpec.parse(name).create())
        for name in ("torch-cpu", "torch-cuda", "torch-rocm", "inductor-cuda")
    }
    assert fits == {"torch-cpu": False, "torch-cuda": True, "torch-rocm": True, "inductor-cuda": False}
