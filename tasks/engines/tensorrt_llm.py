"""TensorRT-LLM as an engine: its `LLM` with the logits of prompts and of what is generated, as logarithms."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.checks.engine_float64 import compute_decoder_logprobs
from tasks.engines.answering import Packaged
from tasks.model.engine import Sampling


class TensorRtLlmEngine(Packaged):
    """A `tasks.model.engine.AnsweringEngine`. Options are further arguments of `tensorrt_llm.LLM`."""

    def open_model(self, folder: str, dtype: str, compiled: bool) -> Any:
        from tensorrt_llm import LLM

        said = {"skip_tokenizer_init": True} | ({} if compiled else {"cuda_graph_config": None})
        return LLM(model=folder, dtype=dtype, **(said | self._options))

    def predict(self, prompts: list[list[int]]) -> np.ndarray:
        found = self._ask(prompts, return_generation_logits=True)
        return np.concatenate([self._read(x.outputs[0].generation_logits)[:1] for x in found])

    def answer(self, prompts: list[list[int]], count: int) -> list[tuple[list[int], np.ndarray]]:
        made = [x.outputs[0] for x in self._ask(prompts, max_tokens=count, top_k=1, return_generation_logits=True)]
        return [(list(x.token_ids), self._read(x.generation_logits)[: len(x.token_ids)]) for x in made]

    def echo(self, tokens: list[int]) -> np.ndarray:
        (found,) = self._ask([tokens], return_context_logits=True)
        rows = np.full((len(tokens) - 1, self.vocabulary), np.nan, np.float32)
        # Of a prompt whose beginning is in the cache, only what is computed anew has logits.
        said = self._read(found.context_logits)[:-1]
        rows[len(rows) - len(said) :] = said
        return rows

    def complete(self, tokens: list[int], how: Sampling, length: int, count: int, seed: int) -> list[list[int]]:
        said: dict[str, Any] = {"temperature": how.temperature, "top_p": how.top_p, "seed": seed}
        said |= {name: x for name, x in (("top_k", how.top_k), ("min_p", how.min_p)) if x}
        (found,) = self._ask([tokens], max_tokens=length, n=count, **said)
        return [list(x.token_ids) for x in found.outputs]

    def _ask(self, prompts: list[list[int]], **how: Any) -> Any:
        from tensorrt_llm import SamplingParams

        params = SamplingParams(**({"max_tokens": 1, "ignore_eos": True, "detokenize": False, "end_id": -1} | how))
        return self._engine.generate([{"prompt_token_ids": x} for x in prompts], params, use_tqdm=False)

    def _read(self, logits: Any) -> np.ndarray:
        rows = logits.float().cpu().numpy().reshape(-1, logits.shape[-1])
        return compute_decoder_logprobs(rows[:, : self.vocabulary]).astype(np.float32)
