"""Clipping of large gradients: what float32's sum of squares is off by is excused and told, what is more than that is not."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from tasks.catalogs.training import catalog, own
from tasks.catalogs.training.own import OwnTraining
from tasks.judge.training_phases import (
    LANES,
    expect_phase_alone,
    expect_probe,
    find_excused_factor,
    measure_phase_floors,
)
from tasks.model import Group, Leaf
from tasks.model.flags import parse_row_flags
from tasks.prepare.cases import PreparedSample, prepare_group
from tasks.training.exact import ExactTraining
from tasks.training.phases import CLIPPED, FLAG_NORM, PROBE, OwnGradients
from tasks.training.recipe import TrainingRecipe
from tasks.training.trajectory import follow_trajectory
from tasks.zoo import training as zoo
from tasks.zoo.training.planted import Planted
from tests.bench.training_faults import judge_loop

LIMIT = 16.0
RECIPE = TrainingRecipe(clip=0.5)
NAMES = ("large", "small")
LARGE = Group("training:large", "", "float32", 1, 0, "train")

#: A parameter of 1,048,576 elements, beside small ones.
SOURCE = """
import torch
from torch import nn
from torch.nn import functional

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.up = nn.Embedding(1024, 1024), nn.LayerNorm(1024), nn.Linear(1024, 16)
        self.down = nn.Linear(16, 1024)
        nn.init.normal_(self.words.weight, 0.0, 0.02)

    def forward(self, x):
        h = self.norm(self.words(x))
        return functional.linear(h + self.down(torch.tanh(self.up(h))), self.words.weight)

def data():
    g = torch.Generator().manual_seed(1)
    for _ in range(44):
        yield torch.randint(0, 1024, (512,), generator=g), torch.randint(0, 1024, (512,), generator=g)

def make():
    torch.manual_seed(0)
    module = Net()
    return module, data(), torch.optim.AdamW(module.parameters()), functional.cross_entropy, {"clip": 0.1}
"""


def draw_gradients(size: int, spread: float = 1.0, small: int = 4096) -> list[torch.Tensor]:
    """Of a large parameter and a small one, which has a tenth of the norm."""
    made = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (size, small)]
    made[1] *= 0.1 * float(made[0].double().norm()) / float(made[1].double().norm())
    return [spread * x for x in made]


def measure(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> tuple[float, float]:
    """(the factor that is excused, floors of the worst parameter)."""
    given, outputs = OwnGradients([x.numpy() for x in before]), [x.numpy() for x in after]
    leaves = [Leaf("float32", x.shape, None) for x in outputs]
    factor = find_excused_factor(RECIPE, given, outputs)
    expected = expect_phase_alone(CLIPPED, RECIPE, 0, {}, given, NAMES, leaves, factor)
    return factor, measure_phase_floors(outputs, expected, CLIPPED, NAMES, LIMIT).error_units or 0.0


def clip_by_norm(gradients: Sequence[torch.Tensor], norm: torch.Tensor | float) -> list[torch.Tensor]:
    """The gradients as they are clipped by a norm."""
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for p, g in zip(parameters, gradients):
        p.grad = g.clone()
    clip_grads_with_norm_(parameters, RECIPE.clip, torch.as_tensor(norm))
    return [p.grad for p in parameters if p.grad is not None]


def add_in_lanes(gradients: Sequence[torch.Tensor], lanes: int) -> float:
    """The norm, of each array's squares in so many running sums of float32."""
    sums = (np.add.accumulate(np.square(x.numpy()).reshape(-1, lanes), axis=0)[-1] for x in gradients)
    return math.sqrt(sum(float(x.astype(np.float64).sum()) for x in sums))


@pytest.mark.parametrize("size", [256_000, 1 << 20, 1 << 22])
@pytest.mark.parametrize("foreach", [True, False])
def test_clipping_by_torchs_norm_is_right_at_any_size(size: int, foreach: bool) -> None:
    gradients = draw_gradients(size)
    factor, floors = measure(gradients, clip_by_norm(gradients, get_total_norm(gradients, foreach=foreach)))
    assert floors < 1.0
    assert abs(factor - 1.0) < 2.0**-24 * size / 1024


@pytest.mark.parametrize("lanes", LANES)
def test_a_norm_in_as_many_sums_as_a_vector_has_is_right(lanes: int) -> None:
    gradients = draw_gradients(1 << 20)
    norm = add_in_lanes(gradients, lanes)
    factor, floors = measure(gradients, clip_by_norm(gradients, norm))
    assert factor != 1.0 and floors < 1.0
    assert norm / add_in_lanes(gradients, 1 << 10) == pytest.approx(1 / factor, abs=2.0**-21)


def test_a_norm_further_off_than_any_vector_leaves_it_is_wrong() -> None:
    gradients = draw_gradients(1 << 20)
    factor, floors = measure(gradients, clip_by_norm(gradients, add_in_lanes(gradients, 1)))
    assert factor == 1.0 and floors > LIMIT
    factor, floors = measure(gradients, clip_by_norm(gradients, add_in_lanes(gradients, 1 << 10) * (1 + 2e-5)))
    assert factor == 1.0 and floors > LIMIT, "small squares are lost: it is never too large"


