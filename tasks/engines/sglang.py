"""SGLang as an engine: its offline `Engine` with all logarithms, its radix cache on."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.engines.answering import Packaged
from tasks.model.engine import Sampling


class SglangEngine(Packaged):
    """A `tasks.model.engine.AnsweringEngine`. Options are further arguments of `sglang.Engine`."""

    def open_model(self, folder: str, dtype: str, compiled: bool) -> Any:
        import sglang

        said = {"skip_tokenizer_init": True, "random_seed": 0, "mem_fraction_static": 0.3, "log_level": "error"}
        said |= {"disable_cuda_graph": not compiled}
        return sglang.Engine(model_path=folder, dtype=dtype, **(said | self._options))

    def predict(self, prompts: list[list[int]]) -> np.ndarray:
        found = self._ask(prompts, return_logprob=True, top_logprobs_num=self.vocabulary)
        return np.stack([self._read(x["meta_info"]["output_top_logprobs"][0]) for x in found])

    def answer(self, prompts: list[list[int]], count: int) -> list[tuple[list[int], np.ndarray]]:
        params = {"max_new_tokens": count, "temperature": 0.0}
        found = self._ask(prompts, params, return_logprob=True, top_logprobs_num=self.vocabulary)
        rows = [np.stack([self._read(y) for y in x["meta_info"]["output_top_logprobs"]]) for x in found]
        return [(list(x["output_ids"])[-len(y) :], y) for x, y in zip(found, rows)]

    def echo(self, tokens: list[int]) -> np.ndarray:
        said: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": self.vocabulary}
        (found,) = self._ask([tokens], **said)
        return np.stack([self._read(x) for x in found["meta_info"]["input_top_logprobs"][1:]])

    def complete(self, tokens: list[int], how: Sampling, length: int, count: int, seed: int) -> list[list[int]]:
        said: dict[str, Any] = {"temperature": how.temperature, "top_p": how.top_p, "min_p": how.min_p}
        said |= {"top_k": how.top_k} if how.top_k else {}
        found = self._ask([tokens], {"max_new_tokens": length, "n": count, **said})
        return [list(x["output_ids"])[-length:] for x in found]

    def _ask(self, prompts: list[list[int]], params: dict[str, Any] | None = None, **how: Any) -> Any:
        asked = {"max_new_tokens": 1, "temperature": 1.0, "ignore_eos": True} | (params or {})
        return self._engine.generate(input_ids=prompts, sampling_params=asked, **how)

    def _read(self, said: Any) -> np.ndarray:
        return self.make_row({token: value for value, token, *_ in said if token < self.vocabulary})
