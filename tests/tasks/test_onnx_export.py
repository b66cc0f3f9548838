"""What the exporter of ONNX keeps and leaves out between exports: nothing of what torch does by it."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.prepare import onnx_export

torch = pytest.importorskip("torch")


class Op(torch._ops.OperatorBase):  # type: ignore[misc,name-defined]
    def name(self) -> str:
        return "op"

    def __call__(self, *args: Any, **kwargs: Any) -> None: ...


def test_a_kernel_is_registered_as_torch_does_it() -> None:
    from torch._C import DispatchKey
    from torch.utils._python_dispatch import TorchDispatchMode

    own = torch._ops.OperatorBase.py_impl
    own = getattr(own, "__wrapped__", own)
    quick, op, twin = onnx_export._skip_annotations(own), Op(), Op()

    def kernel() -> None: ...

    class Mode(TorchDispatchMode): ...

    for key in (DispatchKey.CPU, DispatchKey.CompositeImplicitAutograd, Mode):
        op._dispatch_cache[DispatchKey.CPU] = twin._dispatch_cache[DispatchKey.CPU] = kernel
        assert quick(op, key)(kernel) is own(twin, key)(kernel) is kernel
        assert op._dispatch_cache == twin._dispatch_cache == {}
    assert (op.py_kernels, op.python_key_table) == (twin.py_kernels, twin.python_key_table)
    for refused in (DispatchKey.CPU, DispatchKey.Python, Mode, "CPU"):
        for register in (quick, own):
            with pytest.raises((RuntimeError, AssertionError)):
                register(op, refused)(kernel)
