"""What a kernel promises beside its numbers: to return tensors, and to leave its inputs alone."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.pack import name_numpy_dtype
from tasks.arrays.tree import map_leaves
from tasks.catalogs.user import baselines, functions, interpreted, watched_accesses
from tasks.catalogs.user.ops import UserOp
from tasks.gradients.autograd import DECLARED_ONCE, DeclaredOnce, OnceDifferentiable
from tasks.model import Misbehaviour, OwnKernel, TensorSession, Unsupported
from tasks.model.kind import KIND_LAZY

#: Of so many last calls it is known what they returned, as long as that is not more than some bytes; always of the last.
CALLS_HELD, BYTES_HELD = 4, 64 << 20


def guard_kernel_promises(
    op: UserOp, kernel: Callable[..., Any], backward: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """The kernel as a function of torch tensors that raises Misbehaviour where it breaks a promise.
    backward: the gradient of a kernel of NumPy arrays (see `UserOp`), which is then autograd's.

    While torch traces the call (to compile or export it) nothing is checked, as there are no values.
    """
    import torch

    returned: list[list[Any]] = []  # by the last calls: as long as it is kept, no allocator hands its memory out again
    if op.framework == "numpy":

        def call_numpy(**arguments: Any) -> Any:
            if backward is None:
                return _call_numpy_kernel(op, kernel, arguments, returned)
            forward = functools.partial(_call_numpy_kernel, op, kernel, returned=returned)
            return _give_kernel_backward(op, forward, backward).apply(tuple(arguments), *arguments.values())

        # A compiler cannot look inside; saying so makes the row a fallback.
        disabled: Callable[..., Any] = torch.compiler.disable(call_numpy, reason="a kernel of NumPy arrays")
        return disabled

    def call(**arguments: Any) -> Any:
        return (
            kernel(**arguments)
            if torch.compiler.is_compiling()
            else _call_torch_kernel(op, kernel, arguments, returned)
        )

    return call


def make_own_kernel(
    op: UserOp, kernel: Callable[..., Any], session: Callable[[], TensorSession] | None = None
) -> OwnKernel:
    """What is declared of a kernel, beside the function that `guard_kernel_promises` makes of it."""
    of_arrays = op.framework == "numpy"
    bare = baselines.make_tensor_baseline(kernel) if of_arrays else kernel
    watch = functools.partial(_check_kernel_races, kernel)
    return OwnKernel(
        tuple(op.mutates),
        tuple(op.forbids),
        own_copies=of_arrays,
        watch=watch,
        session=session,
        bare=bare,
        aliases=op.aliases,
    )


def _call_torch_kernel(
    op: UserOp, kernel: Callable[..., Any], arguments: dict[str, Any], returned: list[list[Any]]
) -> Any:
    import torch

    tensors = {k: x for k, x in arguments.items() if isinstance(x, torch.Tensor)}
    own = torch._C._DisableTorchDispatch  # who watches the kernel's operations is not to see those of its promises
    with own():
        before = {k: x.detach().clone() for k, x in tensors.items() if k not in op.mutates}
        beside = {k: found for k, x in tensors.items() if (found := _read_gap_bits(x)) is not None}
    differentiated = torch.is_grad_enabled()
    # A kernel may differentiate inside, whatever is asked of it.
    with _locate_kernel_errors(kernel) as watch, torch.enable_grad():
        result = kernel(**arguments)
    if not differentiated:
        result = map_leaves(result, lambda x: x.detach() if isinstance(x, torch.Tensor) and x.requires_grad else x)
    outputs = _flatten_kernel_result(
        kernel, result, torch.Tensor, functions.list_function_parameters(kernel) is not None
    )
    for x in outputs:
        if x.layout is not torch.strided:  # whoever takes it for an array would have to convert it, which nobody times
            raise Misbehaviour("structure", f"the kernel returned a tensor of {x.layout}, not one of torch.strided")
    with _attach_misbehaving_outputs(lambda: [_tensor_as_numpy(x) for x in outputs]):
        watch.check()
        with own():
            changed = [name for name, old in before.items() if not torch_tree.have_same_tensor_bits(tensors[name], old)]
            between = [name for name, old in beside.items() if not torch.equal(_read_gap_bits(tensors[name]), old)]
        for name in changed:
            raise Misbehaviour(
                "mutation", f"the kernel changed its input {name} (declare mutates: [{name}] if intended)"
            )
        for name in between:
            raise Misbehaviour(
                "out_of_bounds",
                f"the kernel wrote between the elements of its input {name}, to memory that is not its own",
            )
        _check_aliasing(op, tensors, outputs, _do_outputs_share_storage)
        with own():
            kept = [x.detach() for x in outputs]
        _check_memory_reuse(op, kept, returned, _do_outputs_share_storage)
    return result


def _read_gap_bits(x: Any) -> Any | None:
    """The bits of what lies in the memory of a tensor before and between its elements; None where nothing does."""
    import torch

    if x.layout is not torch.strided or not x.numel():
        return None
    count = x.untyped_storage().nbytes() // x.element_size()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(x.element_size())
    reach = x.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride()))
    if count == x.numel() or count < reach or bits is None:  # a device whose tensors are no memory says 0
        return None
    own = torch.zeros(count, dtype=torch.bool, device=x.device)
    shape = [1 if s == 0 else n for n, s in zip(x.shape, x.stride())]  # what is expanded lies at one address
    own.as_strided(shape, x.stride(), x.storage_offset()).fill_(True)
    return x.detach().as_strided((count,), (1,), 0).view(bits)[~own]


@contextlib.contextmanager
def _attach_misbehaving_outputs(outputs: Callable[[], list[np.ndarray]]) -> Iterator[None]:
    """Give a Misbehaviour the outputs: their numbers may be wrong as well, and how far is worth knowing."""
    try:
        yield
    except Misbehaviour as broken:
        with contextlib.suppress(Exception):  # of what has no memory there are no numbers
            broken.outputs = [np.array(x) for x in outputs()]
        raise


def _call_numpy_kernel(
    op: UserOp, kernel: Callable[..., Any], arguments: dict[str, Any], returned: list[list[Any]]
) -> Any:
    import torch

    tensors = {k: x.detach().cpu() for k, x in arguments.items() if isinstance(x, torch.Tensor)}
    inputs = {k: x for k, x in arguments.items() if isinstance(x, np.ndarray)}
    inputs |= {k: torch_tree.tensor_to_numpy(x) for k, x in tensors.items()}
    before = {k: x.copy() for k, x in inputs.items()}
    with _locate_kernel_errors(kernel), torch.enable_grad():  # as in `_call_torch_kernel`
        result = kernel(**(arguments | inputs))
    outputs = _flatten_kernel_result(kernel, result, (np.ndarray, np.generic))
    with _attach_misbehaving_outputs(lambda: [np.asarray(x) for x in outputs]):
        for name, old in before.items():
            if name not in op.mutates and inputs[name].tobytes() != old.tobytes():
                raise Misbehaviour(
                    "mutation", f"the kernel changed its input {name} (declare mutates: [{name}] if intended)"
                )
        _check_aliasing(op, inputs, outputs, np.shares_memory)
        _check_memory_reuse(op, outputs, returned, np.shares_memory)
    return tuple(torch_tree.tensor_from_numpy(np.array(x, order="C")) for x in outputs)


def _give_kernel_backward(op: UserOp, forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """A torch.autograd.Function of (names of the arguments, the arguments): autograd then has the gradient that
    somebody wrote."""
    import torch

    class Pair(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, names: Sequence[str], *values: Any) -> Any:
            tensors = [isinstance(x, torch.Tensor) for x in values]
            kept = [x.clone() if name in op.mutates else x for name, x, is_one in zip(names, values, tensors) if is_one]
            ctx.save_for_backward(*kept)
            ctx.names, ctx.others = names, [None if is_one else x for x, is_one in zip(values, tensors)]
            ctx.tensors = tensors
            return forward(arguments=dict(zip(names, values)))

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *given: Any) -> Any:
            saved = iter(ctx.saved_tensors)
            values = [next(saved) if is_one else x for x, is_one in zip(ctx.others, ctx.tensors)]
            arguments = {
                k: _as_gradient_array(x) if isinstance(x, torch.Tensor) else x for k, x in zip(ctx.names, values)
            }
            arrays = tuple(map(_as_gradient_array, given))
            with torch.enable_grad():
                found = _name_backward_gradients(op, backward(arrays if len(arrays) > 1 else arrays[0], **arguments))
            made = {
                name: torch_tree.tensor_from_numpy(_fit_gradient_to_input(name, g, arguments[name]))
                for name, g in found.items()
            }
            return None, *(made.get(name) for name in ctx.names)

    return Pair


def _as_gradient_array(x: Any) -> np.ndarray:
    return torch_tree.tensor_to_numpy(x.detach().cpu().contiguous())


def _name_backward_gradients(op: UserOp, result: Any) -> dict[str, Any]:
    """The gradients in what a backward function returned, those that are 0 left out. Raises Misbehaviour."""
    if not isinstance(result, Mapping):
        many = result if isinstance(result, tuple) else (result,)
        if len(many) != len(op.gradient):
            asked = f"{len(op.gradient)} are asked for, of {', '.join(op.gradient)}"
            raise Misbehaviour("structure", f"the backward function returned {len(many)} gradients: {asked}")
        result = dict(zip(op.gradient, many))
    if missing := [name for name in op.gradient if name not in result]:
        raise Misbehaviour(
            "structure", f"the backward function returned no gradient of {missing[0]} (None says that it is 0)"
        )
    return {name: result[name] for name in op.gradient if result[name] is not None}


def _fit_gradient_to_input(name: str, gradient: Any, given: np.ndarray) -> np.ndarray:
    """A gradient that has its input's shape and dtype: torch itself would sum or cast one that has not, and nobody
    would see it.

    Raises Misbehaviour."""
    if not isinstance(gradient, (np.ndarray, np.generic)):
        raise Misbehaviour(
            "structure",
            f"the backward function returned {_describe_kernel_value(gradient)} as the gradient of {name}, not a NumPy array",
        )
    for what, found, wanted in (
        ("shape", gradient.shape, given.shape),
        ("dtype", name_numpy_dtype(gradient.dtype), name_numpy_dtype(given.dtype)),
    ):
        if found != wanted:
            raise Misbehaviour(what, f"the gradient of {name} has the {what} {found}, that of {name} is {wanted}")
    return np.array(gradient, order="C")


@contextlib.contextmanager
def _check_kernel_races(kernel: Callable[..., Any]) -> Iterator[None]:
    """`_locate_kernel_errors`, and raise Misbehaviour of a race."""
    with _locate_kernel_errors(kernel) as watch:
        yield
    watch.check()


@contextlib.contextmanager
def _locate_kernel_errors(kernel: Callable[..., Any]) -> Iterator[watched_accesses.LaunchWatch]:
    """Around what a kernel computes: what it raises says where in its file, once."""
    try:
        with interpreted.prepare_triton_interpreter() as watch:
            yield watch
    except Unsupported:
        raise
    except (Exception, SystemExit) as error:
        if (broken := watched_accesses.unwrap_kernel_misbehaviour(error)) is not None:
            raise broken from None
        place = _find_error_place(kernel, error)
        if isinstance(error, OnceDifferentiable):
            raise DeclaredOnce(f"{DECLARED_ONCE}{place}") from error
        if text := interpreted.explain_not_interpreted(error):
            raise Unsupported(text + place) from error
        text = f"the kernel called sys.exit({error.code!r})" if isinstance(error, SystemExit) else str(error)
        # The type stays: backends tell errors by it.
        if isinstance(error, SystemExit) or (error.args == (text,) and not text.endswith(place)):
            error.args = (text + place,)
        raise


def _find_error_place(kernel: Callable[..., Any], error: BaseException) -> str:
    code = getattr(inspect.unwrap(kernel), "__code__", None)
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if code and f.filename == code.co_filename]
    return f" ({code.co_filename}:{lines[-1]})" if code and lines else ""


def _flatten_kernel_result(kernel: Callable[..., Any], result: Any, kinds: Any, optional: bool = False) -> list[Any]:
    """The outputs in what a kernel returned: a tensor or array of ``kinds``, or a tuple of several. optional: None in a
    tuple is one that was not asked for, as autograd.Functions return it. Raises Misbehaviour."""
    called = "NumPy array" if isinstance(kinds, tuple) else "torch tensor"
    if isinstance(result, kinds):
        return [result]
    if isinstance(result, tuple) and len(result) > 1:
        kept = [(i, x) for i, x in enumerate(result) if not (optional and x is None)]
        for i, x in kept:
            if not isinstance(x, kinds):
                raise Misbehaviour(
                    "structure",
                    f"the kernel returned {_describe_kernel_value(x)} as output {i}, not a {called}{_suggest(kernel, x, kinds)}",
                )
        if kept:
            return [x for _, x in kept]
    raise Misbehaviour(
        "structure",
        f"the kernel returned {_describe_kernel_value(result)}, not a {called} (or a tuple of several)"
        f"{_suggest(kernel, result, kinds)}",
    )


def _suggest(kernel: Callable[..., Any], x: Any, kinds: Any) -> str:
    """What to do about an array of another framework that a kernel returned; "" about anything else."""
    import torch

    code = getattr(inspect.unwrap(kernel), "__code__", None)
    where = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else "the kernel"
    if isinstance(x, torch.Tensor):
        return f"; {where}: declare framework: torch, or return result.numpy()"
    if isinstance(x, np.ndarray):
        return f"; {where}: declare framework: numpy, or return torch.from_numpy(result)"
    if not hasattr(x, "__array__"):  # as a jax.Array and other libraries' arrays have it
        return ""
    made = "numpy.asarray(result)" if isinstance(kinds, tuple) else "torch.from_dlpack(result)"
    return f"; {where}: return {made}"


def _describe_kernel_value(x: Any) -> str:
    if x is None:
        return "None"
    if isinstance(x, (bool, int, float, complex)):
        return f"the Python {type(x).__name__} {x!r}"
    if isinstance(x, (list, tuple)):
        return f"a {type(x).__name__} of {len(x)}"
    kind = type(x)
    return f"a {kind.__qualname__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"


def _check_aliasing(
    op: UserOp, inputs: Mapping[str, Any], outputs: Sequence[Any], shared: Callable[[Any, Any], bool]
) -> None:
    if op.aliases:
        return
    for i, output in enumerate(outputs):
        for name, given in inputs.items():
            if shared(output, given):
                where = f"output {i}" if len(outputs) > 1 else "the output"
                raise Misbehaviour(
                    "aliasing", f"{where} shares memory with the input {name} (declare aliases: true if intended)"
                )


def _check_memory_reuse(
    op: UserOp, outputs: list[Any], returned: list[list[Any]], shared: Callable[[Any, Any], bool]
) -> None:
    """Raise Misbehaviour for outputs in the memory of what one of the last calls returned, and keep these beside it."""
    held = [outputs, *returned]  # one's own: a kernel may be called on several threads
    again = next((k for k, old in enumerate(held[1:]) for x in outputs for y in old if shared(x, y)), None)
    while len(held) > CALLS_HELD or (len(held) > 1 and sum(x.nbytes for y in held for x in y) > BYTES_HELD):
        held.pop()
    returned[:] = held
    if again is not None and not op.aliases:
        whose = "the previous call's output" if not again else f"the output of {again + 1} calls before"
        raise Misbehaviour("aliasing", f"the output reuses the memory of {whose} (declare aliases: true if intended)")


def _do_outputs_share_storage(a: Any, b: Any) -> bool:
    """Whether an output and another tensor live in one piece of memory; sparse and empty ones have none of their own.
    Raises Misbehaviour for an output that is to have memory and has none."""
    import torch

    if a.layout != torch.strided or b.layout != torch.strided or not a.numel() or not b.numel():
        return False
    try:
        place = a.untyped_storage().data_ptr()
    except RuntimeError:
        text = f"the output is a {type(a).__qualname__} without memory: it is computed when it is read"
        raise Misbehaviour(KIND_LAZY, text) from None
    return bool(place == b.untyped_storage().data_ptr())


def _tensor_as_numpy(tensor: Any) -> np.ndarray:
    array: np.ndarray = torch_tree.make_output_array(torch_tree.dense(tensor))
    return array
