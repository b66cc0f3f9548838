"""Kernels that are sessions: a class whose objects take one step after another and keep something in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tasks.catalogs.user.ops import UserOp
from tasks.older_python import zip_equal


class OpenedKernel:
    """A session of torch tensors over an object of the kernel's class, which may lack all methods but ``step``."""

    def __init__(self, kernel: Callable[[], Any]) -> None:
        self._kernel, self._made = kernel, None

    def start(self, device: str, given: Mapping[str, Any]) -> None:
        """Make a new object. given: what no step has of its own, by name."""
        self.close()
        self._made = self._kernel()
        if start := getattr(self._made, "start", None):
            start(**given)

    def step(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What one step returns for its part of the inputs."""
        assert self._made is not None, "started before"
        return self._made.step(*args, **kwargs)

    def state(self) -> Mapping[str, Any]:
        """What the object says that it keeps."""
        state = getattr(self._made, "state", None)
        return dict(state()) if state else {}

    def close(self) -> None:
        if close := getattr(self._made, "close", None):
            close()
        self._made = None


def find_stepped_kernel_inputs(op: UserOp) -> tuple[str, ...]:
    """The inputs of which each step has a row: those whose first size is the dimension ``steps``."""
    shapes = {name: x["shape"] if isinstance(x, Mapping) else x for name, x in op.inputs.items()}
    return tuple(name for name, shape in shapes.items() if op.steps and shape and shape[0] == op.steps)


def run_whole_session(op: UserOp, kernel: Callable[[], Any]) -> Callable[..., Any]:
    """A session as a function of all inputs: each output has a row for every step. That is what its reference is held
    against."""

    def run(**arguments: Any) -> Any:
        import torch

        names = find_stepped_kernel_inputs(op)
        session = OpenedKernel(kernel)
        session.start("", {name: x for name, x in arguments.items() if name not in names})
        rows: list[list[Any]] = []
        try:
            for k in range(len(arguments[names[0]])):
                made = session.step((), {name: arguments[name][k] for name in names})
                # A session may write to what it has returned, in the next step.
                rows.append([x.clone() for x in (made if isinstance(made, (tuple, list)) else [made])])
        finally:
            session.close()
        outputs = tuple(torch.stack(list(x)) for x in zip_equal(*rows))
        return outputs if len(outputs) > 1 else outputs[0]

    run.__name__ = getattr(kernel, "__name__", "session")
    return run


def list_session_mistakes(op: UserOp) -> Iterator[tuple[tuple[Any, ...], str]]:
    """What is wrong with ``steps`` in a declaration, at which key."""
    if not op.steps:
        return
    if not find_stepped_kernel_inputs(op):
        text = f"no input has {op.steps!r} as its first size: name the dimension of which each step has one, e.g. steps: tokens"
        yield ("steps",), text
    if op.framework != "torch":
        yield ("framework",), "a session takes torch tensors: leave it out, or convert them in step"
    if op.definition:
        yield (
            ("definition",),
            "a result that is only defined up to a choice is not judged step by step: leave out steps",
        )


def explain_lacking_kernel_step(kernel: Any) -> str:
    """What is wrong with the kernel of an op with ``steps``, in words; "" for nothing."""
    if callable(getattr(kernel, "step", None)):
        return ""
    what = getattr(kernel, "__name__", type(kernel).__name__)
    return f"{what} has no method step: with steps the kernel is a class, whose step takes one row of {{}}"
