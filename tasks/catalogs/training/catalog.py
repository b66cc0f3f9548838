"""The catalog "training": steps of a training run, each held to float64 in all its phases."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Catalog, Entry, Failure, Sample
from tasks.catalogs.training import own
from tasks.graphs.given_model import GivenError
from tasks.model import Group, Leaf, OpClass, OwnKernel, Unsupported
from tasks.model.row import YOUR_OWN
from tasks.training import networks
from tasks.training.exact import STORED, ExactTraining
from tasks.training.loop import TrainingLoop
from tasks.training.networks.base import Network
from tasks.training.recipe import FLOAT8, TrainingRecipe
from tasks.training.trajectory import Trajectory, follow_trajectory

CATALOG_VERSION = "4"
#: float32, what autocast computes in, and FP8 in the linear layers.
DTYPES = (STORED, "bfloat16", "float16", FLOAT8)
#: The only linear layer of the convolution has ten columns.
WITHOUT_FLOAT8 = ("convolution",)
#: The check that its samples are for.
CHECK = "train"
#: Variants of the GPT: what of its recipe is another; the recipe as it is has no name.
VARIANTS: dict[str, dict[str, Any]] = {
    "foreach": {"way": "foreach"},
    "fused": {"way": "fused"},
    "sgd": {"optimiser": "sgd", "rate": 0.05, "decay": 1e-3},
    "checkpoint": {"checkpoint": True},
    "micro": {"accumulate": 4},
    "compressed": {"accumulate": 4, "compress": "bfloat16"},
}


class Training(Catalog):
    """The op is a network, the variant what of its recipe is another. In 16 bits autocast computes; weights stay
    float32."""

    name = "training"
    forms = ("torch", "jax")
    imports = ("torch",)
    # Thirteen steps: their reference takes 5 to 15 s of a core, a case on eager torch half a second to a second, on
    # inductor, which compiles forward and backward, 30 to 45 s.
    group_worth, case_worth = 300.0, 50.0

    def version(self) -> str:
        return (
            f"{CATALOG_VERSION}+numpy{importlib.metadata.version('numpy')}+torch{importlib.metadata.version('torch')}"
        )

    def entries(self) -> list[Entry]:
        found = [Entry(f"{self.name}:{name}", "", DTYPES, (CHECK,)) for name in own.list_own_trainings()]
        for name in networks.BUILT_IN:
            variants = ("", *(VARIANTS if name == "gpt" else ()))
            dtypes = tuple(x for x in DTYPES if x != FLOAT8 or name not in WITHOUT_FLOAT8)
            found += [Entry(f"{self.name}:{name}", variant, dtypes, (CHECK,)) for variant in variants]
        return sorted(found, key=lambda x: (x.op, x.variant))

    def list_version(self) -> str:
        return f"{self.version()} {sorted(own.list_own_trainings().items())}"

    def group_version(self, group: Group) -> str:
        mine = own.list_own_trainings().get(group.op_name)
        return mine.digest() if mine else ""

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        if group.dtype not in DTYPES:
            raise ValueError(f"training: {group.label} has no dtype {group.dtype!r}; it has {', '.join(DTYPES)}")
        return (Sample(i) if i in skip else _make_training_sample(group, i) for i in range(group.samples))

    def call(self, group: Group) -> Callable[..., Any]:
        return lambda **given: []  # a session is what runs it

    def own_kernel(self, group: Group) -> OwnKernel:
        return OwnKernel(session=lambda: make_loop_of_group(group))

    def traced(self, group: Group) -> None:
        return None


def make_loop_of_group(group: Group) -> TrainingLoop:
    """The loop of a group, as a device runs it. Raises Unsupported where it cannot be made here."""
    try:
        network = find_network_of_group(group)
    except GivenError as error:
        raise Unsupported(str(error)) from None
    return TrainingLoop(network, make_recipe_of_group(group, network), find_precision_of_group(group))


def find_network_of_group(group: Group) -> Network:
    """Raises ValueError for a network that the catalog does not have, GivenError for one of the user's that cannot be
    had."""
    mine = own.list_own_trainings()
    if group.op_name in mine:
        return mine[group.op_name].network()
    if group.op_name not in networks.BUILT_IN or group.variant not in ("", *VARIANTS):
        raise ValueError(f"the catalog training has no {group.label!r}")
    return networks.get_training_network(group.op_name)


def make_recipe_of_group(group: Group, network: Network) -> TrainingRecipe:
    return replace(network.recipe, **VARIANTS.get(group.variant, {}))


def find_precision_of_group(group: Group) -> str:
    """What autocast computes in; "" for none."""
    return "" if group.dtype == STORED else group.dtype


def _make_training_sample(group: Group, index: int) -> Sample:
    # A run whose only case is a training of one's own that is broken must not end as if it were right.
    columns = {"licence": YOUR_OWN} if group.op_name in own.list_own_trainings() else {}
    try:
        network = find_network_of_group(group)
        exact = ExactTraining(network, make_recipe_of_group(group, network), find_precision_of_group(group))
        followed = follow_trajectory(exact, group.seed + 1000 * index)
        made = build_training_sample(index, exact, followed)
        notes = filter(None, (network.note, followed.note))
        columns |= {"note": note} if (note := "; ".join(notes)) else {}
    except Unsupported as error:
        made = Sample(index, failure=Failure.unsupported(str(error)))
    except Exception as error:
        made = Sample(index, failure=Failure.of(error, "reference"))
    return replace(made, columns=made.columns | columns)


def build_training_sample(index: int, exact: ExactTraining, followed: Trajectory) -> Sample:
    """The sample of some steps."""
    expected, slopes = [], []
    for one in followed.outputs:
        steps = len(followed.inputs["number"])
        floor = (
            None
            if one.floor is None
            else one.floor.reshape(*one.floor.shape, *(1,) * (1 + len(one.shape) - one.floor.ndim))
        )
        expected.append(Leaf(STORED, (steps, *one.shape), one.reference, floor, of_norm=one.of_norm))
        slopes.append(one.slope)
    return Sample(
        index,
        (),
        {name: TensorSpec(id=k) for k, name in enumerate(followed.inputs)}
        | {"recipe": exact.recipe.values(), "places": exact.places.values()},
        arrays=list(followed.inputs.values()),
        expected=expected,
        op_class=OpClass.COMPOSITE,
        oracle="torch-float64",
        names=tuple(one.name for one in followed.outputs),
        phases=tuple(one.phase for one in followed.outputs),
        slopes=tuple(slopes),
        stepped=tuple(range(len(followed.inputs))),
    )
