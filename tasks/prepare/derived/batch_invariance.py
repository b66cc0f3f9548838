"""Samples of the check batch_invariance: an op's own sample, and which of its arrays have rows that are computed each by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays.tree import (
    TensorSpec,
    encode_tensor_spec,
    list_tensor_specs,
    make_contiguous_tensor,
    map_tree_tensors,
    read_tensor_spec,
)
from tasks.catalogs import get_catalog
from tasks.catalogs.base import Catalog, Sample
from tasks.checks.batch_invariance import put_rows_in_batch, take_batch_row
from tasks.model import Group, OpClass, Vacuous

#: Classes whose outputs no reference says, so that a batch axis cannot be told.
_UNSAID = (OpClass.RANDOM, OpClass.UNINITIALISED, OpClass.CHOICE)
#: How far float64 evaluations of the same row may be apart, as a share of the largest element.
_SAME = 2.0**-30


def derive(base: Sample, number: int, group: Group, draws: int) -> Sample:
    """The sample ``base``, its arrays contiguous, with the places of those whose first axis is a batch.

    A set of arrays is one where the float64 reference of three rows has, row by row, what the reference of each row
    alone has. Tried are those with the first one's number of rows, of its dimensions, the first, then each other one
    alone. Raises Vacuous where none is.
    """
    if base.definition or base.op_class in _UNSAID or any(leaf.reference is None for leaf in base.expected):
        raise Vacuous("what a row is to give cannot be said")
    trees = base.encoded()
    specs = [spec for tree in trees for spec in list_tensor_specs(tree)]
    if any(spec.layout != "strided" for spec in specs):
        raise Vacuous("an input is no strided tensor")
    places = iter(range(len(specs)))

    def plain(node: dict[str, Any]) -> dict[str, Any]:
        return encode_tensor_spec(TensorSpec(next(places), flags=read_tensor_spec(node).flags))

    args, kwargs = (map_tree_tensors(tree, plain) for tree in trees)
    arrays = [np.array(make_contiguous_tensor(base.arrays[spec.id], spec)) for spec in specs]
    own = replace(base, index=number, args=args, kwargs=kwargs, arrays=arrays)
    catalog = get_catalog(group.catalog)
    for batched in _iterate_batch_choices(arrays):
        if _computes_rows_alone(catalog, group, own, batched):
            return replace(own, batched=batched)
    raise Vacuous("no input has rows computed independently")


def _iterate_batch_choices(arrays: Sequence[np.ndarray]) -> Iterator[tuple[int, ...]]:
    wide = [k for k, x in enumerate(arrays) if x.ndim and x.shape[0] and x.dtype.kind not in "OSU"]
    if not wide:
        return
    lead = arrays[wide[0]]
    seen = set()
    for chosen in (
        tuple(k for k in wide if arrays[k].shape[0] == lead.shape[0]),
        tuple(k for k in wide if arrays[k].shape[0] == lead.shape[0] and arrays[k].ndim == lead.ndim),
        *((k,) for k in wide if arrays[k].ndim > 1 or k == wide[0]),
    ):
        if chosen not in seen:
            seen.add(chosen)
            yield chosen


def _computes_rows_alone(catalog: Catalog, group: Group, own: Sample, batched: tuple[int, ...]) -> bool:
    """Whether the op computes rows of these arrays each by itself, in float64."""

    def reference(arrays: list[np.ndarray]) -> list[np.ndarray]:
        made = catalog.remade(group, replace(own, arrays=arrays), 1)
        known = [leaf.reference for leaf in made.expected if leaf.reference is not None]
        if made.failure or len(known) != len(own.expected):
            raise ValueError("no reference")
        return known

    return does_reference_go_by_row(reference, own.arrays, batched)


def does_reference_go_by_row(
    reference: Callable[[list[np.ndarray]], Sequence[np.ndarray]], arrays: Sequence[np.ndarray], batched: Sequence[int]
) -> bool:
    """Whether a float64 ``reference``, which may raise, computes rows of the arrays at the places ``batched`` each by
    itself."""

    def of(rows: list[list[np.ndarray]]) -> Sequence[np.ndarray]:
        made = reference(put_rows_in_batch(rows, batched))
        if any(x.shape[:1] != (len(rows),) for x in made):
            raise ValueError("not as many rows")
        return made

    first, last = take_batch_row(arrays, batched, 0), take_batch_row(arrays, batched, -1)
    try:
        alone = [of([first]), of([last])]
        together = of([first, last, first])
    except Exception:
        return False
    return all(_are_close_rows(x[i : i + 1], alone[i % 2][k]) for k, x in enumerate(together) for i in range(3))


def _are_close_rows(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind not in "fc":
        return bool((a == b).all())
    size = np.abs(b)
    scale = float(size.max(initial=0.0, where=np.isfinite(size)))
    return bool(np.allclose(a, b, rtol=_SAME, atol=scale * _SAME, equal_nan=True))
