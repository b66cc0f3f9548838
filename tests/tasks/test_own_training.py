"""A training of the user's own: what it is read as, and the line that is said of one that cannot be judged."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm.exits import allow_interrupts
from tasks import forks
from tasks import runner as runner_module
from tasks.arrays import blocks
from tasks.backends.torch import TorchEager
from tasks.catalogs.training import own
from tasks.catalogs.training.catalog import Training
from tasks.catalogs.training.own import OwnTraining
from tasks.checks import train
from tasks.child import Child
from tasks.graphs.given_model import GivenError
from tasks.judge import policy_files, training_phases
from tasks.model import Group, RuntimeInfo
from tasks.prepare.cases import prepare_group
from tasks.relay import PAGE_SIZE, ProgressPage
from tasks.runner import BUILD, JUDGE, LOAD, RUN, Runner, Spending, make_item_of_whole_group
from tasks.training.hooked import HookedLoop
from tasks.training.loop import TrainingLoop
from tasks.training.phases import CLIPPED, FIRST, PROBE, WEIGHTS
from tasks.training.recipe import FLOAT8
from tasks.wire import Done
from tests.bench.training_faults import judge_form

pytest.importorskip("torch")

SOURCE = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout

calls = [0]

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))

def data(count=60, seed=1):
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(4, 6, generator=g), torch.randint(0, 3, (4,), generator=g)

def make(optimiser, count=60, seed=1, module=None):
    module = module or net()
    return module, data(count, seed), optimiser(module.parameters(), lr=0.01), cross_entropy

def good():
    return make(torch.optim.AdamW)

def short():
    return make(torch.optim.SGD, 10)

def unknown():
    return make(torch.optim.Adagrad)

def shuffled():
    calls[0] += 1
    return make(torch.optim.Adam, seed=calls[0])

def infinite():
    module = net()
    nn.init.constant_(module[0].weight, float("nan"))
    return make(torch.optim.SGD, module=module)

class Noisy(nn.Linear):
    def forward(self, x):
        return dropout(super().forward(x), 0.5)

def noisy():
    return make(torch.optim.SGD, module=Noisy(6, 3))

def diverging():
    module = net()
    return module, data(), torch.optim.SGD(module.parameters(), lr=1e300), cross_entropy

def frozen_state():
    with torch.inference_mode():
        module = nn.Linear(6, 3)
    return make(torch.optim.SGD, module=module)

class Expanded(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)
        self.bias = nn.Parameter(torch.zeros(1).expand(3))

def expanded_state():
    return make(torch.optim.SGD, module=Expanded())

def plain():
    return make(torch.optim.SGD)

def no_loss():
    return make(torch.optim.SGD)[:3]

def three_tensors():
    module, data, optimiser, loss = make(torch.optim.SGD)
    return module, [(x, y, y) for x, y in data], optimiser, loss

def module_alone():
    return net()

def grouped(optimiser=torch.optim.AdamW, **more):
    module = net()
    matrices, others = ([p for p in module.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0, "lr": 0.03, **more}]
    return module, data(), optimiser(groups, lr=0.01), cross_entropy

def one_with_momentum():
    return grouped(torch.optim.SGD, momentum=0.9)

def one_nesterov():
    module = net()
    for p in module[0].parameters():
        p.requires_grad_(False)
    rest = {"params": [*module[0].parameters(), module[3].weight], "nesterov": True, "lr": 0.05}
    return module, data(), torch.optim.SGD([{"params": [module[3].bias]}, rest], 0.01, 0.9), cross_entropy

def decoupled():
    module = net()
    return module, data(), torch.optim.Adam(module.parameters(), weight_decay=0.3, decoupled_weight_decay=True), cross_entropy

def nesterov():
    module = net()
    return module, data(), torch.optim.SGD(module.parameters(), 0.05, 0.9, weight_decay=0.1, nesterov=True), cross_entropy

def narrow():
    return make(torch.optim.AdamW, module=net().bfloat16())

def half():
    module = net()
    return module, data(), torch.optim.AdamW(list(module.parameters())[:2]), cross_entropy

def others_too():
    module = net()
    return module, data(), torch.optim.AdamW([*module.parameters(), nn.Parameter(torch.ones(2))]), cross_entropy

def frozen():
    module = net()
    module[0].weight.requires_grad_(False)
    return make(torch.optim.AdamW, module=module)

def amsgrad():
    module = net()
    return module, data(), torch.optim.Adam(module.parameters(), amsgrad=True), cross_entropy
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(SOURCE)
    return tmp_path


def test_a_training_is_read_from_its_function(root: Path) -> None:
    network = OwnTraining("good", "mine.py:good", str(root)).network()
    recipe, batch = network.recipe, network.draw(np.random.default_rng(0))
    assert (recipe.optimiser, recipe.rate, recipe.clip, recipe.accumulate) == ("adamw", 0.01, 0.0, 1)
    assert [x.shape for x in batch] == [(4, 6), (4,)]
    assert network.build()[2].p == 0  # each device would draw another mask
    decoupled = OwnTraining("decoupled", "mine.py:decoupled", str(root)).network().recipe
    assert (decoupled.optimiser, decoupled.decay) == ("adamw", 0.3), "as torch.optim.Adam decays so"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unknown", "no formulas are known of the optimiser Adagrad; known are AdamW, Adam, SGD"),
        ("shuffled", "in another order at each call: draw it by a seed"),
        ("infinite", "the loss of the first batch is nan"),
        ("noisy", "it draws random numbers; take torch.nn.Dropout"),
        (
            "no_loss",
            "no loss is returned: a module without a loss takes the whole batch and gives it; return a loss as",
        ),
        ("three_tensors", "the module takes the tensors of a batch but the last, and the loss its output and the last"),
        ("module_alone", "it must return (module, data, optimiser)"),
        ("amsgrad", "amsgrad of Adam is not known: leave it out"),
        ("one_with_momentum", "and momentum to all or to none"),
        ("narrow", "0.weight is torch.bfloat16: give a module in float32; the config's dtypes say what autocast"),
        ("half", "the optimiser has 2 of 4 parameters: freeze the others (requires_grad): 3.weight, 3.bias"),
        ("others_too", "1 of the optimiser's parameters are not the module's: make them a part of it"),
    ],
)
def test_what_cannot_be_judged_is_a_line(root: Path, name: str, said: str) -> None:
    with pytest.raises(GivenError) as raised:
        OwnTraining(name, f"mine.py:{name}", str(root)).network()
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("diverging", "the loss of the reference is nan: lower the rate or begin with other weights"),
        ("frozen_state", "make weight an ordinary parameter or buffer: its state cannot be set"),
        ("expanded_state", "make bias an ordinary parameter or buffer: its state cannot be set"),
        ("short", "the data ran out after 10 batches"),
    ],
)
def test_what_only_the_steps_show_is_a_line_and_the_run_goes_on(
    root: Path, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "list_own_trainings", lambda: {name: OwnTraining(name, f"mine.py:{name}", str(root))})
    (sample,) = Training().samples(Group(f"training:{name}", "", "float32", 1, 0, "train"), 3)
    assert sample.failure is not None and said in sample.failure.error and "\n" not in sample.failure.error


def test_each_phase_is_judged_when_it_is_seen_and_then_dropped(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "list_own_trainings", lambda: {"good": OwnTraining("good", "mine.py:good", str(root))})
    prepared = prepare_group(Group("training:good", "", "float32", 1, 0, "train"), tmp_path / "cache")[1]
    told: list[tuple[int, int, int]] = []
    runner = Runner(
        TorchEager("torch-cpu", "cpu", {}),
        RuntimeInfo("", "cpu"),
        policy_files.load_policy("error_units"),
        lambda *step: told.append(step),
    )
    take, held = Spending.take, list[int]()

    def look(self: Spending, place: int) -> None:
        take(self, place)
        held.append(sum(len(x.what.outputs) for x in self._case.seen))

    monkeypatch.setattr(Spending, "take", look)
    asked = make_item_of_whole_group(prepared)
    (done,) = runner.run([asked])
    assert done.row.status == "pass" and len(held) == len(done.trace) and not any(held)
    # The deadline of a run is not for its judge, and no death of the judge is its backend's.
    assert [stage for _, stage, _ in told] == [LOAD, BUILD, RUN, *[JUDGE, RUN] * len(held), JUDGE]
    (kept,) = runner.run([replace(asked, keep=str(tmp_path / "kept.pack"))])
    times = {"build_ms", "run_ms", "started_at"}
    assert len(held) == len(done.trace)
    assert {k: v for k, v in kept.row.values().items() if k not in times} == {
        k: v for k, v in done.row.values().items() if k not in times
    }
    assert [replace(x, ms=0.0) for x in kept.trace] == [replace(x, ms=0.0) for x in done.trace]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is judged beside the backend, two steps at a time."""
    monkeypatch.setattr(forks, "count_processes_at_once", lambda _: 3)
    monkeypatch.setattr(runner_module, "LARGE", 0)
    monkeypatch.setattr(blocks, "BLOCK", 128)


