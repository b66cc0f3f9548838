"""The speedup check: right on inputs that change from run to run, and how many times as fast as the eager arm."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.checks import paired
from tasks.checks.base import Check, Observation
from tasks.model import Form, Misbehaviour, OpClass, Program, Unsupported, Vacuous, flags, is_inexact

if TYPE_CHECKING:
    from tasks.backends.base import Backend

#: Elements that are off by a tenth, of themselves and of the output's root mean square, are another result; half of the
#: elements, another output. What is finer the judge sees on the sample itself.
_OFF, _MOST = 0.1, 0.5

Given = Callable[[list[Any]], Callable[[], Sequence[Any]]]


@dataclass
class Race(Program):
    """A program with the eager arm that it is timed against. arrays: the inputs of the eager arm's form; alike: whether
    those of the program's own form are the same, so that outputs on other inputs can be compared; on_cpu: whether this
    process's CPU time is that of the computation; cpu_clock: of the process that computes."""

    eager: Given | None = None
    arrays: Sequence[Any] = ()
    alike: bool = True
    on_cpu: bool = True
    cpu_clock: Callable[[], float] = time.process_time


class Speedup(Check):
    """Single runs of the program, of the eager arm, and of the eager arm once more (the null arm), in random order, each round
    on inputs that no round before had.

    The eager arm is torch's own, on the same device and in the same process, where the sample has a form for torch and the
    environment has torch; else the same runtime at its lowest level of optimisation. Flags name it. A call is timed as the
    farm makes it, with its inputs handed over before and its outputs read back, by wall clock and, on a CPU, by CPU time; of a
    clock by which the eager arm is not as fast as itself nothing is reported.
    """

    name = "speedup"
    about = (
        "speedup over eager torch (or the runtime's lowest level), with an interval and a null arm; right on inputs that "
        "change from run to run"
    )
    timed = True
    without = (OpClass.RANDOM, OpClass.UNINITIALISED)

    def build(self, backend: Backend, form: Form) -> Program:
        """Both arms; raises what building the program raises.

        Raises Unsupported where the runtime takes a program's inputs only once, or there is no eager arm.
        """
        program = backend.build(form)
        if program.given is None:
            raise Unsupported(
                f"{backend.name} takes a program's inputs only once: runs on other inputs cannot be timed"
            )
        arm = backend.eager(form)
        if arm.program.given is None:
            raise Unsupported(f"{arm.name} takes a program's inputs only once: nothing can be timed against it")
        own = {f.name: getattr(program, f.name) for f in fields(Program)}
        race = Race(**own, eager=arm.program.given, arrays=arm.form.arrays, alike=_alike(form.arrays, arm.form.arrays))
        race.on_cpu, race.cpu_clock = not backend.device_vendor, backend.cpu_s
        race.flags = flags.join(program.flags, baseline=arm.name)
        return race

    def stages(self, program: Program, form: Form) -> Iterator[Observation]:
        """The first run's outputs, then those of the last run, both on the sample's own inputs; between them the race."""
        assert isinstance(program, Race) and program.given is not None and program.eager is not None
        yield Observation("the first run", [np.array(x) for x in program.run()])
        watch = _Watch(program, form)
        taken = paired.race(watch.arms, watch.check_outputs, cpu_clock=program.cpu_clock)
        if not watch.told:
            raise Vacuous("the outputs of the eager arm do not depend on its inputs: a kept tensor would pass")
        _make_race_columns(program, taken)
        yield Observation("the last run", [np.array(x) for x in program.given(form.arrays)()])


