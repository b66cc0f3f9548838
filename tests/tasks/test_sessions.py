"""Sessions: a step that is off is named beside its sound twin, each step is in the trace, and nothing is where there is but one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import wire
from tasks.backends import BackendSpec
from tasks.catalogs.user import load_kernels
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.catalogs.user.ops import UserOp
from tasks.judge import policy_files
from tasks.model import Form, Group, Misbehaviour, Program, Replayed, RuntimeInfo, Unsupported, run_session
from tasks.model.trace import TraceStep, describe_first_wrong
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.runner import Runner, make_item_of_whole_group

torch = pytest.importorskip("torch")

from tasks.arrays.training import Optimiser, TrainingStep  # noqa: E402
from tests.tasks.test_gradients import make_square  # noqa: E402
from tests.tasks.test_levels_and_replay import SOFTMAX, Planted, counting, sound  # noqa: E402


def running_sum(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.cumsum(x * scale, 0)


class Sum:
    """Adds up what it is given, times a factor that the whole session has."""

    closed = 0

    def start(self, scale: Any) -> None:
        self.scale, self.total, self.at = scale, torch.zeros_like(scale), 0

    def step(self, x: Any) -> Any:
        self.total += self.added(x * self.scale)
        self.at += 1
        return self.total  # its own memory, which the next step writes to

    def added(self, x: Any) -> Any:
        return x

    def state(self) -> dict[str, Any]:
        return {"total": self.total}

    def close(self) -> None:
        type(self).closed += 1


class Skips(Sum):
    def added(self, x: Any) -> Any:
        return torch.zeros_like(x) if self.at == 3 else x


class Raises(Sum):
    def added(self, x: Any) -> Any:
        if self.at == 2:
            raise RuntimeError("out of room")
        return x


class Shrinks(Sum):
    def step(self, x: Any) -> Any:
        made = super().step(x)
        return made[:-1] if self.at == 5 else made


def op(kernel: Any, **more: Any) -> UserOp:
    return UserOp(
        "session", kernel, running_sum, {"x": ["n", "d"], "scale": ["d"]}, {"n": [6], "d": [8]}, **{"steps": "n"} | more
    )


def run(
    kernel: Any, cache: Path, check: str = "steps", backend: str = "torch-cpu", samples: int = 1
) -> list[wire.Done]:
    """What comes of the cases of a session."""
    made = BackendSpec.parse(backend).create()
    with load_kernels.lend_op(op(kernel), str(cache)):
        group = prepare_group(Group("user:session", "", "float32", samples), cache)[1]
        runner = Runner(made, made.start(), policy_files.load_policy("error_units"), lambda *step: None)
        return list(runner.run([make_item_of_whole_group(PreparedGroup(group.pack.path, check))]))


def test_every_step_of_a_sound_session_passes_whatever_the_layout(tmp_path: Path) -> None:
    before = Sum.closed
    for done in run(Sum, tmp_path, samples=3):
        assert (done.row.status, done.row.culprit, done.row.layout) == ("pass", "", None), done.row.error
        assert [x.step for x in done.trace] == list(range(6)) and {x.status for x in done.trace} == {"pass"}
        assert [x.name for x in done.trace] == [f"step {k}" for k in range(6)]
        assert len({x.output_digest for x in done.trace}) == len({x.state_digest for x in done.trace}) == 6
        assert all(x.error_units is not None and x.ms is not None and x.ms > 0 for x in done.trace)
        assert describe_first_wrong(done.trace) == "" and done == wire.decode_wire_message(
            wire.encode_wire_message(done)
        )
    assert Sum.closed > before


def test_the_first_step_that_is_wrong_is_named(tmp_path: Path) -> None:
    (done,) = run(Skips, tmp_path)
    assert (done.row.status, done.row.kind, done.row.culprit) == ("wrong", "numbers", "step 3")
    assert done.row.error == describe_first_wrong(done.trace) == "first wrong at step 3 of 6"
    assert [x.status for x in done.trace] == ["pass"] * 3 + ["wrong"] * 3
    (as_one,) = run(Skips, tmp_path, "forward")
    assert (as_one.row.status, as_one.trace) == ("wrong", ())


@pytest.mark.parametrize(
    ("kernel", "status", "kind", "culprit", "steps"),
    [
        (Raises, "error", "", "step 2", ["pass", "pass", "error"]),
        (Shrinks, "wrong", "shape", "step 4", ["pass"] * 4 + ["wrong", "pass"]),
    ],
)
def test_a_step_that_raises_or_returns_another_shape_is_named(
    kernel: Any, status: str, kind: str, culprit: str, steps: list[str], tmp_path: Path
) -> None:
    before = kernel.closed
    (done,) = run(kernel, tmp_path)
    assert (done.row.status, done.row.kind, done.row.culprit) == (status, kind, culprit)
    assert [x.status for x in done.trace] == steps
    assert kernel.closed == before + 1  # also where it raises


def test_a_backend_without_sessions_says_so(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.backends.torch.TorchSession", None)
        patch.setattr("tasks.backends.torch.TorchEager.build", _without_session())
        (done,) = run(Sum, tmp_path)
    assert done.row.status == "unsupported" and "as a whole only" in str(done.row.error)


def _without_session() -> Callable[..., Program]:
    from tasks.backends.torch import TorchEager

    build = TorchEager.build

    def without(self: Any, form: Form) -> Program:
        made = build(self, form)
        made.session = None
        return made

    return without


def test_declarations_that_cannot_be_meant() -> None:
    assert not list(list_declaration_mistakes(op(Sum)))
    ((key, text),) = list_declaration_mistakes(op(Sum, steps="m"))
    assert key == ("steps",) and "no input has 'm' as its first size" in text
    (found,) = list_declaration_mistakes(op(Sum, framework="numpy"))
    assert found[0] == ("framework",)
    with (
        load_kernels.lend_op(op(running_sum), "."),
        pytest.raises(Exception, match="running_sum has no method step.*one row of x"),
    ):
        load_kernels.load_user_ops()["session"].function("kernel")


# --- any program is a session ---------------------------------------------------------------------------------------


def test_a_program_that_keeps_nothing_is_a_session_of_calls() -> None:
    x = np.float32([1, 2])
    program = Program(lambda: [x], given=lambda arrays: lambda: [2 * arrays[0]])
    with run_session(program.open()) as session:
        assert session.step()[0] is x and (session.step([x])[0] == 2 * x).all() and session.state() == {}
    with run_session(Program(lambda: [x]).open()) as session, pytest.raises(Unsupported, match="only once"):
        session.step([x])
    with pytest.raises(Unsupported, match="captured"), run_session(Replayed(program)):
        pass


def test_replays_are_steps_of_a_trace(tmp_path: Path) -> None:
    def trace(kernel: Any) -> tuple[TraceStep, ...]:
        backend = Planted(kernel)
        group = prepare_group(SOFTMAX, tmp_path)[1]
        runner = Runner(backend, RuntimeInfo("1", "cpu"), policy_files.load_policy("error_units"), lambda *step: None)
        (done,) = runner.run([make_item_of_whole_group(PreparedGroup(group.pack.path, "replay"))])
        return done.trace

    steps = trace(sound)
    assert [x.name for x in steps[:3]] == ["run 1", "run 2", "run 3"] and len(steps) == 3 + 2 + 6
    assert steps[0].error_units is not None and {x.apart_units for x in steps[1:]} == {0.0}
    assert {x.output_digest for x in steps[:5]} == {steps[0].output_digest} and describe_first_wrong(steps) == ""
    steps = trace(counting)
    assert describe_first_wrong(steps) == "first wrong at step 1 of 2 (run 2)" and steps[1].kind == "nondeterministic"
    assert steps[0].status == "pass" and 0 < (steps[1].apart_units or 0) < 32


# --- a training step is one as well -----------------------------------------------------------------------------------


def test_a_training_step_goes_on_from_where_it_is() -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 1)
    given = [torch.rand(8, 3), torch.rand(8, 1)]
    loss: Any = lambda found, targets: torch.nn.functional.mse_loss(found, targets[0])  # noqa: E731
    step = TrainingStep(module, loss, 1, Optimiser("sgd", 0.1))
    first = step.run_first_step(step, given)
    step.start("cpu")
    losses = [float(step.step(given)[0]) for _ in range(5)]
    assert losses[0] == float(first[0]) and len(set(losses)) == 5 and losses[4] < losses[0]
    assert not torch.equal(step.state()["weight"], first[3])
    step.start("cpu")
    assert float(step.step(given)[0]) == losses[0]
    for got, weight in zip(first[3:], step.state().values()):
        assert torch.equal(got, weight)
    outputs = [x.numpy() for x in first[:3]]
    weights = {name: x.numpy() for name, x in step.state().items()}
    assert [x.shape for x in step.consistent(outputs, weights)] == [(), (1, 3), (1,)]
    with pytest.raises(Misbehaviour, match="weight changes by"):
        step.consistent(outputs, weights | {"weight": weights["weight"] + np.float32(1e-3)})


class SquaresGradient(torch.autograd.Function):
    """It has a gradient of its own, which may write to what the first pass has saved."""

    spoils = False

    @staticmethod
    def forward(ctx: Any, g: Any, x: Any) -> Any:
        ctx.save_for_backward(g, x)
        return 2 * x * g

    @staticmethod
    def backward(ctx: Any, h: Any) -> Any:
        g, x = ctx.saved_tensors
        made = 2 * x * h, 2 * g * h
        if SquaresGradient.spoils:
            x.data.zero_()
        return made


square = make_square(SquaresGradient.apply)


class SumOfSquares(Sum):
    def step(self, x: Any) -> Any:
        self.total = self.total + square(x) * self.scale
        return self.total


def sum_squares(x: Any, scale: Any) -> Any:
    return torch.cumsum(x * x * scale, 0)


@pytest.mark.parametrize(("spoils", "found"), [(False, ("pass", "")), (True, ("wrong", "mutation"))])
def test_a_second_gradient_of_a_session_that_writes_to_its_inputs_is_seen(
    spoils: bool, found: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SquaresGradient, "spoils", spoils)
    declared = UserOp(
        "session",
        SumOfSquares,
        sum_squares,
        {"x": ["n", "d"], "scale": ["d"]},
        {"n": [4], "d": [8]},
        steps="n",
        gradient=["x"],
        reference_framework="torch",
    )
    backend = BackendSpec.parse("torch-cpu").create()
    with load_kernels.lend_op(declared, str(tmp_path)):
        group = prepare_group(Group("user:session", "", "float32", 1, 0, "double_backward"), tmp_path)[1]
        runner = Runner(backend, backend.start(), policy_files.load_policy("error_units"), lambda *step: None)
        (done,) = runner.run([make_item_of_whole_group(PreparedGroup(group.pack.path, "double_backward"))])
    assert (done.row.status, done.row.kind) == found, done.row.error
