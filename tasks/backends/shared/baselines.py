"""What a kernel of the user's is timed against: the function that its declaration names, in eager torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tasks.arrays import torch_tree
from tasks.arrays.dispatch import make_dispatch_mode
from tasks.arrays.tree import decode_argument_tree
from tasks.model import Baseline, Form, OwnKernel, Unsupported

if TYPE_CHECKING:
    from tasks.backends.base import Backend, BaselineArm

#: Bytes of inputs up to which products are counted in a call that computes them.
COMPUTED = 1 << 22


def build_declared_baseline(backend: Backend, form: Form, baseline: Baseline) -> BaselineArm:
    """The baseline of a kernel of the user's, by torch on the backend's device. Raises Unsupported where it cannot be
    had there."""
    if baseline.own_copies and backend.device_vendor:
        raise Unsupported(
            f"the baseline {baseline.name} computes on the CPU, {backend.name} does not: name another "
            "(baseline: eager, or module:function)"
        )
    its = form.also("torch") if form.also and form.kind != "torch" else form
    its = replace(its, call=baseline.call, own=OwnKernel(own_copies=baseline.own_copies))
    torch = backend.start_torch()
    if baseline.rounded is not None:
        rounded = replace(its, call=baseline.rounded)
        with contextlib.suppress(Exception):  # the check says so when it judges the baseline
            both = [[x.dtype for x in torch.eager(one).program.run()] for one in (its, rounded)]
            its = its if both[0] == both[1] else rounded  # a wrapper that does nothing takes time
    if baseline.compiled:
        its = replace(its, call=_compile_baseline(its.call))
    products, own = _count_products_of_baseline(its, baseline.counted), form.own
    work = own.work(form) if own is not None and own.work is not None else (None, None)
    views = own is not None and own.aliases
    made = torch.eager(its)
    return replace(made, name=baseline.name, products=products, declared=True, work=work, views=views)


def _compile_baseline(call: Any) -> Any:
    import torch

    return torch.compile(call, dynamic=False)


def _count_products_of_baseline(form: Form, call: Callable[..., Any] | None) -> int | None:
    """Operations of the products in a call of a function of tensors, as torch counts them; None where there are none,
    or it does not run on the CPU (of large inputs: without values)."""
    if call is None:
        return None
    try:
        import torch

        # Torch's functions of shapes import its compiler, for a second.
        where = "cpu" if sum(x.nbytes for x in form.arrays) <= COMPUTED else "meta"
        leaf = torch_tree.make_tensor_decoder(form.arrays.__getitem__, where)
        args, kwargs = decode_argument_tree(form.args, leaf), decode_argument_tree(form.kwargs, leaf)
        with torch.no_grad(), _counting_mode() as counted:
            call(*args, **kwargs)
        return int(counted.operations) or None
    except Exception:  # it looks at values that are not there, or leaves torch
        return None


def _counting_mode() -> Any:
    """Counts operations as torch's `FlopCounterMode` does, by the same registry, without the compiler that this one
    imports."""
    from torch.utils.flop_counter import flop_registry

    class Count(make_dispatch_mode()):  # type: ignore[misc]
        operations = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs, count = kwargs or {}, flop_registry.get(func.overloadpacket)
            if count is None:
                with self:
                    if (made := func.decompose(*args, **kwargs)) is not NotImplemented:
                        return made
            made = func(*args, **kwargs)
            self.operations += 0 if count is None else count(*args, **kwargs, out_val=made)
            return made

    return Count()