def run_good_training(
    root: Path, monkeypatch: pytest.MonkeyPatch, told: list[tuple[int, int, int]] | None = None
) -> Done:
    monkeypatch.setattr(own, "list_own_trainings", lambda: {"good": OwnTraining("good", "mine.py:good", str(root))})
    prepared = prepare_group(Group("training:good", "", "float32", 1, 0, "train"), root / "cache")[1]
    policy, backend = policy_files.load_policy("error_units"), TorchEager("torch-cpu", "cpu", {})
    runner = Runner(backend, RuntimeInfo("", "cpu"), policy, lambda *step: None if told is None else told.append(step))
    (done,) = runner.run([make_item_of_whole_group(prepared)])
    return done


def test_a_step_is_judged_while_the_next_one_is_taken_and_no_number_moves(
    root: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    alone = run_good_training(root, monkeypatch)
    request.getfixturevalue("beside")
    step, held = TrainingLoop.step, list[int]()
    seen = list[Spending]()
    take = Spending.take

    def note(self: Spending, place: int) -> None:
        seen.append(self)
        take(self, place)

    monkeypatch.setattr(Spending, "take", note)

    def look(self: TrainingLoop, *given: Any) -> Any:
        held.append(len({x.what.row for one in seen[:1] for x in one._case.seen if len(x.what.outputs)}))
        return step(self, *given)

    monkeypatch.setattr(TrainingLoop, "step", look)
    told: list[tuple[int, int, int]] = []
    done = run_good_training(root, monkeypatch, told)
    assert len(held) == 13 and max(held) <= 2, "beside the step that is taken no more are held than processes judge"
    pairs = (len(told) - 4) // 2
    assert 13 <= pairs <= 16
    assert [stage for _, stage, _ in told] == [LOAD, BUILD, RUN, *[JUDGE, RUN] * pairs, JUDGE]
    times = {"build_ms", "run_ms", "started_at"}
    rows = [{k: v for k, v in x.row.values().items() if k not in times} for x in (alone, done)]
    assert rows[0] == rows[1] and rows[0]["status"] == "pass"
    assert [replace(x, ms=0.0) for x in alone.trace] == [replace(x, ms=0.0) for x in done.trace]


@pytest.mark.parametrize("together", [False, True])
def test_what_judging_raises_is_its_own_fault_wherever_it_runs(
    root: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, together: bool
) -> None:
    if together:
        request.getfixturevalue("beside")
    measure = training_phases.measure_phase_floors

    def fail(outputs: Any, expected: Any, phase: str, *more: Any) -> Any:
        if phase in (WEIGHTS, PROBE):
            raise ZeroDivisionError(f"in {phase}")
        return measure(outputs, expected, phase, *more)

    monkeypatch.setattr(training_phases, "measure_phase_floors", fail)
    row = run_good_training(root, monkeypatch).row
    assert (row.status, row.stage, row.error) == ("error", "judge", "in weights"), "the first that raises"


def test_what_a_later_step_raises_leaves_the_judgements_before_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, beside: None
) -> None:
    step, taken = TrainingLoop.step, list[int]()

    def fail(self: TrainingLoop, *given: Any) -> Any:
        taken.append(1)
        if len(taken) == 3:
            raise ZeroDivisionError("in the third")
        return step(self, *given)

    monkeypatch.setattr(TrainingLoop, "step", fail)
    done = run_good_training(root, monkeypatch)
    assert (done.row.status, done.row.stage, done.row.error) == ("error", "run", "in the third")
    assert {(x.number, x.status) for x in done.trace} == {(0, "pass"), (1, "pass")}


