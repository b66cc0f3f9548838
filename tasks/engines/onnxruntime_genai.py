"""ONNX Runtime GenAI as an engine: a served model built by its own builder, without downloads, and its generators."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.engines.checkpoint import digest_served_model, keep_engine_file, save_checkpoint
from tasks.model import Unsupported
from tasks.model.engine import LEFT, Sampling, ServedModel

#: What its builder calls the dtypes that it computes in on a CPU.
PRECISIONS = {"float32": "fp32"}
#: The token that pads a batch; the library takes each one in a prompt for padding.
PADDING = 0


class GenAiEngine:
    """A `tasks.model.engine.Engine`. A sequence is a row of a generator, which has one batch from beginning to end."""

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        if compiled:
            raise Unsupported("ONNX Runtime GenAI has one way to run a model")
        if model.dtype not in PRECISIONS:
            raise Unsupported(f"ONNX Runtime GenAI computes in {', '.join(PRECISIONS)} on a CPU")
        if model.decoder.window:
            raise Unsupported("its builder makes no model of this family with a window for a CPU")
        import onnxruntime_genai as genai

        self._genai, self._positions, self._vocabulary = genai, model.decoder.positions, model.decoder.vocabulary
        self._model = genai.Model(str(find_built_genai_model(model)))
        #: Of each sequence: its generator (None while it is evicted) and its tokens; sequences of one batch share a
        #: generator.
        self._generators: dict[int, Any] = {}
        self._tokens: dict[int, list[int]] = {}
        self._next = 0

    def prefill(self, tokens: Sequence[int], after: int | None = None, cache: str = "") -> tuple[int, np.ndarray]:
        if cache:
            raise Unsupported("ONNX Runtime GenAI chooses its cache when the model is built")
        if after is None:
            after = self._open([[]])[0]
        generator = self._restore(after)
        generator.append_tokens(np.asarray([list(tokens)], np.int32))
        self._tokens[after] += [int(x) for x in tokens]
        return after, self._all_logits(generator, len(tokens))[0]

    def batch(self, prompts: Sequence[Sequence[int]], side: str) -> tuple[list[int], np.ndarray]:
        longest = max(len(x) for x in prompts)
        padded = np.full((len(prompts), longest), PADDING, np.int32)
        for row, prompt in zip(padded, prompts):
            row[longest - len(prompt) if side == LEFT else 0 :][: len(prompt)] = prompt
        sequences = self._open([list(x) for x in prompts])
        generator = self._generators[sequences[0]]
        generator.append_tokens(padded)
        logits = np.asarray(generator.get_logits(), np.float32)
        if logits.shape[1] == 1:  # of the last token alone, which the library finds itself
            return sequences, logits[:, 0]
        last = [longest - 1 if side == LEFT else len(x) - 1 for x in prompts]
        return sequences, logits[np.arange(len(prompts)), last]

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        generator = self._restore(sequences[0])
        if any(self._generators[x] is not generator for x in sequences):
            raise Unsupported("ONNX Runtime GenAI computes the sequences of a batch together")
        if len(tokens) == 1:
            generator.append_tokens(np.asarray([tokens], np.int32))
        else:  # a batch takes no further tokens but those that it chooses itself
            chosen = np.full((len(tokens), 1, self._vocabulary), -1e30, np.float32)
            chosen[np.arange(len(tokens)), 0, list(tokens)] = 0.0
            generator.set_logits(chosen[:, 0])
            generator.generate_next_token()
        for sequence, token in zip(sequences, tokens):
            self._tokens[sequence].append(int(token))
        return np.asarray(generator.get_logits(), np.float32)[:, -1]

    def fork(self, sequence: int, length: int) -> int:
        raise Unsupported("ONNX Runtime GenAI shares no cache between generators")

    def crop(self, sequence: int, length: int) -> None:
        self._restore(sequence).rewind_to(length)
        del self._tokens[sequence][length:]

    def evict(self, sequence: int) -> None:
        self._generators[sequence] = None

    def free(self, sequence: int) -> None:
        del self._generators[sequence], self._tokens[sequence]

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        raise Unsupported("ONNX Runtime GenAI samples from logits of its own alone")

    def _open(self, tokens: list[list[int]]) -> list[int]:
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(max_length=self._positions, batch_size=len(tokens))
        generator = self._genai.Generator(self._model, params)
        made = [self._next + 1 + k for k in range(len(tokens))]
        self._next += len(tokens)
        self._generators |= dict.fromkeys(made, generator)
        self._tokens |= dict(zip(made, tokens))
        return made

    def _restore(self, sequence: int) -> Any:
        """The generator of a sequence, its tokens read again where it was evicted."""
        if self._generators[sequence] is None:
            tokens = self._tokens.pop(sequence)
            (made,) = self._open([tokens])
            self._generators[sequence], self._tokens[sequence] = self._generators.pop(made), self._tokens.pop(made)
            self._generators[sequence].append_tokens(np.asarray([tokens], np.int32))
        return self._generators[sequence]

    @staticmethod
    def _all_logits(generator: Any, count: int) -> np.ndarray:
        """Logits (rows, tokens, vocabulary) behind the tokens that were read last: all of them where the graph gives
        them."""
        logits = np.asarray(generator.get_output("logits"), np.float32)
        return logits if logits.shape[1] == count else np.asarray(generator.get_logits(), np.float32)


def find_built_genai_model(model: ServedModel) -> Path:
    """The folder of a served model as the library's builder makes it; kept by its content. Raises RuntimeError in the
    builder's words."""
    import onnxruntime_genai

    def build(made: Path, beside: Path) -> None:
        given = beside / "given"
        save_checkpoint(model, given)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", given, "-o", made]
        command += ["-p", PRECISIONS[model.dtype], "-e", "cpu", "-c", beside]
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        done = subprocess.run([str(x) for x in command], capture_output=True, text=True, env={**os.environ, **offline})
        if done.returncode or not (made / "genai_config.json").exists():
            raise RuntimeError(
                f"the builder of ONNX Runtime GenAI failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
            )

    return keep_engine_file(f"genai-{digest_served_model(model, onnxruntime_genai.__version__)}", build)
