"""Stand-ins for packages that serve decoders on devices: their public interface, around transformers on a CPU.

`vllm` and `sglang` have the names, defaults and refusals of vLLM 0.33.0 (`entrypoints/llm.py`, `sampling_params.py`,
`outputs.py`) and SGLang 0.5.23 (`srt/entrypoints/engine.py`, `srt/sampling/sampling_params.py`,
`srt/managers/tokenizer_manager.py`), as far as the engines here use them; an argument that these do not have is refused
as they refuse it. `tensorrt_llm` is written after the documentation of 1.2, without its source.
"""

from __future__ import annotations

import importlib.machinery
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.engines.sampling import adjust_probabilities
from tasks.model.engine import Sampling


class Served:
    """A checkpoint and what every package makes of it. rolled: each row of a batch is given another one's logits, as a
    planted fault."""

    def __init__(self, folder: str, dtype: str, rolled: bool) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._network = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self._rolled = rolled
        self.vocabulary: int = self._network.config.vocab_size

    def compute(self, prompts: Sequence[Sequence[int]]) -> list[Any]:
        """Logits (tokens, vocabulary) of each of some prompts, float32 tensors."""
        import torch

        with torch.no_grad():
            found = [self._network(torch.tensor([list(x)])).logits[0].float() for x in prompts]
        return [*found[1:], found[0]] if self._rolled and len(found) > 1 else found

    def choose(
        self, prompt: Sequence[int], logits: Any, how: Sampling, length: int, count: int, seed: int
    ) -> tuple[list[list[int]], Any]:
        """``count`` completions, and the logits (tokens, vocabulary) from which the tokens of one were chosen. logits:
        those behind the prompt."""
        import torch

        generator = np.random.default_rng(seed)
        rows = [logits[-1]]
        if how.temperature and length == 1:
            shares = adjust_probabilities(rows[0].numpy(), how)
            drawn = generator.choice(shares.size, count, p=shares / shares.sum())
            return [[int(x)] for x in drawn], rows[0][None]
        made = [int(rows[0].argmax())]
        while len(made) < length:
            rows.append(self.compute([[*prompt, *made]])[0][-1])
            made.append(int(rows[-1].argmax()))
        return [made] * count, torch.stack(rows)


def log_softmax(logits: Any) -> np.ndarray:
    import torch

    return torch.log_softmax(logits, -1).numpy()


# --- vLLM ---------------------------------------------------------------------------------------------------------


