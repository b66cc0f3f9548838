"""Calls that judge a function: on inputs that are drawn (`fuzz`), on given ones (`assert_correct`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.client.kernels import (
    Backward,
    ClientError,
    Kernel,
    describe_inputs_as_data,
    find_given_declaration,
    find_kernel,
    find_tensor_place,
    name_given_inputs,
    split_given_inputs,
)
from farm.client.results import Result
from farm.client.running import KernelRunOptions, run
from tasks.arrays.tree import TensorSpec
from tasks.catalogs.user import dims as sizes
from tasks.catalogs.user import kernel_samples, load_kernels
from tasks.catalogs.user.ops import UserOp
from tasks.model import FUZZ, is_inexact_dtype
from tasks.nearest import suggest_nearest_names


def fuzz(
    function: Callable[..., Any] | str,
    reference: Callable[..., Any] | str | None = None,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | None = None,
    dtypes: Sequence[str] | None = None,
    cases: int = 100,
    seed: int = 0,
    backward: Backward = False,
    double: bool = False,
    *,
    backend: str = "",
    policy: str = "error_units",
    results: str | Path | None = "results",
    known_failures: Sequence[Mapping[str, Any]] = (),
    deadline_s: float = 60.0,
    isolate: bool = False,
    **settings: Any,
) -> Result:
    """Judge ``function`` on ``cases`` inputs per dtype, drawn from ``seed``, against ``reference`` in float64.

    function: called by name with torch tensors (NumPy arrays with framework="numpy"); or the name of one that is
    declared ("module:function", or an op of ./farm.yaml). reference: of float64 NumPy arrays (torch tensors with
    reference_framework="torch") under the same names. inputs: name → list of sizes, or a mapping with shape, dtype, low
    and high. dims: dimension → (smallest, largest). backward: gradients too, of all floating inputs or of those named;
    of a kernel of NumPy arrays the function that computes them (see `farm.UserOp`), unless the kernel has one; double:
    the gradients of these gradients as well. results: the lake that the rows go to, None for none. isolate: in child
    processes, where a crash or a hang is a row. settings: fields of `tasks.catalogs.user.ops.UserOp` (op_class, kwargs,
    tolerances, invariants …), and atol and rtol, the tolerances of every dtype.

    Raises ClientError for what cannot be meant.
    """
    _refuse_imported_script()
    refuse_less_than_one("cases", cases)
    kernel = find_kernel(function, reference, inputs, dims, dtypes, backward, double, **settings)
    options = KernelRunOptions(backend, policy, results, deadline_s, isolate)
    known = [dict(k) if isinstance(k, Mapping) else k for k in known_failures]
    return run(kernel, options, samples=cases, distributions=[FUZZ], seed=seed, known_failures=known)


def refuse_less_than_one(name: str, value: Any) -> None:
    """Raise ClientError for a number that is none."""
    if type(value) is not int or value < 1:
        raise ClientError(f"{name}: at least 1, not {value!r}")


def assert_correct(
    function: Callable[..., Any] | str,
    inputs: Any,
    reference: Callable[..., Any] | str | None = None,
    op_class: str | None = None,
    dtypes: Sequence[str] | None = None,
    backward: Backward = False,
    double: bool = False,
    *,
    backend: str = "",
    policy: str = "error_units",
    results: str | Path | None = None,
    deadline_s: float = 60.0,
    isolate: bool = False,
    imprecise: bool = True,
    **settings: Any,
) -> Result:
    """Judge ``function`` on given inputs: a tuple in its order or a mapping, of tensors or arrays and other arguments.

    dtypes: floating inputs are rounded to each of them in turn; else they are taken in their own. The rest is as in
    `fuzz`. imprecise: whether results may have lost digits, if no more than that. Returns the result where everything
    passed. Raises AssertionError with what failed, ClientError.
    """
    __tracebackhide__ = True  # pytest shows the test's line
    given = {**settings, "op_class": op_class, "backward": backward, "double": double}
    kernel = build_given_kernel(function, inputs, reference, dtypes, **given)
    found = run(kernel, KernelRunOptions(backend, policy, results, deadline_s, isolate), samples=1)
    found.check(imprecise)
    return found


def _find_memory_layouts(
    function: Callable[..., Any], inputs: Any, arrays: Mapping[str, Any], framework: str
) -> dict[str, TensorSpec]:
    """How the tensors and arrays that are given lie in memory, by name, where they are not contiguous; torch has no
    negative strides."""
    places = {name: find_tensor_place(x) for name, x in name_given_inputs(function, inputs).items() if name in arrays}
    found = {name: spec for name, spec in places.items() if spec.strides is not None}
    lacked = [name for name, spec in found.items() if framework == "torch" and min(spec.strides or (), default=0) < 0]
    for name in lacked:
        text = f"inputs.{name}: torch has no negative strides ({list(found.pop(name).strides or ())}): a contiguous copy is given instead"
        warnings.warn(text, stacklevel=5)
    return found


def _infer_dims_of_inputs(op: UserOp, arrays: Mapping[str, Any]) -> dict[str, int]:
    """The dimensions of inputs that are given. Raises ClientError for others than those declared: a reference could
    broadcast them, and the kernel would be blamed."""
    missing = [name for name in op.inputs if name not in arrays]
    if missing:
        unknown = [
            f"{name!r} is unknown{suggest_nearest_names(name, missing)}" for name in arrays if name not in op.inputs
        ]
        said = "; ".join([f"{missing[0]!r} is missing", *unknown[:1]])
        raise ClientError(f"inputs: {said}; {op.name} is declared with {', '.join(op.inputs)}")
    try:
        return sizes.solve_kernel_dims(op, arrays)
    except ValueError as error:
        raise ClientError(f"inputs: {error}; declared: {dict(op.inputs)}") from None


def _refuse_imported_script() -> None:
    """Raises ClientError in a script that is imported for the functions in it: it would do all of its work again."""
    if load_kernels.EXECUTED:
        raise ClientError(
            f"{load_kernels.EXECUTED[-1].name} calls the farm while it is imported for its functions: "
            'put those calls under `if __name__ == "__main__":`'
        )


def build_given_kernel(
    function: Callable[..., Any] | str,
    inputs: Any,
    reference: Callable[..., Any] | str | None = None,
    dtypes: Sequence[str] | None = None,
    **settings: Any,
) -> Kernel:
    """The op whose inputs are given: its one sample has their values. settings: as of `find_kernel`."""
    _refuse_imported_script()
    declared = find_given_declaration(function)
    plain = function if callable(function) else find_kernel(function).op.kernel
    assert callable(plain)
    arrays, kwargs = split_given_inputs(plain, inputs)
    if declared and isinstance(inputs, Mapping):
        # What a call does not say is as declared.
        told = {k: v for k, v in declared.op.kwargs.items() if k not in arrays}
        dims = _infer_dims_of_inputs(declared.op, arrays)
        if said := kernel_samples.find_declared_contradiction(declared.op, dims, arrays):
            raise ClientError(f"inputs: {said}; give values of that kind, or declare another one")
        kwargs = sizes.evaluate_keyword_sizes(told, dims) | kwargs
    if not arrays:
        raise ClientError("inputs: none is a tensor or array")
    floating = [x.dtype.name for x in arrays.values() if is_inexact_dtype(x.dtype.name)]
    framework = settings.get("framework") or (declared.op.framework if declared else UserOp.framework)
    places = _find_memory_layouts(plain, inputs, arrays, framework)
    return find_kernel(
        function,
        reference,
        describe_inputs_as_data(arrays, dtypes, places),
        dtypes=dtypes or [floating[0] if floating else next(iter(arrays.values())).dtype.name],
        kwargs={**kwargs, **(settings.pop("kwargs", None) or {})},
        **settings,
    )
