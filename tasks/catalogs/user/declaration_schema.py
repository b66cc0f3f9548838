"""What a declaration of a kernel may say: every mistake with its key, the nearest valid name and the fix."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.arrays import layouts
from tasks.catalogs.user import declaration_keys, dims, kernel_sessions
from tasks.catalogs.user.declaration_keys import Mistake
from tasks.catalogs.user.ops import BASELINES, EAGER, ITEMSIZE, NUMPY, UserOp
from tasks.catalogs.user.tensors import DTYPE, SHAPE, InputKeys, OutputKeys, is_finite_number
from tasks.draw import structure
from tasks.model import DTYPES, EPS, OpClass, get_numpy_dtype, is_inexact_dtype
from tasks.nearest import suggest_nearest_names

#: Invariant → what its argument may be, in words ("" where it takes none).
INVARIANTS = {
    "non_negative": "",
    "no_nan": "",
    "no_inf": "",
    "shape_preserved": "the name of an input (default: the first)",
    "sums_to_one": "an axis (default: -1)",
    "sorted": "an axis (default: -1)",
    "bounded": "[low, high]",
}
#: Most elements of an input.
MOST = 2**31


def list_declaration_mistakes(op: UserOp) -> Iterator[Mistake]:
    """Everything that is wrong with a declaration, first things first; the kernel itself is not looked at."""
    if kinds := [found for one in fields(op) for found in declaration_keys.check_key_kind(one, getattr(op, one.name))]:
        yield from kinds
        return
    if not re.fullmatch(r"[A-Za-z_][\w.\-]*", op.name):
        yield ("name",), f"{op.name!r} is no name: letters, digits, '_', '-' and '.', beginning with a letter"
    for check in (
        _check_dims_key,
        _check_inputs_key,
        declaration_keys.check_declared_names,
        _check_gradient_key,
        _check_kwargs_key,
        _check_positions_key,
        _check_compute_key,
        _check_judging_keys,
        _check_outputs_key,
        _check_refuses_key,
        _check_layouts_key,
        _check_baseline_key,
        _check_work_key,
    ):
        yield from check(op)
    yield from kernel_sessions.list_session_mistakes(op)


def _check_gradient_key(op: UserOp) -> Iterator[Mistake]:
    lacking = f"gradient does not say of which inputs, e.g. gradient: [{next(iter(op.inputs), 'x')}]"
    if op.kept and not op.gradient:
        yield ("kept",), lacking
    if op.backward and op.framework != "numpy":
        fix = "autograd differentiates a kernel of tensors; make one that is not into a torch.autograd.Function"
        yield ("backward",), fix
    elif op.backward and not op.gradient:
        yield ("backward",), lacking


def _check_kwargs_key(op: UserOp) -> Iterator[Mistake]:
    for name, value in op.kwargs.items():
        if name in op.inputs:
            yield ("kwargs", name), f"{name!r} is an input already"
        if dims.is_size_argument(value) and isinstance(value[dims.DIM], str):
            yield from _check_size_expression(op, value[dims.DIM], ("kwargs", name, dims.DIM))
        elif not _is_plain_value(value):
            text = "no number, text, list or mapping, which is all that a row can name; an array is an input"
            yield ("kwargs", name), f"a {type(value).__name__} is {text}"


def _check_positions_key(op: UserOp) -> Iterator[Mistake]:
    if op.packed and not op.positions:
        yield ("packed",), f"does not say what is in the tuple, e.g. positions: [{next(iter(op.inputs), 'x')}]"
    for i, value in enumerate(op.init):
        if not _is_plain_value(value):
            yield ("init", i), f"a {type(value).__name__} is no number, text, list or mapping"


def _check_compute_key(op: UserOp) -> Iterator[Mistake]:
    if not op.dtypes:
        yield ("dtypes",), "at least one dtype"
    elif op.compute in list(EPS) and all(EPS.get(name, 0.0) < EPS[op.compute] for name in op.dtypes if name in EPS):
        what = f"{op.compute} is coarser than {', '.join(op.dtypes)}"
        yield ("compute",), f"{what}: a coarser precision is the backend's to declare"


def _check_layouts_key(op: UserOp) -> Iterator[Mistake]:
    for i, name in enumerate(op.layouts or ()):
        if name == layouts.REVERSED and op.framework != "numpy":
            yield ("layouts", i), "torch has no negative strides; arrays of NumPy have (framework: numpy)"
    if op.layouts is not None and layouts.CONTIGUOUS not in op.layouts:
        yield ("layouts",), f"add {layouts.CONTIGUOUS}: every kernel is given contiguous inputs"


def _check_baseline_key(op: UserOp) -> Iterator[Mistake]:
    given = op.baseline
    if not isinstance(given, str) or not given:
        return
    if given not in BASELINES:
        if ":" not in given:
            yield (
                ("baseline",),
                f"{given!r} is neither a function (module:function) nor known{suggest_nearest_names(given, BASELINES)}",
            )
    elif isinstance(op.reference, str) and op.reference.endswith(".py"):
        yield ("baseline",), "the reference is a script, which cannot be timed: name a function (module:function)"
    elif given == NUMPY and op.reference_framework == "torch":
        yield ("baseline",), f"the reference is a function of tensors: {EAGER} times that"


def _check_work_key(op: UserOp) -> Iterator[Mistake]:
    widest = max((get_numpy_dtype(name).itemsize for name in op.dtypes if name in DTYPES), default=1)
    with_itemsize = replace(op, dims={**op.dims, ITEMSIZE: [widest]})
    for key, size in ((("bytes",), op.moved), (("flops",), op.flops)):
        if isinstance(size, int):
            yield from _check_size_key(size, key)
        elif size:
            yield from _check_size_expression(with_itemsize, size, key)
            yield from _find_negative_size(with_itemsize, size, key)


def _check_refuses_key(op: UserOp) -> Iterator[Mistake]:
    for i, entry in enumerate(op.refuses):
        yield from _check_refuses_entry(op, entry, ("refuses", i))


def _check_refuses_entry(op: UserOp, entry: Any, key: tuple[Any, ...]) -> Iterator[Mistake]:
    """An entry of ``refuses``: what is otherwise of inputs and kwargs."""
    if not isinstance(entry, Mapping) or not entry:
        yield (
            key,
            f"{entry!r}: what is otherwise of an input or an argument, e.g. {{x: [N + 1, 64]}} or {{x: {{dtype: int64}}}}",
        )
        return
    for name, given in entry.items():
        if name in op.inputs:
            changed = {name: given if isinstance(given, Mapping) else {"shape": given}}
            changed[name] = {"shape": [], **changed[name]}
            yield from (((*key, *inner[1:]), text) for inner, text in _check_inputs_key(replace(op, inputs=changed)))
        elif name not in op.kwargs:
            yield (
                (*key, name),
                f"no input and no argument {name!r}{suggest_nearest_names(name, [*op.inputs, *op.kwargs])}",
            )
        elif not _is_plain_value(given):
            yield (*key, name), f"a {type(given).__name__} is no number, text, list or mapping"


def _is_plain_value(value: Any) -> bool:
    """Whether a config can hold a value."""
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _is_plain_value(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain_value, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _check_dims_key(op: UserOp) -> Iterator[Mistake]:
    for name, sizes in op.dims.items():
        if not isinstance(sizes, Sequence) or isinstance(sizes, str) or not sizes:
            yield ("dims", name), "has no candidates: give a list of sizes, e.g. [1, 7, 128]"
            continue
        for i, size in enumerate(sizes):
            yield from _check_size_key(size, ("dims", name, i))


def _check_size_key(size: Any, key: tuple[Any, ...]) -> Iterator[Mistake]:
    if type(size) is not int or size < 1:
        yield key, f"{size!r} is no size: a positive integer"


def _check_shape_key(op: UserOp, shape: Any, key: tuple[Any, ...]) -> Iterator[Mistake]:
    if not SHAPE.fits(shape):
        yield key, SHAPE.wrong
        return
    for i, size in enumerate(shape):
        if isinstance(size, str):
            yield from _check_size_expression(op, size, (*key, i))
            yield from _find_negative_size(op, size, (*key, i))
        else:
            yield from _check_size_key(size, (*key, i))
    largest = math.prod(size for size in (_find_largest_size(op, size) for size in shape) if size > 0)
    if largest > MOST:
        yield key, f"{largest} elements at its largest, more than {MOST}: give smaller sizes"


def _check_size_expression(op: UserOp, size: str, key: tuple[Any, ...]) -> Iterator[Mistake]:
    try:
        named = dims.list_size_names(size)
    except ValueError as error:
        yield key, str(error)
        return
    for name in named:
        if name not in op.dims:
            yield key, f"unknown dimension {name!r}{suggest_nearest_names(name, op.dims)}"


def _find_negative_size(op: UserOp, size: str, key: tuple[Any, ...]) -> Iterator[Mistake]:
    """A size that is below 0 at an end of its dimensions; nothing of what `_check_size_expression` and `_check_dims_key` name."""
    try:
        named = {name: sorted({min(op.dims[name]), max(op.dims[name])}) for name in dims.list_size_names(size)}
        ends = (dict(zip(named, chosen)) for chosen in itertools.product(*named.values()))
        at = next((x for x in ends if dims.evaluate_dim_size(size, x) < 0), None)
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return
    if at is not None:
        where = ", ".join(f"{name} is {n}" for name, n in at.items())
        yield key, f"{size} is {dims.evaluate_dim_size(size, at)} where {where}: no size"


def _find_largest_size(op: UserOp, size: Any) -> int:
    """The largest that a size of a shape can be, as far as its dimensions' largest sizes say; 0 where it is none."""
    try:
        found = dims.evaluate_dim_size(size, {name: max(given) for name, given in op.dims.items()})
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return 0
    return found if type(found) is int else 0