@dataclass
class SamplingParams:
    """vLLM's."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class Output:
    token_ids: list[int]
    logprobs: Any = None
    generation_logits: Any = None


@dataclass
class Request:
    outputs: list[Output]
    prompt_logprobs: Any = None
    context_logits: Any = None


def make_vllm(rolled: bool = False) -> types.ModuleType:
    """The package vllm."""

    class LLM:
        def __init__(
            self,
            model: str,
            *,
            tensor_parallel_size: int = 1,
            dtype: str = "auto",
            quantization: str | None = None,
            seed: int = 0,
            gpu_memory_utilization: float = 0.92,
            enforce_eager: bool = False,
            max_logprobs: int = 20,
            enable_prefix_caching: bool | None = None,
            kv_cache_dtype: str = "auto",
            block_size: int | None = None,
        ) -> None:
            self._served = Served(model, dtype, rolled)
            self._most = self._served.vocabulary if max_logprobs == -1 else max_logprobs

        def generate(
            self, prompts: Any, sampling_params: SamplingParams | None = None, *, use_tqdm: bool = True
        ) -> list[Request]:
            how = sampling_params or SamplingParams()
            for many in (how.logprobs or 0, how.prompt_logprobs or 0):
                if many > self._most:
                    raise ValueError(
                        f"Requested sample logprobs of {many}, which is greater than max allowed: {self._most}"
                    )
            given = [x["prompt_token_ids"] for x in prompts]
            return [self._answer(x, y, how) for x, y in zip(given, self._served.compute(given))]

        def _answer(self, prompt: list[int], logits: Any, how: SamplingParams) -> Request:
            asked = Sampling(how.temperature, how.top_k, how.top_p, how.min_p)
            rows = [self._likeliest(x) for x in log_softmax(logits)]
            made, seen = self._served.choose(prompt, logits, asked, how.max_tokens or 16, how.n, how.seed or 0)
            said = [self._likeliest(x) for x in log_softmax(seen)] if how.logprobs is not None else None
            return Request([Output(x, said) for x in made], [None, *rows[:-1]] if how.prompt_logprobs else None)

        def _likeliest(self, row: np.ndarray) -> dict[int, Logprob]:
            return {int(t): Logprob(float(row[t]), k + 1) for k, t in enumerate(np.argsort(-row))}

    return _make_module("vllm", "0.33.0", LLM=LLM, SamplingParams=SamplingParams)


# --- SGLang -------------------------------------------------------------------------------------------------------

#: Names of `ServerArgs` and of `SamplingParams` that the engine may give.
SERVER_ARGS = {
    *("model_path", "dtype", "skip_tokenizer_init", "random_seed", "mem_fraction_static", "log_level"),
    *("disable_cuda_graph", "tp_size", "kv_cache_dtype", "quantization", "attention_backend"),
}
SAMPLING = {"max_new_tokens", "temperature", "top_p", "top_k", "min_p", "n", "ignore_eos", "sampling_seed"}


def make_sglang(rolled: bool = False) -> types.ModuleType:
    """The package sglang."""

    class Engine:
        def __init__(self, **kwargs: Any) -> None:
            _refuse(kwargs, SERVER_ARGS)
            assert kwargs["skip_tokenizer_init"], "texts are left out here"
            self._served = Served(kwargs["model_path"], kwargs["dtype"], rolled)
            self._draws = 0

        def generate(
            self,
            prompt: Any = None,
            sampling_params: Mapping[str, Any] | None = None,
            input_ids: Any = None,
            *,
            return_logprob: bool = False,
            logprob_start_len: int | None = None,
            top_logprobs_num: int | None = None,
        ) -> list[dict[str, Any]]:
            how = dict(sampling_params or {})
            _refuse(how, SAMPLING)
            assert isinstance(input_ids[0], list), "one prompt alone comes back as a dict"
            found = []
            for tokens, logits in zip(input_ids, self._served.compute(input_ids)):
                self._draws += 1
                # All tokens by default.
                top_k = 0 if how.get("top_k", 1 << 30) == 1 << 30 else how["top_k"]
                asked = Sampling(how.get("temperature", 1.0), top_k, how.get("top_p", 1.0), how.get("min_p", 0.0))
                length, count = how.get("max_new_tokens", 128), how.get("n", 1)
                rows = [self._likeliest(x, top_logprobs_num or 0) for x in log_softmax(logits)]
                completions, seen = self._served.choose(tokens, logits, asked, length, count, self._draws)
                said: dict[str, Any] = {}
                if return_logprob:
                    begin = len(tokens) - 1 if logprob_start_len is None else logprob_start_len
                    before = [None, *rows[:-1]] if begin == 0 else []
                    after = [self._likeliest(x, top_logprobs_num or 0) for x in log_softmax(seen)]
                    said = {"input_top_logprobs": before, "output_top_logprobs": after}
                found += [{"output_ids": made, "meta_info": said} for made in completions]
            return found

        def shutdown(self) -> None:
            pass

        def _likeliest(self, row: np.ndarray, count: int) -> list[tuple[float, int, None]]:
            return [(float(row[t]), int(t), None) for t in np.argsort(-row)[:count]]

    return _make_module("sglang", "0.5.23", Engine=Engine)


# --- TensorRT-LLM -------------------------------------------------------------------------------------------------


@dataclass
class TensorRtSamplingParams:
    """TensorRT-LLM's; a top_k of 1 is its way to the likeliest token."""

    end_id: int | None = None
    max_tokens: int = 32
    n: int = 1
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    return_context_logits: bool = False
    return_generation_logits: bool = False


def make_tensorrt_llm(rolled: bool = False) -> types.ModuleType:
    """The package tensorrt_llm."""

    class LLM:
        def __init__(
            self,
            model: str,
            *,
            skip_tokenizer_init: bool = False,
            tensor_parallel_size: int = 1,
            dtype: str = "auto",
            cuda_graph_config: Any = None,
            backend: str | None = None,
        ) -> None:
            self._served = Served(model, dtype, rolled)

        def generate(
            self, inputs: Any, sampling_params: TensorRtSamplingParams | None = None, use_tqdm: bool = True
        ) -> list[Request]:
            how = sampling_params or TensorRtSamplingParams()
            # The likeliest token is asked for by a top_k of 1.
            warm = 0.0 if how.top_k == 1 else how.temperature or 1.0
            asked = Sampling(warm, how.top_k or 0, how.top_p or 1.0, how.min_p or 0.0)
            found = []
            for x, logits in zip(inputs, self._served.compute([x["prompt_token_ids"] for x in inputs])):
                made, seen = self._served.choose(
                    x["prompt_token_ids"], logits, asked, how.max_tokens, how.n, how.seed or 0
                )
                shown = seen if how.return_generation_logits else None
                outputs = [Output(tokens, generation_logits=shown) for tokens in made]
                found.append(Request(outputs, context_logits=logits if how.return_context_logits else None))
            return found

        def shutdown(self) -> None:
            pass

    return _make_module("tensorrt_llm", "1.2.1", LLM=LLM, SamplingParams=TensorRtSamplingParams)


def _refuse(given: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted({*given} - known):
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")


def _make_module(name: str, version: str, **objects: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    made.__dict__.update(objects, __version__=version)
    return made
