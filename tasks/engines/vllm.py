"""vLLM as an engine: its offline `LLM` with all logarithms, its cache of prefixes on."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.engines.answering import Packaged
from tasks.model.engine import Sampling


class VllmEngine(Packaged):
    """A `tasks.model.engine.AnsweringEngine`. Options are further arguments of `vllm.LLM`."""

    def open_model(self, folder: str, dtype: str, compiled: bool) -> Any:
        from vllm import LLM

        said = {"max_logprobs": -1, "enable_prefix_caching": True, "seed": 0, "gpu_memory_utilization": 0.3}
        return LLM(model=folder, dtype=dtype, enforce_eager=not compiled, **(said | self._options))

    def predict(self, prompts: list[list[int]]) -> np.ndarray:
        found = self._ask(prompts, logprobs=self.vocabulary)
        return np.stack([self._read(x.outputs[0].logprobs[0]) for x in found])

    def answer(self, prompts: list[list[int]], count: int) -> list[tuple[list[int], np.ndarray]]:
        found = self._ask(prompts, logprobs=self.vocabulary, max_tokens=count, temperature=0.0)
        made = [x.outputs[0] for x in found]
        return [(list(x.token_ids), np.stack([self._read(y) for y in x.logprobs])) for x in made]

    def echo(self, tokens: list[int]) -> np.ndarray:
        (found,) = self._ask([tokens], prompt_logprobs=self.vocabulary)
        return np.stack([self._read(x) for x in found.prompt_logprobs[1:]])

    def complete(self, tokens: list[int], how: Sampling, length: int, count: int, seed: int) -> list[list[int]]:
        said = {"temperature": how.temperature, "top_k": how.top_k, "top_p": how.top_p, "min_p": how.min_p}
        (found,) = self._ask([tokens], max_tokens=length, n=count, seed=seed, **said)
        return [list(x.token_ids) for x in found.outputs]

    def _ask(self, prompts: list[list[int]], **how: Any) -> Any:
        from vllm import SamplingParams

        params = SamplingParams(**({"max_tokens": 1, "ignore_eos": True, "detokenize": False} | how))
        return self._engine.generate([{"prompt_token_ids": x} for x in prompts], params, use_tqdm=False)

    def _read(self, said: Any) -> np.ndarray:
        return self.make_row({token: one.logprob for token, one in said.items() if token < self.vocabulary})
