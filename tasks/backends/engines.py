"""Engines that serve decoders as backends: each loads what a form of the catalog `engine` holds, and is driven by the check serving."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.backends.base import Backend, importing
from tasks.checks import engine_relations, serving
from tasks.model import Form, Program, RuntimeInfo, Unavailable, Unsupported
from tasks.model.engine import Engine
from tasks.packages import ONNX
from tasks.variables import threads


class LoadedEngine:
    """A session whose steps are all requests of a form, answered in the usual way."""

    def __init__(self, engine: Engine, form: Form) -> None:
        self.engine, self._form = engine, form

    def start(self) -> None:
        if not serving.is_of_sampler(self._form):  # which takes logits, and no model
            self.load(compiled=False)

    def load(self, compiled: bool) -> Engine:
        self.engine.load(serving.model_of(self._form), compiled)
        return self.engine

    def step(self, inputs: Sequence[Any] | None = None) -> Sequence[Any]:
        if inputs is not None:
            raise Unsupported("an engine is given its requests by the form")
        return [engine_relations.cached(self.engine, serving.requests_of(self._form))]

    def state(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        pass


class EngineBackend(Backend):
    """Base of engines; a subclass has `make_engine`."""

    forms = ("engine",)
    checks: tuple[str, ...] = ("serving",)
    takes: tuple[str, ...] | None = ()

    def make_engine(self) -> Engine:
        """The engine, with nothing loaded. Raises Unavailable."""
        raise NotImplementedError

    def build(self, form: Form) -> Program:
        session = LoadedEngine(self.make_engine(), form)

        def run() -> Sequence[Any]:
            session.start()
            return session.step()

        return Program(run, self.device, session=lambda: session)


class OwnEngine(EngineBackend):
    """``class``: "module:Class" of an engine in Python (`tasks.model.engine.Engine`); without it the plain one in torch."""

    vendor = "PyTorch"
    takes = ("class",)
    closed = True

    def probe(self) -> RuntimeInfo:
        with importing("torch"):
            import torch
        torch.set_num_threads(threads())
        self._class = self._find_class(str(self.options.get("class", "tasks.engines.plain:PlainEngine")))
        return RuntimeInfo(f"torch {torch.__version__}", torch.backends.cpu.get_cpu_capability())

    def _find_class(self, name: str) -> Any:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise Unavailable(f'backend {self.name}: class: {name!r} is no "module:Class" here ({error})') from None
        lacks = [
            x
            for x in ("load", "prefill", "batch", "decode", "fork", "crop", "evict", "free")
            if not callable(getattr(found, x, None))
        ]
        if lacks:
            raise Unavailable(
                f"backend {self.name}: class: {name} lacks {', '.join(lacks)} (tasks.model.engine.Engine)"
            )
        return found

    def make_engine(self) -> Engine:
        made: Engine = self._class()
        return made


class Transformers(EngineBackend):
    """``attention``: transformers' name of the implementation of attention, sdpa unless said otherwise."""

    vendor = "Hugging Face"
    takes = ("attention",)
    devices = ("cpu", "cuda")
    packages: tuple[str, ...] = ("transformers==5.23.0", "torch==2.13.0")

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.device_vendor = {"cuda": "nvidia"}.get(device, "")
        if _is_installed("transformers", "torch"):
            self.packages = ()

    def probe(self) -> RuntimeInfo:
        with importing("transformers"):
            import torch
            import transformers
        torch.set_num_threads(threads())
        transformers.logging.set_verbosity_error()
        if self.device != "cpu" and not torch.cuda.is_available():
            raise Unavailable(f"torch {torch.__version__} sees no device {self.device}")
        return RuntimeInfo(f"transformers {transformers.__version__}, torch {torch.__version__}", self.device)

    def make_engine(self) -> Engine:
        from tasks.engines.transformers import TransformersEngine

        return TransformersEngine(str(self.options.get("attention", "sdpa")), self.device)


class OnnxRuntimeGenAi(EngineBackend):
    """Models are built by the library's own builder, which needs torch and transformers, once for their weights."""

    vendor = "Microsoft"
    closed = True
    packages: tuple[str, ...] = (
        "onnxruntime-genai==0.18.0",
        "onnxruntime==1.31.1",
        "transformers==5.23.0",
        "torch==2.13.0",
        "onnx-ir==1.1.0",
        ONNX,
    )

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        if _is_installed("onnxruntime_genai", "transformers", "torch"):
            self.packages = ()

    def probe(self) -> RuntimeInfo:
        with importing("onnxruntime_genai"):
            import onnxruntime_genai
        return RuntimeInfo(f"onnxruntime-genai {onnxruntime_genai.__version__}", "CPU")

    def make_engine(self) -> Engine:
        from tasks.engines.onnxruntime_genai import GenAiEngine

        return GenAiEngine()


def _is_installed(*packages: str) -> bool:
    """Whether the farm's own environment has packages, so that a backend needs none of its own."""
    return all(importlib.util.find_spec(x) is not None for x in packages)
