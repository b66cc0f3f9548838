"""Whether results that should be the same bytes are, where they are not, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.checks.base import Observation
from tasks.model import EPS, Misbehaviour, Program

#: Column of a row: the largest distance that was seen, 0 where all bytes are the same.
APART = "apart_units"


@dataclass(frozen=True)
class ByteDifference:
    """What differs. units: the largest |a − b| ÷ (ε·max(|a|, |b|, root mean square of the output)); None where that is
    nothing: another shape or dtype, integers, NaN on one side."""

    text: str
    units: float | None = None


def copy_program_outputs(outputs: Sequence[Any]) -> list[Any]:
    """What was returned, in memory of its own: a program that writes to it again is found out."""
    return [None if x is None else np.array(x) for x in outputs]


def find_byte_difference(first: Sequence[Any], outputs: Sequence[Any]) -> ByteDifference | None:
    """How the outputs differ from the first ones, at the first output that does; None where all bytes are the same."""
    if len(outputs) != len(first):
        return ByteDifference(f"{len(outputs)} outputs instead of {len(first)}")
    for number, (a, b) in enumerate(zip(first, outputs)):
        if a is None or b is None:
            if a is not b:
                return ByteDifference(f"output {number} is {'none' if b is None else 'there'}")
        elif a.shape != b.shape or a.dtype != b.dtype:
            return ByteDifference(f"output {number} is {b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}")
        elif a.dtype.kind == "O":
            if a.tolist() != b.tolist():
                return ByteDifference(f"output {number} differs")
        elif a.tobytes() != b.tobytes():
            size = a.dtype.itemsize
            left, right = (np.frombuffer(x.tobytes(), np.uint8).reshape(-1, size) for x in (a, b))
            where = np.flatnonzero((left != right).any(axis=1))
            at = tuple(int(i) for i in np.unravel_index(where[0], a.shape))
            words = f"output {number} differs in {where.size} of {a.size} elements, first at {at}: {b[at]} for {a[at]}"
            return ByteDifference(words, _measure_difference_units(a, b))
    return None


def _measure_difference_units(a: np.ndarray, b: np.ndarray) -> float | None:
    eps = EPS.get(a.dtype.name)
    if eps is None:
        return None
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        finite = np.isfinite(a)
        size = np.sqrt(np.mean(np.square(np.abs(a[finite])))) if finite.any() else 0.0
        apart = np.abs(a - b) / (eps * np.maximum(np.maximum(np.abs(a), np.abs(b)), size))
    apart = np.where(
        (a == b) | (np.isnan(a) & np.isnan(b)), 0.0, apart
    )  # of no dimensions it is a number, which takes no items
    return float(apart.max(initial=0.0)) if np.isfinite(apart).all() else None


def make_difference_misbehaviour(
    program: Program, found: ByteDifference, kind: str, when: str, first: Sequence[Any]
) -> Misbehaviour:
    """What is raised of a difference: outputs ``first`` are measured all the same, and the distance is a column of the
    row."""
    program.columns = program.columns | {APART: found.units}
    far = "" if found.units is None else f" (at most {found.units:.3g} units apart)"
    raised = Misbehaviour(kind, f"{found.text}{far} {when}")
    raised.outputs = list(first)
    return raised


def observe_same_again(
    name: str,
    outputs: Sequence[Any],
    first: Sequence[Any],
    kind: str,
    program: Program,
    when: str = "",
    others: Sequence[Any] | None = None,
) -> Observation:
    """The observation of outputs that should have the bytes of the ``first`` ones, or of ``others`` that were given the
    same inputs.

    Where they have not, its error is what `make_difference_misbehaviour` makes of the first ones: the check ends there. when: in
    words, where ``name`` does not say it.
    """
    found = find_byte_difference(first if others is None else others, outputs)
    if found is None:
        return Observation(name, outputs, judged=False, apart=0.0)
    error = make_difference_misbehaviour(program, found, kind, when or name, first)
    return Observation(name, outputs, error, judged=False, kind=kind, apart=found.units)
