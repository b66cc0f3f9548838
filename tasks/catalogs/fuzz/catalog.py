"""The catalog "fuzz": generated cases of ONNX operators, of two that may be fused, and of graphs, with float64 references."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tasks.catalogs.base import Entry, Failure, GeneratingCatalog, Sample
from tasks.catalogs.fuzz import GENERATED, graphs
from tasks.draw.choices import DrawnChoices
from tasks.draw.seeds import derive_seed
from tasks.fuzz import table
from tasks.fuzz.graphs import build
from tasks.fuzz.onnx import generate, second
from tasks.fuzz.onnx.generate import GENERATOR, GeneratedNode
from tasks.graphs.noise_floor import compute_graph_floors, list_graph_floor_inputs
from tasks.graphs.widening import NoOracle
from tasks.judge import op_classes
from tasks.model import WITHOUT_NOISE, Group, Leaf, OpClass
from tasks.model.kind import KIND_SPEC, KIND_UNDRAWN
from tasks.nearest import suggest_nearest_names
from tasks.operators import table as operators
from tasks.operators.left_open import LeftOpen

#: The variant of today's generator of single operators; that of a case made by choices alone begins with CHOICES.
VARIANT, CHOICES = f"g{GENERATOR}", "c"


def get_generator_variant(op: str) -> str:
    """The variant of today's generator of an op."""
    return graphs.VARIANT if op in graphs.NAMES else VARIANT


def make_variant_of_choices(choices: Sequence[int]) -> str:
    """The variant whose only sample is made of these choices: ``c3-0-17``."""
    return CHOICES + "-".join(map(str, choices))


class Fuzz(GeneratingCatalog):
    """An op is "fuzz:<OpType>", "fuzz:<OpType>+", "fuzz:graph" or "fuzz:rewritten" (`tasks.catalogs.fuzz.graphs`), its
    variant the generator's version: sample n of a group is made from a seed derived of the group's seed, its op, its
    dtype and n. With the variant `make_variant_of_choices` some choices, sample 0 is made of them."""

    name = GENERATED
    forms = ("onnx",)
    imports = ("onnx.checker",)

    def version(self) -> str:
        return f"fuzz {VARIANT} {graphs.VARIANT} " + " ".join(
            f"{x}{importlib.metadata.version(x)}" for x in ("numpy", "onnx", "ml_dtypes")
        )

    def generator(self, op: str) -> str:
        return get_generator_variant(op)

    def variant_of(self, choices: Sequence[int]) -> str:
        return make_variant_of_choices(choices)

    def seed_of(self, group: Group, index: int) -> int:
        return make_seed_of_fuzzed(group, index)

    def entries(self) -> list[Entry]:
        return [
            Entry(f"{self.name}:{op}", get_generator_variant(op), _list_fuzzed_dtypes(op))
            for op in sorted((*table.SPECS, *graphs.NAMES))
        ]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        """Samples 0 … group.samples − 1. Raises ValueError for an op, a dtype or a variant that there is not."""
        if group.op_name not in table.SPECS and group.op_name not in graphs.NAMES:
            every = sorted((*table.SPECS, *graphs.NAMES))
            raise ValueError(f"no op {group.op_name!r} is generated{suggest_nearest_names(group.op_name, every)}")
        if group.dtype not in (dtypes := _list_fuzzed_dtypes(group.op_name)):
            raise ValueError(f"fuzz: {group.op_name} does not take {group.dtype}; it takes {', '.join(dtypes)}")
        made_of = _parse_variant_choices(group)
        for index in range(group.samples if made_of is None else 1):
            if index in skip:
                yield Sample(index)
                continue
            choose = draw_fuzzed_choices(group, index) if made_of is None else DrawnChoices.from_list(made_of)
            yield self._make_sample(index, group, choose, draws)

    def chosen(self, group: Group, choose: DrawnChoices, draws: int) -> Sample:
        return self._make_sample(0, group, choose, draws)

    @staticmethod
    def _make_sample(index: int, group: Group, choose: DrawnChoices, draws: int) -> Sample:
        stage = "sample"
        try:
            if group.op_name in graphs.NAMES:
                one = graphs.build_fuzzed_graph(group.op_name, group.dtype, choose)
                stage = "reference"
                return graphs.make_graph_sample(index, group.op_name, one, draws)
            case = generate.generate_node_case(group.op_name, group.dtype, choose)
            stage = "reference"
            return _make_case_sample(index, case, draws)
        except NoOracle as error:
            failure = Failure("invalid", stage, "", str(error), kind=KIND_SPEC if isinstance(error, LeftOpen) else "")
        except Exception as error:  # a fault of the generator costs this case alone, not its group
            failure = replace(Failure.of(error, stage), kind=KIND_UNDRAWN)
        return Sample(index, columns={"choices": tuple(choose.taken)}, failure=failure)


