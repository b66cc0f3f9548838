"""Steps in float64: what they give stays as it was computed, whatever a network shares or overwrites."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import forks
from tasks.arrays import pack
from tasks.catalogs.training import catalog
from tasks.model import Group
from tasks.training import trajectory
from tasks.training.exact import ExactTraining
from tasks.training.networks import get_training_network
from tasks.training.networks.base import Network
from tasks.training.phases import RAW, SHARES
from tasks.training.recipe import TrainingRecipe
from tasks.training.trajectory import follow_trajectory

torch = pytest.importorskip("torch")
nn = torch.nn
WORK = torch.zeros(40, dtype=torch.float64)


class Penalty(torch.autograd.Function):  # type: ignore[misc,name-defined]
    """|w|² / 2, whose gradient is the weight itself that forward has kept."""

    @staticmethod
    def forward(ctx: Any, w: Any) -> Any:
        ctx.save_for_backward(w)
        return (w * w).sum() / 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return ctx.saved_tensors[0].detach()


class InWork(Penalty):
    """The same, whose gradient is computed in an array that the next backward overwrites."""

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return WORK.copy_(ctx.saved_tensors[0] * g)


class Kept(nn.Module):  # type: ignore[misc,name-defined]
    """A layer, and a weight whose penalty is added to the loss."""

    penalty: Any = Penalty

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.weight = nn.Linear(6, 6), nn.Parameter(torch.randn(40))

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.layer(x)), self.penalty.apply(self.weight)


class Plain(Kept):
    """The same with torch's own formula, whose gradient nobody shares."""

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.layer(x)), (self.weight * self.weight).sum() / 2


class Working(Kept):
    """A penalty that each micro-batch weighs otherwise."""

    penalty = InWork

    def forward(self, x: Any) -> Any:
        y, penalty = super().forward(x)
        return y, penalty * x.square().mean()


class PlainWorking(Plain):
    def forward(self, x: Any) -> Any:
        y, penalty = super().forward(x)
        return y, penalty * x.square().mean()


class Tied(Kept):
    """Two layers of one weight, used as it is and turned."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(6, 6)
        self.other.weight = self.layer.weight

    def forward(self, x: Any) -> Any:
        y, penalty = super().forward(x)
        return self.other(y) @ self.layer.weight, penalty


class Viewed(Kept):
    """A penalty on a view of a weight."""

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.layer(x)), self.penalty.apply(self.weight.view(8, 5).t())


def measure_loss(module: Any, x: Any, y: Any) -> Any:
    z, penalty = module(x)
    return ((z - y) ** 2).mean() + penalty


def follow(
    build: Callable[[], Any], accumulate: int
) -> list[tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]]:
    """(weights before it, raw gradients, shares) of three steps."""
    g = np.random.default_rng(0)
    network = Network(build, lambda rng: [], measure_loss, TrainingRecipe(rate=3e-2, accumulate=accumulate))
    exact, steps = ExactTraining(network, network.recipe), []
    state = exact.start
    for number in range(3):
        batch = [g.standard_normal((accumulate, 4, 6)) for _ in range(2)]
        seen = exact.step(state, number, batch, [x[0] for x in batch])
        steps.append((state.weights, seen.phases[RAW], seen.phases.get(SHARES, [])))
        state = seen.state
    return steps


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(("build", "twin"), [(Kept, Plain), (Working, PlainWorking)])
def test_a_gradient_that_is_memory_of_the_network_stays_as_it_was(
    build: type[Kept], twin: type[Kept], accumulate: int
) -> None:
    for (_, found, shares), (_, right, of) in zip(follow(build, accumulate), follow(twin, accumulate)):
        assert [x.tobytes() for x in (*found, *shares)] == [x.tobytes() for x in (*right, *of)]


@pytest.mark.parametrize("build", [Kept, Tied, Viewed])
def test_the_gradients_of_a_step_are_those_of_autograd(build: type[Kept]) -> None:
    g = np.random.default_rng(0)
    for weights, found, _ in follow(build, 1):
        x, y = (torch.from_numpy(g.standard_normal((1, 4, 6))[0]) for _ in range(2))
        module = build().double()
        parameters = list(module.parameters())
        with torch.no_grad():
            for p, w in zip(parameters, weights):
                p.copy_(torch.from_numpy(w))
        right = torch.autograd.grad(measure_loss(module, x, y), parameters)
        assert [a.tobytes() for a in found] == [b.numpy().copy().tobytes() for b in right]


#: What `Listed` shares with every copy of itself in the process, as megablocks shares its load-balancing losses.
AUXILIARY: list[Any] = []
#: The threads that have computed it.
THREADS = set[int]()
#: More parameters than what is large has, of which hardly any computing is.
ROWS = 1 << 21


class Listed(nn.Module):  # type: ignore[misc,name-defined]
    """Blocks that leave losses of their own in a list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.table = nn.Parameter(torch.randn(ROWS, 2))

    def collect(self) -> list[Any]:
        AUXILIARY.clear()
        return AUXILIARY

    def forward(self, x: Any) -> Any:
        found = self.collect()
        THREADS.add(threading.get_ident())
        for block in self.blocks:
            x = torch.tanh(block(x))
            found.append(x.square().mean())
        return x, sum(found) + self.table.square().mean()


