"""Engines that serve decoders as backends: each loads what a form of the catalog `engine` holds, and is driven by the check serving."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.backends.base import Backend, importing
from tasks.backends.collectives import RankGroup
from tasks.backends.engine_ranks import RankedEngine
from tasks.catalogs.base import CatalogError
from tasks.catalogs.engine.catalog import DECODERS
from tasks.catalogs.user import load_kernels
from tasks.checks import engine_relations, serving
from tasks.model import Broken, Form, Program, RuntimeInfo, Unavailable, Unsupported, errors
from tasks.model.engine import Engine
from tasks.packages import ONNX
from tasks.variables import count_compute_threads

#: The decoder of an endpoint that serves a model of which nobody has the weights.
UNKNOWN = "unknown"


class LoadedEngine:
    """A session whose steps are all requests of a form, answered in the usual way."""

    def __init__(self, backend: EngineBackend, form: Form) -> None:
        self.engine, self.kept = backend.make_engine(), backend.kept
        self._backend, self._form = backend, form

    def start(self) -> None:
        if not serving.is_of_sampler(self._form):  # which takes logits, and no model
            self.load(compiled=False)

    def load(self, compiled: bool, ranks: int = 1) -> Engine:
        engine = self.engine if ranks == 1 else self._backend.spread(self.engine, ranks)
        engine.load(serving.read_served_model(self._form), compiled)
        return engine

    def step(self, inputs: Sequence[Any] | None = None) -> Sequence[Any]:
        if inputs is not None:
            raise Unsupported("an engine is given its requests by the form")
        return [engine_relations.read_logits_with_cache(self.engine, serving.read_engine_requests(self._form))]

    def state(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        pass


class EngineBackend(Backend):
    """Base of engines; a subclass has `make_engine`."""

    forms = ("engine",)
    checks: tuple[str, ...] = ("serving",)
    takes: tuple[str, ...] | None = ()

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.kept: dict[Any, np.ndarray] = {}
        self._group: RankGroup | None = None

    def make_engine(self) -> Engine:
        """The engine, with nothing loaded. Raises Unavailable."""
        raise NotImplementedError

    def spread(self, engine: Engine, ranks: int) -> Engine:
        """An engine that so many ranks compute together, with nothing loaded. Raises Unsupported."""
        name = getattr(engine, "rank_class", "")
        if not name:
            raise Unsupported("the engine runs in one rank: it has no rank_class (tasks.model.engine.SpreadEngine)")
        if self._group is None or len(self._group.connections) != ranks:
            self.close()
            self._group = RankGroup("gloo", "cpu", ranks, "", None)
        return RankedEngine(self._group, name)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def build(self, form: Form) -> Program:
        session = LoadedEngine(self, form)

        def run() -> Sequence[Any]:
            session.start()
            return session.step()

        return Program(run, self.device, session=lambda: session)


class OwnEngine(EngineBackend):
    """``class``: "file.py:Class" (from the config's folder) or "module:Class" of an engine in Python
    (`tasks.model.engine.Engine`); without it the plain one in torch."""

    vendor = "PyTorch"
    takes = ("class",)
    closed = True

    def probe(self) -> RuntimeInfo:
        with importing("torch"):
            import torch
        torch.set_num_threads(count_compute_threads())
        self._class = self._find_class(str(self.options.get("class", "tasks.engines.plain:PlainEngine")))
        return RuntimeInfo(f"torch {torch.__version__}", torch.backends.cpu.get_cpu_capability())

    def _find_class(self, name: str) -> Any:
        module, _, attribute = name.rpartition(":")
        try:
            if module.endswith(".py"):
                found = load_kernels.resolve_user_name(name, os.path.dirname(module))
            else:
                found = getattr(importlib.import_module(module), attribute)
        except CatalogError as error:
            raise Broken(f"backend {self.name}: class: {error}") from None
        except Exception as error:  # whatever its import raises
            said = errors.describe_error_with_place(error)
            hint = (
                '; give "file.py:Class" or "module:Class"' if isinstance(error, (ImportError, AttributeError)) else ""
            )
            raise Broken(f"backend {self.name}: class: {name!r} cannot be loaded: {said}{hint}") from None
        lacks = [
            x
            for x in ("load", "prefill", "batch", "decode", "fork", "crop", "evict", "free")
            if not callable(getattr(found, x, None))
        ]
        if lacks:
            raise Broken(f"backend {self.name}: class: {name} lacks {', '.join(lacks)} (tasks.model.engine.Engine)")
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
        if _is_engine_installed("transformers", "torch"):
            self.packages = ()

    def probe(self) -> RuntimeInfo:
        with importing("transformers"):
            import torch
            import transformers
        torch.set_num_threads(count_compute_threads())
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
        if _is_engine_installed("onnxruntime_genai", "transformers", "torch"):
            self.packages = ()

    def probe(self) -> RuntimeInfo:
        with importing("onnxruntime_genai"):
            import onnxruntime_genai
        return RuntimeInfo(f"onnxruntime-genai {onnxruntime_genai.__version__}", "CPU")

    def make_engine(self) -> Engine:
        from tasks.engines.onnxruntime_genai import GenAiEngine

        return GenAiEngine()


class PackagedEngine(EngineBackend):
    """An engine of a package that brings its own torch, and is used where it is installed: options are arguments of its
    class."""

    devices: tuple[str, ...] = ("cuda", "rocm")
    #: Of the package: how it is imported, and "module:Class" of the engine here.
    package, engine = "", ""

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.device_vendor = {"cuda": "nvidia", "rocm": "amd"}.get(device, "")

    def probe(self) -> RuntimeInfo:
        if importlib.util.find_spec(self.package) is None:
            raise Unavailable(
                f"{self.package} is not installed here; give the backend the interpreter of an environment that has it (python: PATH)"
            )
        with importing(self.package):
            found = importlib.import_module(self.package)
        return RuntimeInfo(f"{self.package} {getattr(found, '__version__', '')}".strip(), self.device)

    def make_engine(self) -> Any:
        if self._engine is None:
            module, _, attribute = self.engine.partition(":")
            made = getattr(importlib.import_module(module), attribute)
            self._engine = made(next(iter(DECODERS.values())), **self.options)
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        super().close()

    #: One for all cases: it loads a model in minutes, and knows which it has loaded.
    _engine: Any = None


class Vllm(PackagedEngine):
    vendor, package, engine = "vLLM", "vllm", "tasks.engines.vllm:VllmEngine"
    takes = ("tensor_parallel_size", "kv_cache_dtype", "quantization", "block_size")


class Sglang(PackagedEngine):
    vendor, package, engine = "SGLang", "sglang", "tasks.engines.sglang:SglangEngine"
    takes = ("tp_size", "kv_cache_dtype", "quantization", "attention_backend")


class TensorRtLlm(PackagedEngine):
    vendor, package, engine = "NVIDIA", "tensorrt_llm", "tasks.engines.tensorrt_llm:TensorRtLlmEngine"
    takes = ("tensor_parallel_size", "backend")
    devices = ("cuda",)


class LlamaCpp(EngineBackend):
    """Its library is built from source by the package llama-cpp-python, where it is installed; gguf writes its models.
    ``flash``: "on" for fused attention."""

    vendor = "ggml"
    takes = ("flash",)

    def probe(self) -> RuntimeInfo:
        lacks = [x for x in ("llama_cpp", "gguf") if importlib.util.find_spec(x) is None]
        if lacks:
            raise Unavailable(
                f"{' and '.join(lacks)} not installed here; pip install llama-cpp-python gguf (which builds llama.cpp), or give the backend the "
                "interpreter of an environment that has them (python: PATH)"
            )
        with importing("llama_cpp"):
            import llama_cpp
        return RuntimeInfo(f"llama-cpp-python {llama_cpp.__version__}", "CPU")

    def make_engine(self) -> Engine:
        from tasks.engines.llama_cpp import LlamaCppEngine

        return LlamaCppEngine(self.options.get("flash") in ("on", True))


class Endpoint(EngineBackend):
    """``endpoint``: the address of a server with OpenAI's completions, up to the version; ``model``: its name there,
    where it has several; ``decoder``: which of the catalog's it serves (llama unless said otherwise;
    `tasks.backends.checkpoint_of_decoder` writes it), "unknown" for a model of which nobody has the weights;
    ``logprobs``: of how many tokens it gives logarithms, 0 for all; ``timeout_s``: seconds for an answer, 60;
    ``key_variable``: the environment variable with its key."""

    vendor = "OpenAI's API"
    takes = ("endpoint", "model", "decoder", "logprobs", "timeout_s", "key_variable")

    def probe(self) -> RuntimeInfo:
        if not str(self.options.get("endpoint", "")).startswith(("http://", "https://")):
            raise Broken(f"backend {self.name}: options: endpoint is no address, such as http://localhost:8000/v1")
        decoder = str(self.options.get("decoder", "llama"))
        if decoder not in (*DECODERS, UNKNOWN):
            raise Broken(f"backend {self.name}: decoder: {decoder!r} is none of {', '.join((*DECODERS, UNKNOWN))}")
        try:
            engine = self.make_engine()
            name = str(self.options.get("model", "")) or engine.find_model()
        except (RuntimeError, Unsupported) as error:
            raise Unavailable(f"backend {self.name}: {error}") from None
        return RuntimeInfo(f"{name} at {self.options['endpoint']}", "endpoint")

    def make_engine(self) -> Any:
        from tasks.engines.endpoint import EndpointEngine

        said = self.options
        key = os.environ.get(str(said.get("key_variable", "")), "")
        decoder = DECODERS.get(str(said.get("decoder", "llama")))
        count, seconds = self.number("logprobs", 0), float(str(said.get("timeout_s", 60)))
        return EndpointEngine(str(said["endpoint"]), decoder, str(said.get("model", "")), count, seconds, key)


def _is_engine_installed(*packages: str) -> bool:
    """Whether the farm's own environment has packages, so that a backend needs none of its own."""
    return all(importlib.util.find_spec(x) is not None for x in packages)
