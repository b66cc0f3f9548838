"""What the exporter of ONNX keeps and leaves out between exports: nothing of what torch does by it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from tasks.catalogs.user.load_kernels import load_user_module
from tasks.model import Group
from tasks.prepare import onnx_export
from tasks.prepare.cases import prepare_group

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
    for register in (quick, own):  # the check is made at the registration
        first, second = (register(made, DispatchKey.CPU) for made in [Op()] * 2)
        first(kernel)
        with pytest.raises(RuntimeError, match="override"):
            second(kernel)


NOTED = """
noted = []

def make(x: int):
    def inner(y: noted.append(1)) -> str:
        return f"{x} and {y}"

    return inner
"""


def test_a_function_without_its_annotations_does_what_its_source_says(tmp_path: Path) -> None:
    (tmp_path / "noted.py").write_text(NOTED)
    module = load_user_module(str(tmp_path / "noted.py"), "", ())
    assert module.make(1)(2) == "1 and 2" and module.noted == [1]
    assert onnx_export._skip_annotations(module.make)(1)(2) == "1 and 2" and module.noted == [1]
    made: dict[str, Any] = {}
    exec("def without_source(): return 3", made)
    assert onnx_export._skip_annotations(made["without_source"]) is made["without_source"]


def test_nothing_of_an_export_is_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.onnx

    group = Group("torch:nn.functional.linear", "", "float32", 1)
    samples = prepare_group(group, tmp_path)[1].samples
    kept: list[weakref.ref[Any]] = []
    export = torch.onnx.export

    def watch(module: Any, tensors: tuple[Any, ...], **more: Any) -> Any:
        assert not gc.isenabled()
        program = export(module, tensors, **more)
        kept.extend(weakref.ref(x) for x in (module, type(module), program, *tensors))
        return program

    monkeypatch.setattr(torch.onnx, "export", watch)
    frozen = gc.get_freeze_count()
    onnx_export.export_sample_to_onnx(samples[0])
    assert gc.isenabled() and gc.get_freeze_count() <= frozen
    gc.collect()
    assert len(kept) > 4 and not any(x() is not None for x in kept)
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        onnx_export.export_sample_to_onnx(samples[0])
    assert gc.isenabled()