@pytest.mark.parametrize("large", [0, runner_module.LARGE])
def test_a_step_that_returns_no_array_is_wrong_wherever_it_is_judged(
    root: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(runner_module, "LARGE", large)
    copy = train.copy_program_outputs
    monkeypatch.setattr(train, "copy_program_outputs", lambda outputs: [*copy(outputs)[:-1], None])
    done = run_good_training(root, monkeypatch)
    assert (done.row.status, done.row.kind) == ("wrong", PROBE)
    assert {x.status for x in done.trace} == {"pass", "wrong"}


def test_a_device_that_is_lost_is_known_though_judging_the_step_before_raises(
    root: Path, monkeypatch: pytest.MonkeyPatch, beside: None
) -> None:
    step, taken, runners = TrainingLoop.step, list[int](), list[Runner]()

    def lose(self: TrainingLoop, *given: Any) -> Any:
        taken.append(1)
        if len(taken) == 2:
            raise MemoryError
        return step(self, *given)

    def fail(*given: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(TrainingLoop, "step", lose)
    monkeypatch.setattr(training_phases, "measure_phase_floors", fail)
    begin = Spending.__init__
    monkeypatch.setattr(
        Spending, "__init__", lambda self, runner, *more: (runners.append(runner), begin(self, runner, *more))[1]
    )
    done = run_good_training(root, monkeypatch)
    assert (done.row.stage, done.row.error_type) == ("judge", "ZeroDivisionError") and runners[0].broken


def test_an_end_that_is_asked_for_does_not_wait_for_what_is_to_be_judged(
    root: Path, monkeypatch: pytest.MonkeyPatch, beside: None
) -> None:
    take, here = Spending.take, os.getpid()

    def judge_for_long(self: Spending, place: int) -> None:
        assert os.getpid() != here, "nothing is judged in this process"
        time.sleep(60)

    def interrupt(self: Spending, place: int) -> None:
        take(self, place)
        if not self._waiting:  # another process has the step
            raise KeyboardInterrupt

    monkeypatch.setattr(Spending, "_judge", judge_for_long)
    monkeypatch.setattr(Spending, "take", interrupt)
    begin = time.monotonic()
    with allow_interrupts(), pytest.raises(KeyboardInterrupt):
        run_good_training(root, monkeypatch)
    assert time.monotonic() - begin < 30


def test_a_step_whose_process_is_killed_is_judged_here(
    root: Path, monkeypatch: pytest.MonkeyPatch, beside: None
) -> None:
    judge, here, judged = Spending._judge, os.getpid(), list[int]()

    def die(self: Spending, place: int) -> Any:
        if os.getpid() != here and self._case.seen[place].what.number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if os.getpid() == here:
            judged.append(self._case.seen[place].what.number or 0)
        return judge(self, place)

    monkeypatch.setattr(Spending, "_judge", die)
    done = run_good_training(root, monkeypatch)
    assert done.row.status == "pass" and set(judged) == {3}


def test_a_step_that_a_process_cannot_judge_ends_the_run_after_those_before_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, beside: None
) -> None:
    judge, step, here, taken = Spending._judge, TrainingLoop.step, os.getpid(), list[int]()

    def fail(self: Spending, place: int) -> Any:
        number = self._case.seen[place].what.number or 0
        if os.getpid() != here:
            time.sleep(1.0 * (number == 1))  # the later step fails before
        if number in (1, 2):
            raise ZeroDivisionError(f"at step {number}")
        return judge(self, place)

    def count(self: TrainingLoop, *given: Any) -> Any:
        taken.append(1)
        return step(self, *given)

    monkeypatch.setattr(Spending, "_judge", fail)
    monkeypatch.setattr(TrainingLoop, "step", count)
    done = run_good_training(root, monkeypatch)
    assert (done.row.status, done.row.stage, done.row.error) == ("error", "judge", "at step 1")
    assert len(taken) < 6, "no more steps are taken than are judged at once"
    assert {x.status for x in done.trace if x.number == 0} == {"pass"}


def test_what_could_not_be_judged_elsewhere_is_judged_here_as_one_step(
    root: Path, monkeypatch: pytest.MonkeyPatch, beside: None
) -> None:
    judge, here, judged = Spending._judge, os.getpid(), list[str]()

    def fail_at_the_last(self: Spending, place: int) -> Any:
        what = self._case.seen[place].what
        if os.getpid() != here and what.phase == PROBE and what.number == 3:
            raise ZeroDivisionError
        if os.getpid() == here:
            judged.append(what.phase)
        return judge(self, place)

    alone = run_good_training(root, monkeypatch)
    monkeypatch.setattr(Spending, "_judge", fail_at_the_last)
    done = run_good_training(root, monkeypatch)
    assert CLIPPED not in judged or judged.index(CLIPPED) < judged.index(PROBE)
    assert judged[0] != PROBE and judged[-1] == PROBE, "what is found of gradients is asked for by the probe"
    assert [replace(x, ms=0.0) for x in alone.trace] == [replace(x, ms=0.0) for x in done.trace]


@pytest.mark.parametrize("ends", [SystemExit, KeyboardInterrupt])
def test_what_a_step_that_exits_leaves_to_judge_is_judged(
    root: Path, monkeypatch: pytest.MonkeyPatch, beside: None, ends: type[BaseException]
) -> None:
    step, taken = TrainingLoop.step, list[int]()

    def leave(self: TrainingLoop, *given: Any) -> Any:
        taken.append(1)
        if len(taken) == 3:
            raise ends
        return step(self, *given)

    monkeypatch.setattr(TrainingLoop, "step", leave)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a child
    try:
        done = run_good_training(root, monkeypatch)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.row.status, done.row.stage, done.row.error_type) == ("error", "run", ends.__name__)
    assert {(x.number, x.status) for x in done.trace} == {(0, "pass"), (1, "pass")}