class _Watch:
    """The arms of a race, each round on other inputs, and a look at what they return.

    told: rounds in which a kept tensor would have been seen.
    """

    def __init__(self, program: Race, form: Form) -> None:
        self.program, self.form, self.told = program, form, 0
        self.before: dict[str, list[np.ndarray]] = {}
        self.moved = self._accepts_moved_inputs()

    def _accepts_moved_inputs(self) -> bool:
        """Whether the eager arm takes inputs whose elements stand elsewhere; else they are only scaled. Raises Vacuous."""
        assert self.program.eager is not None
        for moved in (True, False):
            try:
                self.program.eager(vary_inputs(self.program.arrays, 0, moved))()
                return moved
            except Exception as error:
                said = error
        raise Vacuous(f"the eager arm takes no other inputs than the sample's: {said}")

    def arms(self, turn: int) -> dict[str, Callable[[], Callable[[], Any]]]:
        assert self.program.given is not None and self.program.eager is not None
        own, its = (vary_inputs(arrays, turn, self.moved) for arrays in (self.form.arrays, self.program.arrays))
        arms = {
            "program": (self.program.given, own),
            "eager": (self.program.eager, its),
            "null": (self.program.eager, its),
        }
        return {name: functools.partial(given, arrays) for name, (given, arrays) in arms.items()}

    def check_outputs(self, outputs: Mapping[str, Any]) -> None:
        """Raises Misbehaviour: kind "kept" for the bytes of the round before though the eager arm's are others, "other inputs"
        for outputs far from the eager arm's."""
        now = {name: [np.array(x) for x in found] for name, found in outputs.items()}
        if self.before and far_apart(now["eager"], self.before["eager"]):
            self.told += 1
            if all(a.tobytes() == b.tobytes() for a, b in zip(now["program"], self.before["program"])):
                raise Misbehaviour("kept", "other inputs give the same bytes: what is timed computes nothing")
        if self.program.alike and far_apart(now["program"], now["eager"]):
            raise Misbehaviour(
                "other inputs", "on other inputs of the same shapes it gives another result than the eager arm"
            )
        self.before = now


def vary_inputs(arrays: Sequence[Any], turn: int, moved: bool) -> list[Any]:
    """Inputs that no other round has, of the same dtypes and shapes and as valid: floating elements times a factor from 1/2
    to 1 and, if ``moved``, all elements turned by some part of the whole."""
    part = (turn + 1) * 0.6180339887498949 % 1  # by the golden section: no two of them are near one another

    def one(array: Any) -> Any:
        if not isinstance(array, np.ndarray) or array.dtype.kind in "OUS":
            return array
        made = np.roll(array.reshape(-1), int(part * array.size)).reshape(array.shape) if moved else array
        return (made * array.dtype.type(0.5 + 0.5 * part)).astype(array.dtype) if is_inexact(array.dtype.name) else made

    return [one(x) for x in arrays]


def far_apart(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> bool:
    """Whether one of the outputs is another one: of most elements even the sizes differ (signs may be a choice)."""
    if len(these) != len(those):
        return True
    for a, b in zip(these, those):
        if a.shape != b.shape:
            return True
        if a.dtype.kind in "OUS" or not a.size:
            continue
        a, b = (np.abs(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)) for x in (a, b))
        with np.errstate(all="ignore"):
            size = np.sqrt(np.mean(np.square(b[np.isfinite(b)]))) if np.isfinite(b).any() else 0.0
            off = ~((np.abs(a - b) <= _OFF * (b + size)) | (a == b) | (np.isnan(a) & np.isnan(b)))
        if off.mean() > _MOST:
            return True
    return False


def _make_race_columns(program: Race, taken: paired.Taken) -> None:
    """Columns and flags of a race; of each clock none while the null arm's interval excludes 1."""
    program.flags = flags.join(program.flags, rounds=taken.rounds)
    clocks = {"speedup": taken.wall} | ({"speedup_cpu": taken.cpu} if program.on_cpu else {})
    for name, times in clocks.items():
        null, found = (paired.ratio(times["eager"], times[arm]) for arm in ("null", "program"))
        program.flags = flags.join(program.flags, **{f"{name}_null": null})
        if null is not None and found is not None and not null.certain:
            program.columns |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def _alike(these: Sequence[Any], those: Sequence[Any]) -> bool:
    return len(these) == len(those) and all(
        isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape
        for a, b in zip(these, those)
    )