def _check_inputs_key(op: UserOp) -> Iterator[Mistake]:
    if not op.inputs:
        yield ("inputs",), "a kernel needs at least one input: its name and its shape, e.g. {x: [N, 64]}"
        return
    for name, given in op.inputs.items():
        key = ("inputs", name)
        if not isinstance(name, str) or not name.isidentifier():
            yield key, f"{name!r} is no name of an argument"
        if not isinstance(given, Mapping):
            yield from _check_shape_key(op, given, key)
            continue
        if wrong := declaration_keys.check_declared_keys(InputKeys, given):
            yield from _put_mistakes_below_key(key, wrong)
            continue
        yield from _check_shape_key(op, given["shape"], (*key, "shape"))
        if bounds := list(_check_bounds_key(op, given, key)):
            yield from bounds
            continue
        if "data" in given:
            yield from _check_data_key(given, key)
        if "is" in given:
            yield from _check_kind_key(op, given, key)
        yield from _check_strides_key(op, given, key)


def _put_mistakes_below_key(key: tuple[Any, ...], found: Iterable[Mistake]) -> Iterator[Mistake]:
    """Mistakes of what a key has below it."""
    return (((*key, *inner), text) for inner, text in found)


def _check_kind_key(op: UserOp, given: Mapping[str, Any], key: tuple[Any, ...]) -> Iterator[Mistake]:
    """What is wrong with what an input is said to be."""
    name = given["is"]
    kind, dtypes = structure.KINDS[name], [given["dtype"]] if "dtype" in given else list(op.dtypes)
    wrong = next(
        (d for d in dtypes if d in DTYPES and kind.integers not in (None, not is_inexact_dtype(d) and d != "bool")), ""
    )
    if wrong:
        needs = "whole numbers, e.g. dtype: int64" if kind.integers else "floating numbers"
        yield (*key, "is"), f"a {name} is made of {needs}; this input is {wrong}"
    elif kind.bounded and not {"below", "high", "data"} & set(given):
        yield (*key, "is"), f"a {name} needs a bound: below: SIZE (its values are from low, or 0, to SIZE - 1)"
    elif not kind.bounded and name != "values" and {"low", "below"} & set(given):
        yield (*key, "is"), f"a {name} has values of its own: leave out low, high and below"
    elif "data" in given and not isinstance(given["data"], str) and (said := _find_kind_contradiction(op, given)):
        yield (*key, "data"), f"is declared as {name}, and {said}"


