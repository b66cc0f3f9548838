"""The catalog "training": steps of a training run, each held to float64 in all its phases."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection, Iterator
from typing import Any

from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Catalog, Entry, Failure, Sample
from tasks.model import Group, Leaf, OpClass, OwnKernel
from tasks.training import networks
from tasks.training.exact import STORED, Exact
from tasks.training.loop import TrainingLoop
from tasks.training.recipe import Recipe
from tasks.training.trajectory import Trajectory, follow

CATALOG_VERSION = "1"
#: float32, and what autocast computes in.
DTYPES = (STORED, "bfloat16")
#: The check that its samples are for.
CHECK = "train"


class Training(Catalog):
    """The op is a network, the variant what of its recipe is another. In 16 bits autocast computes; weights stay float32."""

    name = "training"
    about = "steps of a training run"
    forms = ("torch",)
    imports = ("torch",)

    def version(self) -> str:
        return (
            f"{CATALOG_VERSION}+numpy{importlib.metadata.version('numpy')}+torch{importlib.metadata.version('torch')}"
        )

    def entries(self) -> list[Entry]:
        return [Entry(f"{self.name}:{name}", "", DTYPES, (CHECK,)) for name in sorted(networks.BUILT_IN)]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        if group.dtype not in DTYPES:
            raise ValueError(f"training: {group.label} has no dtype {group.dtype!r}; it has {', '.join(DTYPES)}")
        return (Sample(i) if i in skip else _sample(group, i) for i in range(group.samples))

    def call(self, group: Group) -> Callable[..., Any]:
        return lambda **given: []  # a session is what runs it

    def own_kernel(self, group: Group) -> OwnKernel:
        return OwnKernel(session=lambda: loop_of(group))

    def traced(self, group: Group) -> None:
        return None


def loop_of(group: Group) -> TrainingLoop:
    """The loop of a group, as a device runs it."""
    network = networks.get(group.op_name)
    return TrainingLoop(network, recipe_of(group), precision_of(group))


def recipe_of(group: Group) -> Recipe:
    return networks.get(group.op_name).recipe


def precision_of(group: Group) -> str:
    """What autocast computes in; "" for none."""
    return "" if group.dtype == STORED else group.dtype


def _sample(group: Group, index: int) -> Sample:
    try:
        exact = Exact(networks.get(group.op_name), recipe_of(group), precision_of(group))
        return build_sample(index, exact.recipe, follow(exact, group.seed + 1000 * index))
    except Exception as error:
        return Sample(index, failure=Failure.of(error, "reference"))


def build_sample(index: int, recipe: Recipe, followed: Trajectory) -> Sample:
    """The sample of some steps."""
    expected, slopes = [], []
    for one in followed.outputs:
        steps = len(followed.inputs["number"])
        floor = None if one.floor is None else one.floor.reshape(steps, *(1 for _ in one.shape))
        expected.append(Leaf(STORED, (steps, *one.shape), one.reference, floor))
        slopes.append(one.slope)
    return Sample(
        index,
        (),
        {name: TensorSpec(id=k) for k, name in enumerate(followed.inputs)} | {"recipe": recipe.values()},
        arrays=list(followed.inputs.values()),
        expected=expected,
        op_class=OpClass.COMPOSITE,
        oracle="torch-float64",
        names=tuple(one.name for one in followed.outputs),
        phases=tuple(one.phase for one in followed.outputs),
        slopes=tuple(slopes),
        stepped=tuple(range(len(followed.inputs))),
    )