def _list_fuzzed_dtypes(op: str) -> tuple[str, ...]:
    return build.DTYPES if op in graphs.NAMES else table.list_fuzz_dtypes(op)


def make_seed_of_fuzzed(group: Group, index: int) -> int:
    """The seed of a sample of a group."""
    return derive_seed(group.seed, f"fuzz {group.op_name} {group.dtype} {index}")


def draw_fuzzed_choices(group: Group, index: int) -> DrawnChoices:
    """The choices of a sample of a group, those of a seed of its own."""
    return DrawnChoices.from_seed(
        make_seed_of_fuzzed(group, index),
        graphs.choose_first_operator(group.op_name, group.seed, index) if group.op_name in graphs.NAMES else (),
    )


def describe_fuzzed_sample(group: Group, index: int) -> list[str]:
    """Modes and attributes of a sample of a group; none where it cannot be made."""
    choose = draw_fuzzed_choices(group, index)
    try:
        if group.op_name in graphs.NAMES:
            return graphs.build_fuzzed_graph(group.op_name, group.dtype, choose).words.split()
        return generate.generate_node_case(group.op_name, group.dtype, choose).words.split()
    except Exception:  # its row says why (`Fuzz.samples`)
        return []


def _parse_variant_choices(group: Group) -> list[int] | None:
    """The choices that a group's variant holds; None for that of today's generator. Raises ValueError for any other."""
    today, given = get_generator_variant(group.op_name), group.variant
    if given == today:
        return None
    if re.fullmatch(rf"{CHOICES}(\d+(-\d+)*)?", given):
        return [int(x) for x in given.removeprefix(CHOICES).split("-") if x]
    raise ValueError(
        f"the generator is {today} here, not {given!r}: a case of another version is made again of its choices, which "
        "its row holds (farm reproduce)"
    )


def _make_case_sample(index: int, case: GeneratedNode, draws: int) -> Sample:
    """The sample of a case. Raises NoOracle, and onnx's ValidationError for a model that is none."""
    exact = generate.evaluate_generated_node(case)
    model = generate.encode_generated_node(case, exact)
    _check_fuzzed_model(model)
    op_class = op_classes.find_op_class(f"onnx:{case.op}", kwargs=case.made.attributes).op_class
    names = generate.list_generated_dtypes(case)
    floors = _compute_fuzzed_floors(case, exact, names, op_class, draws)
    expected = [Leaf(name, y.shape, y, floor) for name, y, floor in zip(names, exact, floors)]
    arrays = [np.array(x, order="C") for x in case.inputs]
    others = second.find_generated_witness(case, model, expected, op_class)
    return Sample.of(
        index,
        arrays,
        expected=expected,
        op_class=op_class,
        oracle="farm-float64",
        others=others,
        model=model,
        columns={"choices": case.choices, "flags": case.words, "second_oracle": others[0].name if others else ""},
    )


def _check_fuzzed_model(model: bytes) -> None:
    import onnx

    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)


def _compute_fuzzed_floors(
    case: GeneratedNode, exact: list[np.ndarray], names: list[str], op_class: OpClass, draws: int
) -> list[np.ndarray | None]:
    """δ per output: what says on what is computed is moved, not what says how."""
    if not any(y.dtype == np.float64 for y in exact):
        return [None] * len(exact)  # generated numbers lie at ties: an integer that is made of them is exact
    given = [None if x is None else x.array for x in case.made.inputs]
    return compute_graph_floors(
        exact,
        lambda moved, draw: generate.evaluate_generated_node(case, moved),
        list_graph_floor_inputs(given, operators.find_operator(case.op).structural),
        (case.op,),
        names,
        op_class,
        draws,
        [None] * len(exact) if op_class in WITHOUT_NOISE else None,  # that floor is asked by few: few draws will do
    )
