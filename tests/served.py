"""A small server with OpenAI's completions around an engine in Python, for tests: it keeps the caches of prompts that it has read, and batches."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from tasks.checks.engine_float64 import compute_decoder_logprobs
from tasks.model.engine import LEFT, Engine, Sampling


@dataclass
class Manners:
    """How a server misbehaves. busy: its first requests that it refuses with 429; status: of every completion; most:
    logarithms that it gives; hot: by which the temperature that is asked for is multiplied; by_text: it names tokens by
    their text alone; as_chat: its logprobs are those of chats, as llama.cpp's server has them; asked: completions that
    it was asked for."""

    busy: int = 0
    status: int = 200
    silent: bool = False
    echoes: bool = True
    most: int = 10_000
    wait_s: float = 0.0
    hot: float = 1.0
    by_text: bool = False
    as_chat: bool = False
    asked: int = 0


class Served:
    """What a server does with requests. Prompts are kept; of the one that shares most with a later one, what it shares
    is kept for that."""

    def __init__(self, engine: Engine, manners: Manners) -> None:
        self.engine, self.manners, self.lock = engine, manners, threading.Lock()
        self._read: dict[tuple[int, ...], int] = {}
        #: Of one request, what is said of a row, which thousands of drawn tokens have in common.
        self._said: dict[bytes, dict[str, float]] = {}

    def complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        prompts = asked["prompt"] if isinstance(asked["prompt"][0], list) else [asked["prompt"]]
        self._said.clear()
        if len(prompts) > 1:
            sequences, last = self.engine.batch(prompts, LEFT)
            rows = [x[None] for x in last]
        elif asked.get("echo"):
            sequence, logits = self.engine.prefill(prompts[0])
            sequences, rows = [sequence], [logits]
        else:
            sequence, logits = self._reuse(prompts[0])
            sequences, rows = [sequence], [logits[-1:]]
        choices: list[dict[str, Any]] = []
        for prompt, sequence, logits in zip(prompts, sequences, rows):
            for token in self._draw(asked, logits[-1], asked.get("n", 1)):
                choices.append(self._choose(asked, prompt, sequence, logits, token) | {"index": len(choices)})
            if len(prompts) > 1 or asked.get("echo"):
                self.engine.free(sequence)
        if self.manners.silent:
            choices = [{"index": x["index"], "text": "", "logprobs": None} for x in choices]
        return {"object": "text_completion", "choices": choices}

    def _reuse(self, prompt: Sequence[int]) -> tuple[int, np.ndarray]:
        whole = tuple(prompt)
        base = max(reversed(self._read), key=lambda x: _count_shared(x, whole), default=())
        # The last token is read anew, for its logits.
        shared = min(_count_shared(base, whole), len(whole) - 1)
        if shared:
            sequence = self.engine.fork(self._read[base], len(base))
            self.engine.crop(sequence, shared)
            _, logits = self.engine.prefill(whole[shared:], after=sequence)
        else:
            sequence, logits = self.engine.prefill(whole)
        if whole in self._read:
            self.engine.free(self._read[whole])
        self._read[whole] = sequence
        while len(self._read) > 8:
            oldest = next(iter(self._read))
            self.engine.free(self._read.pop(oldest))
        return sequence, logits

    def _draw(self, asked: dict[str, Any], logits: np.ndarray, count: int) -> list[int]:
        temperature = asked["temperature"] * self.manners.hot
        if not temperature:
            return [int(logits.argmax())] * count
        how = Sampling(temperature, asked.get("top_k", 0), asked.get("top_p", 1.0), asked.get("min_p", 0.0))
        return [int(x) for x in self.engine.sample(logits.astype(np.float32), how, count, asked.get("seed", 0))]

    def _choose(
        self, asked: dict[str, Any], prompt: Sequence[int], sequence: int, logits: np.ndarray, first: int
    ) -> Any:
        tokens, rows = [*prompt, first], list(logits)
        if asked["max_tokens"] > 1:
            mine = self.engine.fork(sequence, len(prompt))
            while len(tokens) < len(prompt) + asked["max_tokens"]:
                rows.append(self.engine.decode([mine], tokens[-1:])[0])
                tokens += self._draw(asked, rows[-1], 1)
            self.engine.free(mine)
        shown = tokens if asked.get("echo") and self.manners.echoes else tokens[len(prompt) :]
        rows = rows if len(shown) > len(tokens) - len(prompt) else rows[-len(shown) :]
        said = [self._likeliest(x, min(asked["logprobs"], self.manners.most)) for x in rows]
        first_of_prompt = [None] if len(shown) == len(tokens) else []
        named = [self._name(x) for x in shown]
        if self.manners.as_chat:
            content = [self._show_as_chat(*both) for both in zip(shown, said)]
            return {"text": "", "logprobs": {"content": content}}
        return {"text": "", "logprobs": {"tokens": named, "top_logprobs": [*first_of_prompt, *said]}}

    @staticmethod
    def _show_as_chat(token: int, said: dict[str, float]) -> dict[str, Any]:
        top = [(int(name.removeprefix("token_id:")), x) for name, x in said.items()]
        return {
            "id": token,
            "token": f"t{token}",
            "top_logprobs": [{"id": k, "token": f"t{k}", "logprob": x} for k, x in top],
        }

    def _name(self, token: int) -> str:
        return f"word {token}" if self.manners.by_text else f"token_id:{token}"

    def _likeliest(self, logits: np.ndarray, count: int) -> dict[str, float]:
        key = logits.tobytes()
        if key not in self._said:
            row = compute_decoder_logprobs(logits)
            self._said[key] = {self._name(int(t)): float(row[t]) for t in np.argsort(-row)[:count]}
        return self._said[key]


def _count_shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens with which both begin."""
    return next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


@contextlib.contextmanager
def serve(engine: Engine, manners: Manners | None = None) -> Iterator[str]:
    """The address of a server around an engine that is loaded."""
    served = Served(engine, manners or Manners())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(200, {"data": [{"id": "farm"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            manners = served.manners
            manners.asked += 1
            time.sleep(manners.wait_s)
            if manners.busy:
                manners.busy -= 1
                self._answer(429, {"error": "slow down"})
            elif manners.status != 200:
                self._answer(manners.status, {"error": "CUDA error: an illegal memory access was encountered"})
            else:
                with served.lock:
                    self._answer(200, served.complete(asked))

        def _answer(self, status: int, said: Any) -> None:
            raw = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.send_header("Retry-After", "0.01")
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(raw)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