def _find_kind_contradiction(op: UserOp, given: Mapping[str, Any]) -> str:
    """How given values contradict the kind that is declared of them, at the largest sizes."""
    from tasks.catalogs.user import kernel_samples

    try:
        largest = {name: max(sizes) for name, sizes in op.dims.items()}
        what = kernel_samples.describe_kernel_input("", given, largest, op.dtypes[0])
        x = np.resize(kernel_samples.read_given_data(given["data"]), what.shape).astype(get_numpy_dtype(what.dtype))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, ZeroDivisionError):
        return ""  # what is said of that elsewhere
    return structure.find_structure_contradiction(what, x)


def _check_strides_key(op: UserOp, given: Mapping[str, Any], key: tuple[Any, ...]) -> Iterator[Mistake]:
    """How an input lies in memory."""
    strides, shape = given.get("strides"), given.get("shape", ())
    if strides is None:
        if "offset" in given:
            yield (*key, "offset"), "goes with strides, those of a contiguous tensor too"
        return
    if len(strides) != len(shape):
        yield (*key, "strides"), f"{len(strides)} strides of {len(shape)} axes: one for each"
    for i, size in enumerate([*strides, given.get("offset", 0)]):
        at = (*key, "strides", i) if i < len(strides) else (*key, "offset")
        if isinstance(size, str):
            yield from _check_size_expression(op, size, at)
        elif type(size) is not int or (size < 0 and i == len(strides)):
            yield at, f"{size!r} is no distance in elements: a whole number"
        elif size < 0 and op.framework == "torch":
            yield at, f"{size}: torch has no negative strides; arrays of NumPy have (framework: numpy)"