def test_what_a_step_sets_is_undone_though_it_was_judged_before_the_next() -> None:
    file = os.memfd_create("page")
    os.ftruncate(file, PAGE_SIZE)
    child = Child(ProgressPage(file))
    command: Any = SimpleNamespace(passports=(), policy=None, race_s=1.0)
    runner = child._make_runner(SimpleNamespace(), SimpleNamespace(), command)
    for stage in (LOAD, BUILD, RUN, JUDGE, RUN, JUDGE):
        runner.progress(0, stage, 1)
        os.environ[f"SET_IN_{stage}"] = "1"
    child.surroundings.put_back()
    left = [stage for stage in range(LOAD, JUDGE + 1) if os.environ.pop(f"SET_IN_{stage}", "")]
    assert left == [LOAD, BUILD]


def test_a_training_without_a_product_that_can_be_in_fp8_is_not_supported_there(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "list_own_trainings", lambda: {"good": OwnTraining("good", "mine.py:good", str(root))})
    group = Group("training:good", "", FLOAT8, 1, 0, "train")
    prepared, backend = prepare_group(group, tmp_path / "cache")[1], TorchEager("torch-cpu", "cpu", {})
    runner = Runner(backend, RuntimeInfo("", "cpu"), policy_files.load_policy("error_units"), lambda *step: None)
    (done,) = runner.run([make_item_of_whole_group(prepared)])
    assert (done.row.status, done.row.error_type) == ("unsupported", "")
    assert "no torch.nn.Linear whose sides are multiples of 16" in (done.row.error or "")