def test_what_the_floors_have_is_not_excused() -> None:
    gradients = draw_gradients(2048)
    assert measure(gradients, clip_by_norm(gradients, get_total_norm(gradients)))[0] == 1.0
    exact = float(torch.cat(draw_gradients(1 << 20)).double().norm())
    assert measure(draw_gradients(1 << 20), clip_by_norm(draw_gradients(1 << 20), exact))[0] == 1.0


def test_what_is_not_common_to_all_is_judged_as_sharply_beside_it() -> None:
    gradients = draw_gradients(1 << 20)
    clipped = clip_by_norm(gradients, get_total_norm(gradients))
    clipped[1] *= 1.0 + 3e-5
    assert measure(gradients, clipped)[1] > LIMIT


def test_squares_that_overflow_excuse_nothing() -> None:
    gradients = draw_gradients(1 << 16, 1e20)
    clipped = clip_by_norm(gradients, get_total_norm(gradients))
    assert not clipped[0].any()
    factor, floors = measure(gradients, clipped)
    assert factor == 1.0 and floors > LIMIT


def test_outputs_of_other_shapes_and_gradients_that_are_no_numbers_excuse_nothing() -> None:
    gradients = draw_gradients(1 << 16)
    given = OwnGradients([x.numpy() for x in gradients])
    assert find_excused_factor(RECIPE, given, given.arrays[:1]) == 1.0
    assert find_excused_factor(RECIPE, given, [np.zeros(3), np.zeros(4)]) == 1.0
    assert find_excused_factor(RECIPE, given, [np.full_like(x, np.nan) for x in given.arrays]) == 1.0
    nothing = OwnGradients([np.zeros_like(x) for x in given.arrays])
    assert find_excused_factor(RECIPE, nothing, nothing.arrays) == 1.0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedSample]:
    """Two steps of a training of one's own."""
    root = tmp_path_factory.mktemp("large")
    (root / "mine.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "list_own_trainings", lambda: {"large": OwnTraining("large", "mine.py:make", str(root))})
        patch.setattr(catalog, "follow_trajectory", functools.partial(follow_trajectory, steps=(0, 1)))
        yield prepare_group(LARGE, root / "cache")[1].samples[0]


def judge(sample: PreparedSample, cases: Sequence[Planted], name: str) -> tuple[str, str, str]:
    """(status, kind, share by which the norm is off) of a planted loop of the GPT, put into the large one."""
    (case,) = (x for x in cases if (x.name, x.network) == (name, "gpt"))
    found, _ = judge_loop(sample, case.make(LARGE))
    return found.status.value, found.kind, parse_row_flags(found.columns.get("flags")).get(FLAG_NORM, "")


@pytest.mark.parametrize("name", ["plain", "clip_by_hand", "clip_one_at_a_time"])
def test_a_large_training_that_is_clipped_rightly_passes(large: PreparedSample, name: str) -> None:
    *verdict, share = judge(large, zoo.HONEST, name)
    assert verdict == ["pass", ""]
    assert bool(share) == (name != "clip_by_hand"), "its norm is added up in float64"


@pytest.mark.parametrize(
    "name",
    ["clipped_by_value", "clipped_one_by_one", "clipping_left_out", "norm_without_embedding", "norm_in_bfloat16"],
)
def test_a_large_training_that_is_clipped_wrongly_is_named(large: PreparedSample, name: str) -> None:
    assert judge(large, zoo.FAULTS, name) == ("wrong", CLIPPED, "")


def test_the_probe_is_moved_by_what_is_excused_and_by_nothing_else() -> None:
    leaf = Leaf("float32", (), np.array(10.0), of_norm=np.array(-0.5))
    gradients = draw_gradients(1 << 20)
    for norm in (get_total_norm(gradients), float(torch.cat(gradients).double().norm()), 1.0):
        given = OwnGradients([x.numpy() for x in gradients])
        assert expect_probe(leaf, given).reference == 10.0, "nobody has looked at how they are clipped"
        outputs = [x.numpy() for x in clip_by_norm(gradients, norm)]
        factor = find_excused_factor(RECIPE, given, outputs)
        assert expect_probe(leaf, given).reference == 10.0 - 0.5 * (factor - 1.0)
        assert (factor != 1.0) == isinstance(norm, torch.Tensor)


def test_what_a_norm_does_to_the_probe_is_what_other_gradients_do(large: PreparedSample) -> None:
    network = catalog.find_network_of_group(LARGE)
    exact = ExactTraining(network, catalog.make_recipe_of_group(LARGE, network))
    rng = np.random.default_rng(0)
    batch, probe = [x[None] for x in network.draw(rng)], network.draw(rng)
    seen = exact.step(exact.start, 0, batch, probe)
    assert seen.probe_of_norm
    exact.recipe = replace(exact.recipe, clip=exact.recipe.clip * 1.002)
    longer = exact.step(exact.start, 0, batch, probe)
    moved = float(longer.phases[PROBE][0] - seen.phases[PROBE][0])
    assert moved == pytest.approx(0.002 * seen.probe_of_norm, rel=1e-2)
    exact.recipe = replace(exact.recipe, clip=0.0)
    assert exact.step(exact.start, 0, batch, probe).probe_of_norm is None