def _check_bounds_key(op: UserOp, given: Mapping[str, Any], key: tuple[Any, ...]) -> Iterator[Mistake]:
    for end in ("low", "high", "below"):
        value = given.get(end)
        if isinstance(value, str):
            yield from _check_size_expression(op, value, (*key, end))
    if "below" in given:
        if "high" in given:
            yield (*key, "below"), "stands for high: leave out one of them"
        elif (
            "dtype" in given
            and given["dtype"] in DTYPES
            and (is_inexact_dtype(given["dtype"]) or given["dtype"] == "bool")
        ):
            yield (*key, "below"), f"bounds whole numbers, and this input is {given['dtype']}: give low and high"
        elif (
            all(is_finite_number(x) for x in (given["below"], given.get("low", 0)))
            and given.get("low", 0) >= given["below"]
        ):
            yield (*key, "below"), f"{given['below']!r} leaves no value from {given.get('low', 0)!r} on"
    elif ("low" in given) != ("high" in given):
        yield key, "low and high go together"
    elif all(is_finite_number(given.get(end)) for end in ("low", "high")) and given["low"] >= given["high"]:
        yield (*key, "low"), f"{given['low']!r} is not below high, {given['high']!r}"


def _check_data_key(given: Mapping[str, Any], key: tuple[Any, ...]) -> Iterator[Mistake]:
    values = given["data"]
    if isinstance(values, str):
        if not values.endswith(".npy") or not Path(values).is_file():
            yield (*key, "data"), f"no such file {values} (an array that NumPy saved: NAME.npy)"
    if "low" in given and "is" not in given:
        yield (*key, "data"), "goes without low and high"


def _check_judging_keys(op: UserOp) -> Iterator[Mistake]:
    """Class, definition, tolerances, invariants."""
    from tasks.judge.definitions import DEFINITIONS

    if (op.op_class == OpClass.CHOICE) != bool(op.definition):
        needs = f"goes with class: {OpClass.CHOICE.value}, which needs one of: {', '.join(DEFINITIONS) or 'none known'}"
        yield ("definition",), needs
    if op.tolerances and (op.definition or op.op_class in (OpClass.RANDOM, OpClass.UNINITIALISED)):
        yield ("tolerances",), f"class {op.op_class} has no one right value to be near to: leave them out"
    for dtype, given in op.tolerances.items():
        yield from DTYPE.mistakes(op, dtype, ("tolerances", dtype))
        if not isinstance(given, Mapping) or set(given) != {"rtol", "atol"}:
            yield ("tolerances", dtype), "needs rtol and atol, e.g. {rtol: 1.0e-3, atol: 1.0e-5}"
            continue
        for name, value in given.items():
            if not is_finite_number(value) or value < 0:
                yield (
                    ("tolerances", dtype, name),
                    f"{value!r} is no tolerance: a number from 0 on (YAML wants 1.0e-3, not 1e-3)",
                )
    for i, one in enumerate(op.invariants):
        yield from _check_invariant_key(op, one, ("invariants", i))


def _check_invariant_key(op: UserOp, one: Any, key: tuple[Any, ...]) -> Iterator[Mistake]:
    name, argument = read_invariant_key(one)
    if name not in INVARIANTS:
        yield key, f"unknown invariant {name!r}{suggest_nearest_names(name, INVARIANTS)}"
        return
    takes = INVARIANTS[name]
    ok: bool = argument is None and name != "bounded"
    if argument is not None and takes:
        if name == "bounded":
            ok = (
                isinstance(argument, Sequence)
                and len(argument) == 2
                and all(map(is_finite_number, argument))
                and argument[0] <= argument[1]
            )
        elif name == "shape_preserved":
            ok = argument in op.inputs
        else:
            ok = type(argument) is int
    if not ok:
        yield key, f"{name} takes {takes or 'no argument'}, not {argument!r}"


def read_invariant_key(one: Any) -> tuple[str, Any]:
    """(name, argument) of an invariant as it is written: a name, or a mapping {name: argument}."""
    if isinstance(one, Mapping) and len(one) == 1:
        return next(iter(one.items()))
    return (one, None) if isinstance(one, str) else (str(one), None)


def _check_outputs_key(op: UserOp) -> Iterator[Mistake]:
    for i, given in enumerate(op.outputs):
        if not isinstance(given, Mapping):
            yield from DTYPE.mistakes(op, given, ("outputs", i))
            continue
        yield from _put_mistakes_below_key(
            ("outputs", i), wrong := declaration_keys.check_declared_keys(OutputKeys, given)
        )
        if "shape" in given and not wrong:
            yield from _check_shape_key(op, given["shape"], ("outputs", i, "shape"))