class ListedApart(Listed):
    """The same with a list of each call."""

    def collect(self) -> list[Any]:
        return []


def test_a_large_network_may_share_a_list_with_the_process() -> None:
    """A draw that is computed while the next step is taken would find its losses there."""

    def collect(build: type[Listed]) -> list[bytes]:
        def draw(rng: np.random.Generator) -> list[np.ndarray]:
            return [rng.normal(size=(4, 6)).astype(np.float32) for _ in range(2)]

        network = Network(build, draw, measure_loss, TrainingRecipe(optimiser="sgd", rate=3e-2))
        made = follow_trajectory(ExactTraining(network, network.recipe), 1, (0, 1), draws=2)
        return [x.tobytes() for one in made.outputs for x in (one.reference, one.floor) if x is not None]

    THREADS.clear()
    assert collect(Listed) == collect(ListedApart)
    assert len(THREADS) == 1


def test_steps_that_are_made_in_a_file_have_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = get_training_network("gpt")

    def collect() -> list[bytes]:
        made = follow_trajectory(ExactTraining(network, network.recipe, "bfloat16"), 1, (0, 2))
        slopes = [np.float64(x.slope or 0) for x in made.outputs]
        arrays = [y for x in made.outputs for y in (x.reference, x.floor) if y is not None]
        return [x.tobytes() for x in (*made.inputs.values(), *arrays, *slopes)]

    right = collect()
    monkeypatch.setattr(pack, "SPOOLED", 1)
    with pack.spool_arrays(tmp_path) as spool:
        assert collect() == right and spool.end > pack.ROOM


