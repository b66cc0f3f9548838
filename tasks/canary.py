"""Known answers: small products whose result every precision holds exactly, asked of a device between cases."""

from __future__ import annotations

import time

import numpy as np

from tasks.backends.base import Backend
from tasks.model import Form, Program
from tasks.model.dtypes import get_numpy_dtype
from tasks.screen.forms import find_screen_form_kind, make_exercise_form

#: Dtypes it is asked in, where the backend computes them.
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32")
#: Rows and columns of the factors.
SIZE = 32
#: Seconds of cases after which it is asked again.
EVERY_S = 1.0


class Canary:
    """A @ B + C in each dtype in which ``backend`` gives the exact answer now; nothing for a backend of the CPU.

    The elements of A are -1, 0 and 1, those of B and C at most 3: every sum of theirs is below 2**7, so float16,
    bfloat16 and TF32 hold it exactly, in whatever order it is added. A device that says anything else has computed
    wrongly.
    """

    def __init__(self, backend: Backend) -> None:
        self._programs: dict[str, Program] = {}
        self._asked = time.monotonic()
        # One of the CPU is not asked, nor one whose programs are not run.
        kind = find_screen_form_kind(backend) if backend.resource != "CPU" else ""
        for dtype in DTYPES if kind else ():
            try:
                program = backend.canary(build_canary_form(kind, dtype))
                if not _describe_canary_deviation(program):
                    self._programs[dtype] = program
            except Exception:
                continue  # it does not compute this dtype, or says so in a way of its own: its cases will
        #: Those whose answer was the known one at first.
        self.dtypes = tuple(self._programs)

    def due(self, every_s: float) -> bool:
        """Whether so many seconds have passed since it was last asked (0: always)."""
        return time.monotonic() - self._asked >= every_s

    def describe_change(self) -> str:
        """What the device computes otherwise than it did at first; "" if nothing."""
        try:
            return next(
                (
                    f"{dtype}: {off}"
                    for dtype, program in self._programs.items()
                    if (off := _describe_canary_deviation(program))
                ),
                "",
            )
        except Exception as error:
            return f"{type(error).__name__}: {str(error).strip()[:200]}"
        finally:
            self._asked = time.monotonic()


def build_canary_form(kind: str, dtype: str) -> Form:
    """A @ B + C as a form of a kind of `tasks.screen.forms.KINDS`; arrays of [SIZE, SIZE]."""
    arrays = [x.astype(get_numpy_dtype(dtype)) for x in _draw_canary_factors()]
    return make_exercise_form(kind, "canary", dtype, arrays, lambda a, b, c: a @ b + c, ("MatMul", "Add"), (SIZE, SIZE))


def _draw_canary_factors() -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(20).integers
    shape = (SIZE, SIZE)
    return draw(-1, 2, shape), draw(-3, 4, shape), draw(-3, 4, shape)


def _describe_canary_deviation(program: Program) -> str:
    """How far a run is from the exact answer, "" where it is that, and was computed where it was asked to be."""
    a, b, c = _draw_canary_factors()
    exact = (a @ b + c).astype(np.float64)
    made = np.asarray(program.run()[0])
    if program.fallback:
        return program.fallback
    if made.shape != exact.shape:
        return f"a product of {exact.shape} has the shape {made.shape}"
    wrong = int((made.astype(np.float64) != exact).sum())  # NaN is unequal to all
    return f"{wrong} of {exact.size} elements of a product of small integers are off" if wrong else ""
