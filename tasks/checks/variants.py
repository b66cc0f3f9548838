"""Checks of the other ways in which torch calls an op: into given tensors, in place, as a method; and of what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.checks.base import Check
from tasks.model import FORWARD, Fallback, Form, Misbehaviour, Program, Unsupported, Vacuous
from tasks.model.kind import KIND_ACCEPTED

if TYPE_CHECKING:
    from tasks.backends.base import Backend


class Variant(Check):
    """Base: the catalog's call is that of the check, its samples those that eager torch takes so."""

    prepared = True
    own_call = True

    @property
    def needs(self) -> str:
        return FORWARD

    def unfit(self, backend: Backend) -> str:
        return "" if "torch" in backend.forms else "it runs no torch calls"


class Out(Variant):
    name = "out"
    lacking = "no out= argument"
    about = "a torch op called with out=, a tensor with gaps (without gaps if compiled): the outputs written there"


class InPlace(Variant):
    name = "inplace"
    lacking = "no in-place variant"
    about = "the variant of a torch op that writes to its first argument: that argument afterwards"


class Method(Variant):
    name = "method"
    lacking = "no method of that name"
    about = "the op as a method of its first argument"


class Promotion(Variant):
    name = "promotion"
    lacking = "no op of two tensors whose dtypes torch promotes"
    about = (
        "a torch op of two tensors with one of them in another dtype, or 0-d in another one: the dtype and the numbers of the same "
        "call with both in torch.result_type"
    )


#: Of what `Refuses` compares: whether the call raised, and whether it returned.
REFUSED = np.array([True, False])
#: Classes of errors that a compiler's own code raises: its user is told nothing of what he did wrong.
INTERNAL = ("InductorError", "CppCompileError", "InternalTorchDynamoError", "AssertionError")


class Refuses(Variant):
    """A sample is a call that eager torch refuses, or the reference of a kernel. The backend must raise as well, in
    whatever class and words, when it is compiled or run; that it does not is ``wrong``, of the kind "accepted"."""

    name = "refuses"
    lacking = (
        "no calls that it must refuse are known: of torch ops those of op_db, of a kernel what its `refuses` lists"
    )
    about = "calls that eager torch refuses (op_db's error inputs), or your kernel's reference (its `refuses`): the backend must raise too"

    def build(self, backend: Backend, form: Form) -> Program:
        """A program that says whether the call raises: building is part of it. Raises what a backend says of itself."""
        program: Program | None = None

        def run() -> Sequence[Any]:
            nonlocal program
            try:
                program = program or backend.build(form)
                program.run()
            except Fallback as error:
                if error.raises:
                    return [REFUSED]
                raise
            except (Unsupported, Vacuous):
                raise
            except Misbehaviour:
                pass  # it returned, and broke a promise besides
            except Exception as error:
                if backend.is_sticky(error) or backend.is_out_of_memory(error):
                    raise
                if type(error).__name__ in INTERNAL:
                    raise
                return [REFUSED]
            raised = Misbehaviour(KIND_ACCEPTED, "it returned a result where the reference raises")
            raised.outputs = [~REFUSED]
            raise raised

        return Program(run)
