"""Apache TVM: the ONNX form through Relax's importer, compiled by LLVM for this processor."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.backends.base import Backend
from tasks.backends.onnx_form import PROBE_MODEL, graph_inputs, input_values
from tasks.model import Form, Program, RuntimeInfo, Unavailable, Unsupported

_OPTIONS = ("target",)

#: What TVM's importer and compiler say of an op, an attribute or a type that they do not implement.
_UNSUPPORTED = re.compile(
    r"not supported|[Uu]nsupported|not implemented|[Nn]ot yet|Only constant|Only .* supported|cannot handle ShapeExpr|unknown dtype"
    r"|does not support|doesn't support|has no LegalizeOps|is not registered"
)
_OUT_OF_MEMORY = re.compile(r"bad_alloc|[Oo]ut of memory|Cannot allocate")


class Tvm(Backend):
    """TVM on "cpu". options: ``target`` (TVM's target as a mapping, over LLVM for the host's processor)."""

    vendor = "Apache"
    forms = ("onnx",)
    packages = ("apache-tvm==0.27.0.post1", "onnx==1.23.2")
    out_of_memory = _OUT_OF_MEMORY

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        if unknown := sorted(set(options) - set(_OPTIONS)):
            raise ValueError(f"backend {name}: unknown option {unknown[0]!r}; it takes {', '.join(_OPTIONS)}")
        if device != "cpu":
            raise ValueError(f"backend {name}: TVM's package computes on the device cpu, not {device!r}")
        target = options.get("target") or {}
        if not isinstance(target, dict):
            raise ValueError(f"backend {name}: target is a mapping, not {type(target).__name__}")
        self._target = {str(k): v for k, v in target.items()}

    def probe(self) -> RuntimeInfo:
        """Run a model of one Add. Raises Unavailable: the package is missing, or it does not work (in TVM's words)."""
        # Read when the library's thread pool starts.
        os.environ["TVM_NUM_THREADS"] = "1"
        try:
            import tvm
            from tvm.relax.frontend.onnx import from_onnx  # noqa: F401
        except ImportError as error:
            raise Unavailable(f"TVM cannot be imported: {error}") from error
        try:
            program = self.build(Form("onnx", "Add", "float32", [np.ones(2, np.float32)], model=PROBE_MODEL))
            result = program.run()[0]
        except Exception as error:
            raise Unavailable(f"TVM does not run a model of one Add: {error}") from error
        if result.tolist() != [2.0, 2.0]:
            raise Unavailable(f"TVM computes 1 + 1 = {result.tolist()}")
        target = _target(**self._target)
        return RuntimeInfo(
            runtime_version=tvm.__version__, device=str(target.attrs.get("mcpu", target.kind.name)), details={"target": str(target)}
        )

    def build(self, form: Form) -> Program:
        """Import, compile and load the model, and make its inputs.

        Raises Unsupported (the importer has no converter, or not for this attribute, type or input that is no
        constant); TVM's other errors as they are.
        """
        import tvm

        values = input_values(form)
        for value in values:
            if not isinstance(value, np.ndarray):
                what = "sequence" if isinstance(value, list) else "empty optional"
                raise Unsupported(f"TVM's virtual machine is given no {what} as an input")
            if value.dtype.kind in "OSU":
                raise Unsupported("TVM has no tensor of strings")
        names = graph_inputs(form.model or b"")
        if len(names) != len(values):
            raise ValueError(f"{form.op}: the graph has {len(names)} inputs ({', '.join(names)}), the form {len(values)}")
        target = _target(**self._target)
        machine = tvm.relax.VirtualMachine(_compiled(form.model or b"", target), tvm.cpu())
        return Program(_runner(machine["main"], values), f"llvm ({target.attrs.get('mcpu', 'generic')})", None, str(target))


@functools.cache
def _target(**options: Any) -> Any:
    import tvm

    own = {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()}
    return tvm.target.Target(own | options)


def _compiled(model: bytes, target: Any) -> Any:
    """The executable of a serialized ModelProto. Raises Unsupported in the importer's or compiler's own words."""
    import onnx
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    proto = onnx.load_model_from_string(model)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tvm.compile(from_onnx(proto), target)
    except Exception as error:
        if isinstance(error, (NotImplementedError, tvm.error.OpNotImplemented)) or _UNSUPPORTED.search(str(error)):
            raise Unsupported(str(error)) from error
        raise


def _runner(main: Any, values: list[np.ndarray]) -> Callable[[], list[np.ndarray]]:
    """``run()`` of a function of the virtual machine over copies of ``values``."""
    import tvm

    tensors = [tvm.runtime.tensor(x) for x in values]
    return lambda: [_array(x) for x in _leaves(main(*tensors))]


def _leaves(value: Any) -> list[Any]:
    """Tensors of a result: one, or an array of them, nested for sequences."""
    import tvm_ffi

    return [y for x in value for y in _leaves(x)] if isinstance(value, tvm_ffi.Array) else [value]


def _array(value: Any) -> np.ndarray:
    """A numpy copy of a tensor; a shape (what an ONNX Shape becomes) as int64."""
    import tvm_ffi

    if isinstance(value, tvm_ffi.Shape):
        return np.array(list(value), np.int64)
    return np.array(value.numpy())
