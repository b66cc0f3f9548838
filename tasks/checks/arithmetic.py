"""The check arithmetic: in what order and in how many bits a backend adds, read from outside; it makes the backend's passport."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tasks.arrays.pack import ALIGN
from tasks.checks.base import Observation, Scenario
from tasks.checks.same_bytes import copy_program_outputs
from tasks.model import Form, Program, Session, Unsupported, flags
from tasks.passport import ADDRESS, ARITHMETIC, CODES, SHAPES, WARMED, DeviceSum, SumReading, SumTerms
from tasks.passport.device_sum import ANOTHER_SHAPE
from tasks.passport.read_sum import read_sums_alike


class Arithmetic(Scenario):
    """The sample as it is, which is judged as any; then the sums of its first and last element are read
    (`tasks.passport`), each by some hundred calls of the program on other inputs. What they say are rows of the table
    ``passports``."""

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
    gives_inputs = True
    # Some hundred calls: torch 80 ms, ONNX Runtime 200 ms of a core.
    case_worth = 10.0

    def __init__(self) -> None:
        #: What was read of a device's sums of a kind in a dtype, with the op: the next are asked whether they are like
        #: it.
        self._read: dict[tuple[Any, ...], list[tuple[str, SumReading]]] = {}

    def wanted(self, samples: int) -> int:
        """Each op is asked at all shapes."""
        return len(SHAPES) if samples else 0

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        """Raises Unsupported where the runtime takes a program's inputs once, or the form has lost an array of the
        terms."""
        first = copy_program_outputs(session.step())
        yield Observation("the sample as it is", first)
        if program.fallback:
            return
        if not form.terms:
            raise Unsupported("the form has other arrays than the op, so nothing tells where the terms of its sums lie")
        if np.shape(first[0]) != form.summed_shape:
            words = f"the result has the shape {np.shape(first[0])}, not {form.summed_shape}"
            told = [x for x in form.terms if x.where]
            program.readings = tuple(
                SumReading(where=x.where, part=x.part, terms=x.count, code=ANOTHER_SHAPE, words=words) for x in told
            )
            program.flags = flags.join_row_flags(program.flags, sums=0)
            return
        again = program.again
        if again is None:
            raise Unsupported("the runtime takes the inputs of a program once")
        rows = first[0].shape[0] if np.ndim(first[0]) else None
        run: Any = again
        found: dict[int, SumReading] = {}
        for place, terms in enumerate(form.terms):
            if place in found or not terms.where:
                continue
            alike = [k for k, x in enumerate(form.terms) if k != place and k not in found and terms.is_like(x)]
            key = (program.placement, form.dtype, bool(terms.right), bool(terms.alone), terms.divided, terms.of)
            read = self._read.setdefault(key, [])
            told = [k for k in alike if form.terms[k].where]
            found[place], beside = read_sums_alike(
                partial(_make_device_sum, run, form, terms),
                [alike, told, ()],
                rows,
                sort_readings_by_likeness(read, form.op, terms),
            )
            for k in set(told) & set(beside):  # whatever was asked, it answered the same in the same calls
                found[k] = replace(found[place], where=form.terms[k].where, calls=0, cpu_ms=0.0)
            read.append((form.op, found[place]))
        program.readings = tuple(found[place] for place in sorted(found))
        if code := _find_other_dependence(run, form.arrays, first):
            program.readings = tuple(
                replace(x, code=x.code or code, words=x.words or CODES[code]) for x in program.readings
            )
        known: Sequence[str] = sorted({x.kind or x.code for x in program.readings})
        program.flags = flags.join_row_flags(program.flags, sums=len(found), orders=len(known))


def _find_other_dependence(run: Any, arrays: Sequence[Any], first: Sequence[Any]) -> str:
    """The code of readings that hold for some calls only, as the results of the same inputs depend on where the arrays
    begin, or are others now than in the first call; "" where neither is so."""

    def digest(given: Sequence[Any]) -> list[bytes]:
        return [np.asarray(x).tobytes() for x in run(list(given))]

    at_lines, beside = (digest([_copy_to_address(x, past) for x in arrays]) for past in (False, True))
    if at_lines != beside:
        return ADDRESS
    return WARMED if digest(arrays) != [np.asarray(x).tobytes() for x in first] else ""


def _copy_to_address(array: Any, past: bool) -> np.ndarray:
    """A copy that begins where a cache line does, or an element past it."""
    own = np.asarray(array)
    room = np.empty(own.nbytes + 2 * ALIGN, np.uint8)
    begin = -room.ctypes.data % ALIGN + past * own.itemsize
    made = room[begin : begin + own.nbytes].view(own.dtype).reshape(own.shape)
    made[...] = own
    return made


def _make_device_sum(run: Any, form: Form, terms: SumTerms, beside: Sequence[int], together: bool) -> DeviceSum:
    """The sum of some terms beside others of a form, by their numbers."""
    return DeviceSum(run, form.arrays, terms, form.dtype, beside=[form.terms[k] for k in beside], together=together)


def sort_readings_by_likeness(
    read: Sequence[tuple[str, SumReading]], op: str, terms: SumTerms
) -> tuple[SumReading, ...]:
    """Of readings, each with its op, one of each order, those first that a sum of an op is most likely to be like: of
    as many terms, then of the same op, then the newest."""
    near = sorted(
        (one.terms != terms.count, name != op or one.part != terms.part, -k)
        for k, (name, one) in enumerate(read)
        if one.tree
    )
    likes = [read[-k][1] for _, _, k in near]
    return tuple({(x.terms if x.terms == terms.count else 0, x.kind, x.adder): x for x in likes[::-1]}.values())[::-1]
