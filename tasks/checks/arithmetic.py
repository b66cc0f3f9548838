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

#: Inputs that are given at two addresses: two orders may give one of them the same result.
TURNS = 4
#: Whether arrays begin past a line in the further calls that tell an address from chance, where results differ; those
#: that alternate from call to call are not in step with it.
CONTROLS = (True, False, True, False, False, True, True, False)


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
        from tasks.passport.read_sum import read_sums_alike  # which who asks for a check's name does without

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
        codes = _find_other_dependences(run, form.arrays, first, [form.terms[place] for place in sorted(found)])
        program.readings = tuple(
            replace(x, code=code, words=CODES[code]) if code and not x.code else x
            for x, code in zip(program.readings, codes)
        )
        known: Sequence[str] = sorted({x.kind or x.code for x in program.readings})
        program.flags = flags.join_row_flags(program.flags, sums=len(found), orders=len(known))


def _find_other_dependences(
    run: Any, arrays: Sequence[Any], first: Sequence[Any], sums: Sequence[SumTerms]
) -> list[str]:
    """Of each of some sums the code of a reading that holds for some calls only, as the results of the same inputs
    depend on where the arrays begin, are others now than in the first call, or change by themselves; "" where none is
    so. first: the outputs of that call. The other elements of an output do not count: they may change by themselves."""

    def list_results(outputs: Sequence[Any]) -> list[bytes]:
        flat = np.asarray(outputs[0]).reshape(-1)
        return [flat[[x.output, *x.outputs]].tobytes() for x in sums]

    def call_at(past: bool) -> list[bytes]:
        return list_results(run([_copy_to_address(x, past) for x in given]))

    told: list[list[str]] = []
    summed = {x.left[0] for x in sums} | {x.right[0] for x in sums if x.right}
    for turn in range(TURNS):
        given = [np.roll(x, turn) if k in summed else np.asarray(x) for k, x in enumerate(arrays)]
        at_lines, beside = [call_at(False)], [call_at(True)]
        if at_lines != beside:
            for past in CONTROLS:
                (beside if past else at_lines).append(call_at(past))
        told.append(_tell_results_apart(at_lines, beside, ADDRESS))
    began, now = [list_results(first)], [list_results(run(list(arrays)))]
    if began != now:
        now += [list_results(run(list(arrays))) for _ in CONTROLS]
    told.append(_tell_results_apart(began, now, WARMED))
    return [next((code for code in ("changes", ADDRESS, WARMED) if code in codes), "") for codes in zip(*told)]


def _tell_results_apart(some: Sequence[list[bytes]], others: Sequence[list[bytes]], code: str) -> list[str]:
    """Of each sum the ``code`` where some calls gave another result than the others, and "changes" where calls of one
    kind gave several."""
    pairs = [(set(one), set(other)) for one, other in zip(zip(*some), zip(*others))]
    return ["changes" if max(map(len, pair)) > 1 else code if pair[0] != pair[1] else "" for pair in pairs]


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
