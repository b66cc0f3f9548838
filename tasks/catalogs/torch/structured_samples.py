"""Structured samples of torch's ops: op_db's own, with an input that selects (indices, classes, masks) in a structure."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.catalogs.base import CANDIDATES, Failure, Sample
from tasks.catalogs.torch.templates import Path, describe_template_structure, list_template_tensors, rebuild_template
from tasks.draw import structure as structures
from tasks.draw.seeds import derive_seed
from tasks.model import Group, is_inexact_dtype

#: What torch's schemas and signatures call a tensor that selects.
SELECTING = ("index", "indices", "target", "mask", "condition", "input")
#: Elements of a sample at most, and samples of a group.
ELEMENTS, MOST = 1 << 16, 42
#: Structures that a template is tried with.
TURNS = 8


def takes_structured_inputs(info: Any) -> bool:
    """Whether a schema of the op, or its signature, has a tensor that selects."""
    name = info.name.rpartition(".")[2].removeprefix("_")
    return bool(_list_selecting_arguments(name, info.op) & set(SELECTING[:-1]))


def _list_selecting_arguments(name: str, op: Callable[..., Any]) -> set[str]:
    import torch

    found: set[str] = set()
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        found |= {x.name for x in schema.arguments if "Tensor" in str(x.type) and not x.is_out}
    try:
        found |= set(inspect.signature(op).parameters)
    except (TypeError, ValueError):
        pass
    return found


def samples(
    group: Group, own: list[Any], make: Callable[[int, Any], Sample], skip: Collection[int] = (), first: int = 0
) -> Iterator[Sample]:
    """Up to CANDIDATES × group.samples samples, made by ``make``. skip: places, counted from ``first``, whose sample is
    yielded bare.

    The values are among those that the template's own tensor has (`tasks.draw.structure.draw_structure_like`). A sample is vacuous
    where the float64 reference does not take them, or makes NaN of them; a single one says so where no input selects.
    """
    found = list(_select_sample_templates(own, group.dtype)) if is_inexact_dtype(group.dtype) else []
    if not found:
        yield Sample(-1, failure=Failure.vacuous("it has no floating call with an input that selects"))
        return
    most = min(CANDIDATES * group.samples, MOST)
    for index, (source, path, code, values) in enumerate(
        itertools.islice(_iterate_structured_inputs(group, found), most)
    ):
        if index + first in skip:
            yield Sample(index)
            continue

        def replace_leaf(at: Path, x: Any, path: Path = path, values: Any = values) -> Any:
            return torch_tree.tensor_from_numpy(values) if at == path else x

        made = make(index, rebuild_template(source, replace_leaf))
        if made.failure is not None or not _has_number_inputs(made):
            why = made.failure.error if made.failure is not None else "the reference is NaN"
            made = Sample(
                index, failure=Failure.vacuous(f"the op does not take {_format_input_path(path)} {code}: {why}")
            )
        made.columns["structure"] = structures.write_structure_label(_format_input_path(path), code)
        yield made


def _iterate_structured_inputs(
    group: Group, found: list[tuple[Any, Path]]
) -> Iterator[tuple[Any, Path, str, np.ndarray]]:
    """(template, path of the input, its structure, its values), each once: of every template one structure, then of
    every one another."""
    done: set[tuple[int, str]] = set()
    for step in range(TURNS):
        for place, (source, path) in enumerate(found):
            turn = (step + place) % TURNS
            x = torch_tree.tensor_to_numpy(list_template_tensors(source)[path].contiguous())
            seed = derive_seed(group.seed, f"{group.label}/{group.dtype}/{_format_input_path(path)}/{place}/{turn}")
            made = structures.draw_structure_like(x, turn, seed)
            if made is not None and (place, made[0]) not in done:
                done.add((place, made[0]))
                yield source, path, *made


def _select_sample_templates(own: list[Any], dtype: str) -> Iterator[tuple[Any, Path]]:
    """One sample of each structure of arguments with each of its tensors that select."""
    seen: set[Any] = set()
    for source in own:
        held = list_template_tensors(source)
        if (kind := describe_template_structure(source)) in seen or any(x.numel() > ELEMENTS for x in held.values()):
            continue
        if any(str(x.layout) != "torch.strided" for x in held.values()):
            continue
        if not any(torch_tree.name_torch_dtype(x.dtype) == dtype for x in held.values()):
            continue
        seen.add(kind)
        for path, x in held.items():
            if (
                x.numel() > 1
                and not x.is_floating_point()
                and not x.is_complex()
                and not _is_input_constrained(path, x)
            ):
                yield source, path


def _is_input_constrained(path: Path, x: Any) -> bool:
    """Whether an input's values are bound to others: lengths, offsets, sizes, an order that it is to have."""
    name = str(path[-1])
    flat = x.reshape(-1)
    return any(word in name for word in ("length", "offset", "sorter", "repeat", "split")) or (
        x.dtype.is_signed and bool((flat.diff() >= 0).all())
    )


def _format_input_path(path: Path) -> str:
    """What a row calls the input at a path: an argument by its place or name, an element of a list by its own."""
    first = f"argument{path[0]}" if isinstance(path[0], int) else str(path[0])
    return first + "".join(f"[{str(x).rpartition(' ')[2]}]" for x in path[1:])


def _has_number_inputs(sample: Sample) -> bool:
    leaves = [leaf for leaf in sample.expected if leaf.reference is not None and is_inexact_dtype(leaf.dtype)]
    return not any(np.isnan(np.asarray(leaf.reference)).any() for leaf in leaves)
