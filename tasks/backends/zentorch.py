"""zentorch: AMD's ZenDNN kernels as a backend of torch.compile; a case counts only if they took a node of its graph."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

from tasks.backends.base import Backend, importing
from tasks.backends.inductor import Inductor
from tasks.backends.shared.recipe import ProgramRecipe
from tasks.model import Fallback, Form, Program, RuntimeInfo, Unavailable
from tasks.packages import TORCH_CATALOG


class ZenTorch(Inductor):
    """zentorch replaces nodes of inductor's graph by its own (``torch.ops.zentorch.*``); the rest stays inductor's.

    ZenDNN keeps packed second operands of matrix products by their address (``ZENDNNL_MATMUL_WEIGHT_CACHE``, on by
    default): made for weights that never change, it multiplies by a matrix of the past wherever memory is used again.
    The cache is off here; the option ``weight_cache: true`` leaves the runtime's default, as a backend of its own.
    """

    compiler = "zentorch"
    takes = ("weight_cache",)
    devices = ("cpu",)
    checks = ("forward",)
    packages = ("zentorch==2.13.0.2", "torch==2.13.0", "deprecated", "safetensors", *TORCH_CATALOG)

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.weight_cache = self.switch("weight_cache")
        self.vendor = "AMD"
        #: Nodes of the graph compiled last that zentorch took; whether compiling ends once they are known.
        self.taken: Counter[str] = Counter()
        self.looking = False

    def probe(self) -> RuntimeInfo:
        if self.device != "cpu":
            raise Unavailable(f"zentorch only runs on the CPU, not on {self.device}")
        if not self.weight_cache:
            os.environ["ZENDNNL_MATMUL_WEIGHT_CACHE"] = "0"
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        info = super().probe()
        with importing("zentorch"):
            import zentorch
            from zentorch import _compile_backend
        if not zentorch._C.is_avx512_supported():
            raise Unavailable("zentorch only takes nodes on CPUs with AVX-512, which this one lacks")
        import torch._functorch.config

        # A graph from this cache would not pass through zentorch's replacements, where they are counted.
        torch._functorch.config.enable_autograd_cache = False
        _compile_backend.optimize_pass = self._counting(_compile_backend.optimize_pass)
        versions = f"zentorch {metadata.version('zentorch')}, {info.runtime_version}"
        return RuntimeInfo(versions, info.device, build=info.build)

    def _counting(self, replace: Any) -> Any:
        """zentorch's pass over a graph, with its nodes counted; a graph without any is not compiled."""
        from torch._inductor.custom_graph_pass import CustomGraphPass

        class Counting(CustomGraphPass):
            def __call__(this, graph: Any) -> None:
                replace(graph)
                names = [str(node.target) for node in graph.nodes if str(node.target).startswith("zentorch.")]
                self.taken.update(names)
                if self.looking or not names:
                    raise _Seen

            def uuid(this) -> Any:
                return replace.uuid()

        return Counting()

    def build_all(self, forms: Sequence[Form]) -> list[Program | Exception]:
        """All samples at once where zentorch takes no node of any; else each by itself: whose nodes they are is then
        sure."""
        if len(forms) > 1:
            self.looking = True
            try:
                self._compile(forms)
            except Fallback as error:
                if not self.taken and not error.broken:
                    return [error] * len(forms)
            except Exception:  # whose it is, the single builds tell
                pass
            finally:
                self.looking = False
        return Backend.build_all(self, forms)

    def _compile(self, forms: Sequence[Form]) -> list[Program]:
        """Raises Fallback where zentorch takes no node."""
        import torch

        self.taken.clear()
        try:
            return super()._compile(forms)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if not isinstance(error.inner_exception, _Seen):
                raise
            raise Fallback("zentorch takes no node of the graph: it would be inductor's and ATen's") from None

    def recipe(self, form: Form) -> ProgramRecipe:
        made = super().recipe(form)
        off = {} if self.weight_cache else {"ZENDNNL_MATMUL_WEIGHT_CACHE": "0"}
        return replace(made, variables={**made.variables, **off}, setup=(*made.setup, "import zentorch"))

    def _fallback(self, kernels: int) -> str | None:
        return None if self.taken else "zentorch took no node of the graph"

    def _where(self, kernels: int) -> str:
        named = ", ".join(f"{n} {name.split('.')[1]}" for name, n in sorted(self.taken.items()))
        return f"zentorch: {named}" + (f"; inductor: {kernels} kernels" if kernels else "")

    @property
    def flags(self) -> str:
        return f"weight_cache={'on' if self.weight_cache else 'off'}"


class _Seen(Exception):
    """The nodes are counted: nothing more is compiled."""
