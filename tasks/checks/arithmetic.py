"""The check arithmetic: in what order and in how many bits a backend adds, read from outside; it makes the backend's passport."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tasks.checks.base import Observation, Scenario
from tasks.checks.same import copy_outputs
from tasks.model import Form, Program, Session, Unsupported, flags
from tasks.passport import ARITHMETIC, SHAPES, Reading, Sum, read_sum

#: Terms of a sum that a tree of Python's calls is made for.
DEPTH = 10_000


class Arithmetic(Scenario):
    """The sample as it is, which is judged as any; then the sums of its first and last element are read (`tasks.passport`), each by some
    hundred calls of the program on other inputs. What they say are rows of the table ``passports``."""

    name = ARITHMETIC
    about = (
        "in what order, bits and rounding sums are added, read by masked inputs, and whether that predicts results to the bit; for ops of "
        "the catalog critical that add"
    )
    lacking = "nothing whose terms could be chosen is added"
    prepared = True
    whole = True
    exported = True
    needs = "forward"

    def __init__(self) -> None:
        #: The first reading of each number of terms, of a device's sums of an op in a dtype: the next are asked whether they are like it.
        self._read: dict[tuple[str, ...], dict[int, Reading]] = {}

    def wanted(self, samples: int) -> int:
        """Each op is asked at all shapes."""
        return len(SHAPES) if samples else 0

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        """Raises Unsupported where the runtime takes a program's inputs once, or the form has lost an array of the terms."""
        first = copy_outputs(session.step())
        yield Observation("the sample as it is", first)
        if program.fallback:
            return
        if not form.terms:
            raise Unsupported("the form has other arrays than the op, so nothing tells where the terms of its sums lie")
        again = program.again
        if again is None:
            raise Unsupported("the runtime takes the inputs of a program once")
        sys.setrecursionlimit(max(sys.getrecursionlimit(), DEPTH))
        rows = first[0].shape[0] if np.ndim(first[0]) else None
        run: Any = again
        found: list[Reading] = []
        for terms in form.terms:
            sums = self._read.setdefault((program.placement, form.op, form.dtype, terms.part), {})
            like = sums.get(terms.count) or next(iter(sums.values()), None)
            reading = read_sum(Sum(run, form.arrays, terms, form.dtype), rows, like)
            sums.setdefault(reading.terms, reading)
            found.append(reading)
        program.readings = tuple(found)
        known: Sequence[str] = sorted({x.kind or x.code for x in found})
        program.flags = flags.join(program.flags, sums=len(found), orders=len(known))