@pytest.mark.parametrize("places", [0, 1, 3])
def test_draws_that_are_made_beside_have_the_same_bits(
    places: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """places: how many processes at once; 0: none can be forked."""
    network = get_training_network("gpt")

    def collect() -> list[bytes]:
        with pack.spool_arrays(tmp_path):
            made = follow_trajectory(ExactTraining(network, network.recipe), 1, (0, 2, 3))
            slopes = [np.float64(x.slope or 0) for x in made.outputs]
            arrays = [y for x in made.outputs for y in (x.reference, x.floor) if y is not None]
            return [x.tobytes() for x in (*made.inputs.values(), *arrays, *slopes)]

    right = collect()
    monkeypatch.setattr(pack, "SPOOLED", 1)
    monkeypatch.setattr(trajectory, "LARGE", 1)
    monkeypatch.setattr(forks, "count_processes_at_once", lambda _: places)
    if not places:
        monkeypatch.delattr(os, "fork")
    assert collect() == right


class Keeping(nn.Module):  # type: ignore[misc,name-defined]
    """Computes with a view of its weight that it has kept since its first call. The scale has no dimensions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale = nn.Linear(6, 6), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Any) -> Any:
        if not hasattr(self, "kept"):
            self.kept = self.layer.weight.detach().view(-1)
        return torch.tanh(self.layer(x)) * self.scale + self.kept.sum()


def test_a_view_that_a_large_network_keeps_of_a_weight_has_its_values_in_every_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(Keeping, draw_pairs, compute_square_loss, TrainingRecipe(rate=3e-2))

    def collect() -> list[bytes]:
        made = follow_trajectory(ExactTraining(network, network.recipe), 1, (0, 1, 3))
        return [x.tobytes() for one in made.outputs for x in (one.reference, one.floor) if x is not None]

    right = collect()
    monkeypatch.setattr(trajectory, "LARGE", 1)
    assert collect() == right


class Counting(nn.Module):  # type: ignore[misc,name-defined]
    """Keeps from call to call what is no buffer: how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.calls = nn.Linear(6, 6), 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return torch.tanh(self.layer(x)) * (1.0 + self.calls / 8)


def test_a_large_network_with_hidden_state_has_the_same_reference_on_any_number_of_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trajectory, "LARGE", 1)

    def collect(places: int) -> list[bytes]:
        monkeypatch.setattr(forks, "count_processes_at_once", lambda _: places)
        network = Network(Counting, draw_pairs, compute_square_loss, TrainingRecipe(optimiser="sgd", rate=3e-2))
        made = follow_trajectory(ExactTraining(network, network.recipe), 1, (0, 1, 3))
        return [x.tobytes() for one in made.outputs for x in (one.reference, one.floor) if x is not None]

    assert collect(1) == collect(2) == collect(4)


def draw_pairs(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.normal(size=(4, 6)).astype(np.float32) for _ in range(2)]


def compute_square_loss(module: Any, x: Any, y: Any) -> Any:
    return (module(x) - y).square().mean()


@pytest.mark.parametrize("large", [False, True])
def test_a_module_that_asks_for_threads_moves_nothing_and_its_draws_end(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(trajectory, "LARGE", 1)
    seen: list[int] = []

    def loss(module: Any, x: Any, y: Any) -> Any:
        seen.append(torch.get_num_threads())
        return compute_square_loss(module, x, y)

    network = Network(Counting, draw_pairs, loss, TrainingRecipe(optimiser="sgd", rate=3e-2))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        wide = torch.ones(1 << 20)
        (wide + wide).sum()  # the second thread is there
        made = follow_trajectory(ExactTraining(network, network.recipe), 1, (0, 1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1} and not made.note


def test_a_reference_whose_draws_are_not_made_beside_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As autograd refuses it in a fork of a process that has used a device."""
    monkeypatch.setattr(trajectory, "LARGE", 1)
    here, forked, fork = os.getpid(), list[int](), os.fork

    def loss(module: Any, x: Any, y: Any) -> Any:
        if os.getpid() != here:
            raise RuntimeError("no backward here")
        return compute_square_loss(module, x, y)

    def count() -> int:
        forked.append(1)
        return fork()

    monkeypatch.setattr(os, "fork", count)
    monkeypatch.setattr(forks, "count_processes_at_once", lambda _: 1)
    network = Network(Counting, draw_pairs, loss, TrainingRecipe(optimiser="sgd", rate=3e-2))
    monkeypatch.setattr(catalog, "find_network_of_group", lambda _: replace(network, note="dropout is off"))
    (sample,) = catalog.Training().samples(Group("training:mine", "", "float32", 1, 0, "train"), 1)
    assert sample.failure is None and len(forked) == 1
    assert sample.columns["note"] == "dropout is off; " + trajectory.NOTE.format("RuntimeError: no backward here")
