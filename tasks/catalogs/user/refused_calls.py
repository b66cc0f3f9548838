"""Calls that a kernel is to refuse: those of its declaration, each where its reference raises too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.user import dims as sizes
from tasks.catalogs.user import kernel_samples, reference_scripts
from tasks.catalogs.user.load_kernels import DeclaredKernel
from tasks.catalogs.user.ops import UserOp
from tasks.checks.variants import REFUSED
from tasks.model import Group, Leaf, OpClass, errors

#: The check that asks for them.
REFUSES = "refuses"
#: Errors of a reference that are mistakes in it, and no word on its inputs.
MISTAKES = (NameError, AttributeError, ImportError, SyntaxError)

Arrays = Mapping[str, np.ndarray]
#: Evaluates the reference of an op on inputs. Raises what it raises.
Evaluate = Callable[[DeclaredKernel, Arrays], Any]


def apply_refused_entry(op: UserOp, entry: Mapping[str, Any]) -> UserOp:
    """The op with what an entry of ``refuses`` says of its inputs and arguments; what that leaves out stays as
    declared."""

    def merge_input(name: str) -> Any:
        was, now = ({"shape": x} if not isinstance(x, Mapping) else x for x in (op.inputs[name], entry[name]))
        bounded = {"low", "below"} & set(now)
        bounds = {"low", "high", "below", "is"} if "data" in now else {"data", "high", "below"} if bounded else set()
        return {k: v for k, v in was.items() if k not in bounds} | dict(now)

    inputs = {name: merge_input(name) if name in entry else given for name, given in op.inputs.items()}
    kwargs = {name: entry.get(name, value) for name, value in op.kwargs.items()}
    return replace(op, inputs=inputs, kwargs=kwargs)


def make_refused_samples(one: DeclaredKernel, group: Group, evaluate: Evaluate) -> Iterator[Sample]:
    """A sample for every entry, of the largest sizes: an axis of length 1 would fit any other."""
    dims = kernel_samples.list_sample_sizes(one.op, group.seed, 2)[-1]
    for index, entry in enumerate(one.op.refuses):
        yield _make_refused_sample(one, entry, dims, replace(group, distribution="own"), index, evaluate)


def _make_refused_sample(
    one: DeclaredKernel, entry: Mapping[str, Any], dims: Mapping[str, int], group: Group, index: int, evaluate: Evaluate
) -> Sample:
    found = Sample(index, op_class=OpClass.EXACT, oracle="the reference refuses it")
    good, bad = (
        replace(op, kwargs=sizes.evaluate_keyword_sizes(op.kwargs, dims))
        for op in (one.op, apply_refused_entry(one.op, entry))
    )
    try:
        right, wrong = (kernel_samples.make_sample_arrays(op, dims, group, index) for op in (good, bad))
    except Exception as error:
        found.failure = Failure.of(error, "sample")
        return found
    found.arrays = list(wrong.values())
    found.kwargs = {name: TensorSpec(id=i) for i, name in enumerate(wrong)} | dict(bad.kwargs)
    try:
        evaluate(replace(one, op=good), right)  # else it refuses whatever it is given
    except (Exception, SystemExit) as error:
        found.failure = Failure.of(error, "reference")
        return found
    try:
        evaluate(replace(one, op=bad), wrong)
    except (Exception, SystemExit) as error:
        if isinstance(error, MISTAKES) or (isinstance(error, reference_scripts.ReferenceError) and not error.raised):
            found.failure = Failure.of(error, "reference")
        else:
            found.expected = [Leaf("bool", REFUSED.shape, np.array(REFUSED))]
            found.columns["flags"] = "reference=" + errors.format_error_essence(error).partition(":")[0]
        return found
    told = ", ".join(f"{name}: {value}" for name, value in entry.items())
    text = f"refuses.{index} ({told}): the reference takes it: let the reference raise, or leave out the entry"
    found.failure = Failure("invalid", "reference", "", text)
    return found
