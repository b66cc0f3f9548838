"""The shapes check: one program built for any size is run at several, each beside a program built for that size alone."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.arrays.tree import list_tensor_specs
from tasks.checks.base import Observation
from tasks.checks.derived import Derived
from tasks.model import Fallback, Form, Program, Unsupported, Vacuous, flags

if TYPE_CHECKING:
    from tasks.backends.base import Backend


@dataclass
class _Sized(Program):
    """any_size: the program for any size, or what building it raised; sizes: the case at each; backend: what builds
    it."""

    any_size: Program | Exception = field(default_factory=lambda: RuntimeError("not built"))
    sizes: list[Form] = field(default_factory=list)
    backend: Any = None


class Shapes(Derived):
    """A case has the inputs of all its sizes, one after another, and what is expected of each.

    Steps: a fresh program of each size; then the one for any size, grown, shrunk and back. So "static right, dynamic
    wrong" is read off the culprit. Where a program for one size is wrong already, that is. A size that the backend does
    not run even alone is left out: flags say how many ``sizes`` there are and how many it ``ran``.
    """

    name = "shapes"
    about = (
        "a model with open dimensions, in one program at its own size, grown, shrunk and back, against a program for each size: "
        "a size that only the one program gets wrong is the culprit"
    )
    any_size = True
    gives_inputs = True

    def graph(self, form: Form, culprit: str) -> Form | None:
        """The size that a step is blamed for, by itself; the first where none is. What takes another one before it does
        not fail so."""
        named = re.sub(r"^(fixed shapes|open dimensions) | after .*", "", culprit)
        return next((size for size in _list_case_sizes(form) if named in ("", _word_shape_sizes(size))), None)

    def build(self, backend: Backend, form: Form) -> Program:
        """The program for any size. Raises Unsupported where the backend makes no program for any size, or gives a
        program its inputs only once."""
        sizes = _list_case_sizes(form)
        made: Program | Exception
        try:
            made = backend.any_size().build(sizes[0])
            if made.again is None:
                raise Unsupported(f"{backend.name} gives a program its inputs only once: it has one size")
        except (Unsupported, Fallback, Vacuous):
            raise
        except Exception as error:
            if backend.is_sticky(error) or backend.is_out_of_memory(error) or backend.is_unsupported(error):
                raise
            backend.build(backend.fixed(sizes[0]))  # raises what that raises: then it is no matter of open dimensions
            made = error
        known = made if isinstance(made, Program) else Program(lambda: [])
        own = {f.name: getattr(known, f.name) for f in fields(Program)}
        return _Sized(**own, any_size=made, sizes=sizes, backend=backend)

    def stages(self, program: Program, form: Form) -> Iterator[Observation]:
        """A program for each size; then the one for any size at each, and at the first again."""
        assert isinstance(program, _Sized)
        taken = []
        for k, size in enumerate(program.sizes):
            stage = _observe_shape(
                f"fixed shapes {_word_shape_sizes(size)}", functools.partial(_run_fixed_size, program, k), k
            )
            if stage.error is not None:
                continue  # perhaps no valid size, or an If with a branch for others: all that is known is that onnx evaluates it
            taken.append(k)
            yield stage
        program.flags = flags.join_row_flags(program.flags, ran=len(taken))
        made = program.any_size
        if isinstance(made, Exception):
            yield Observation("open dimensions", error=made)
            return
        assert made.again is not None
        before = ""
        for k in (0, *(x for x in taken if x), 0):
            size = program.sizes[k]
            again = functools.partial(made.again, size.arrays) if before else made.run
            yield _observe_shape(f"open dimensions {_word_shape_sizes(size)}{before}", again, k)
            before = f" after {_word_shape_sizes(size)}"


def _list_case_sizes(form: Form) -> list[Form]:
    """The case at each size."""
    count = len(list_tensor_specs(form.args))
    return [replace(form, arrays=form.arrays[k : k + count]) for k in range(0, len(form.arrays), count)]


def _run_fixed_size(program: _Sized, k: int) -> Sequence[Any]:
    """What a program for the k-th size alone gives."""
    return program.backend.build(program.backend.fixed(program.sizes[k])).run()


def _observe_shape(name: str, run: Any, k: int) -> Observation:
    """What a run gives as the outputs of the k-th size."""
    try:
        outputs: Sequence[Any] = [None if x is None else np.array(x) for x in run()]
    except MemoryError:
        raise
    except Exception as error:
        return Observation(name, error=error)
    return Observation(name, outputs, part=(k * len(outputs), (k + 1) * len(outputs)))


def _word_shape_sizes(form: Form) -> str:
    return " ".join("x".join(map(str, x.shape)) or "scalar" for x in form.arrays)