def test_an_optimiser_that_keeps_no_moments_is_judged_without_any(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "list_own_trainings", lambda: {"plain": OwnTraining("plain", "mine.py:plain", str(root))})
    sample = prepare_group(Group("training:plain", "", "float32", 1, 0, "train"), tmp_path / "cache")[1].samples[0]
    assert FIRST not in sample.record.phases
    found, _ = judge_form(sample, TorchEager("torch-cpu", "cpu", {}), sample.form("torch"))
    assert found.status.value == "pass", found.columns


@pytest.mark.parametrize(
    ("name", "ignored", "culprit"),
    [
        ("grouped", {"groups": ()}, "0.bias"),
        ("frozen", {"groups": ()}, None),
        ("one_nesterov", {"groups": ()}, "3.weight"),
        ("nesterov", {"nesterov": False}, "3.bias"),
    ],
)
def test_an_optimiser_is_judged_by_its_groups_and_options(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    ignored: dict[str, object],
    culprit: str | None,
) -> None:
    """ignored: what a planted stack does instead; culprit: the parameter that is named then, None where it is the same."""
    monkeypatch.setattr(own, "list_own_trainings", lambda: {name: OwnTraining(name, f"mine.py:{name}", str(root))})
    group = Group(f"training:{name}", "", "float32", 1, 0, "train")
    sample = prepare_group(group, tmp_path / "cache")[1].samples[0]
    backend, form = TorchEager("torch-cpu", "cpu", {}), sample.form("torch")
    found, _ = judge_form(sample, backend, form)
    assert found.status.value == "pass", found.columns
    monkeypatch.setattr(
        TrainingLoop, "_part_by_group", lambda loop, held: [(replace(loop.recipe, **ignored), held)] if held else []
    )
    found, _ = judge_form(sample, backend, form)
    blamed = (found.status.value, found.kind, found.columns.get("culprit"))
    assert blamed == (("wrong", WEIGHTS, culprit) if culprit else ("pass", "", None)), found.columns


def test_a_scripts_optimiser_may_hold_frozen_parameters(root: Path) -> None:
    """Its groups get the rates of what is trained in them."""
    training = OwnTraining("one_nesterov", "mine.py:one_nesterov", str(root))
    network = training.network()
    module, _, optimiser, _ = training._call()[:4]
    loop = HookedLoop(module, optimiser, network.loss, network.recipe, "")
    loop.start("cpu")
    optimiser.param_groups[0]["lr"] = optimiser.param_groups[1]["lr"] = 0.0
    loop.set_rate(3)
    assert [group["lr"] for group in optimiser.param_groups] == [0.01, 0.05]


def test_what_is_done_about_dropout_is_said(root: Path) -> None:
    note = OwnTraining("good", "mine.py:good", str(root)).network().note
    assert note == "dropout is turned off, as each device would draw another mask: 2"


def test_data_that_run_out_are_counted(root: Path) -> None:
    network = OwnTraining("short", "mine.py:short", str(root)).network()
    with pytest.raises(GivenError, match="the data ran out after 10 batches"):
        for _ in range(11):
            network.draw(np.random.default_rng(0))
