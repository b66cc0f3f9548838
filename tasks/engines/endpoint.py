"""An endpoint with the completions of OpenAI's API as an engine: what is served behind it is seen through the logarithms of probabilities."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.engines.answering import Answering
from tasks.model import Unsupported
from tasks.model.engine import Decoder, Sampling, ServedModel

#: How a served checkpoint's tokens are named: by number where a server is asked to (vLLM), else as
#: `checkpoint.save_tokenizer` has them.
_TOKEN = re.compile(r"\s*(?:token_id:|t)(\d+)\s*")
#: How a token of any vocabulary is named by number.
_NUMBERED = re.compile(r"token_id:(\d+)")
#: Prompts have tokens below this number, which every vocabulary has.
PROMPT_TOKENS = 128
#: Tokens of an unknown vocabulary that are told apart, and of how many of them logarithms are asked for.
WIDTH, FEW = 4096, 20
#: Answers of a server that has too much to do for now, and seconds before each further try where it names none.
BUSY, WAITS_S = (429, 503), (0.5, 1.0, 2.0)


class EndpointEngine(Answering):
    """A `tasks.model.engine.AnsweringEngine` that sends requests.

    address: up to the version ("http://host:8000/v1"); decoder: what is served there, with weights of the catalog's,
    None for a model that nobody knows, which is asked for its own answers alone; model: the server's name of it, "" for
    the only one that it has; logprobs: how many tokens' logarithms are asked for, 0 for all; key: sent as a bearer
    token. What the server does not do, it refuses with Unsupported; what goes wrong raises RuntimeError in a line that
    names the address.

    What is sent. Cached decoding: the prompt, then the prompt with one token more, and so on; the server may find the
    rest in its prefix cache. One pass: all tokens at once with ``echo``, which servers do not answer from a cache. A
    batch, in any order: several prompts in one request. Chunks, prefixes, crops and drafts: prompts that share a
    beginning with others, longer or shorter ones. Its own choice: one request a prompt for all tokens at temperature 0,
    which is the server's own loop, four requests a sample where other ways take 96. Drawing: completions of one token.
    """

    most = 128

    def __init__(
        self,
        address: str,
        decoder: Decoder | None,
        model: str = "",
        logprobs: int = 0,
        timeout_s: float = 60.0,
        key: str = "",
    ) -> None:
        super().__init__(WIDTH if decoder is None else decoder.vocabulary)
        logprobs = logprobs or (FEW if decoder is None else 0)
        #: Of an unknown vocabulary: the number here of a token that is named otherwise there, and its number there,
        #: None where it has no other name than its text.
        self._numbers: dict[str, int] = {}
        self._theirs: dict[int, int | None] = {}
        self._address, self._model, self._logprobs = address.rstrip("/"), model, logprobs
        self._decoder, self._timeout_s, self._key = decoder, timeout_s, key
        self._echoes = True

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        if compiled:
            raise Unsupported("a server runs its model in one way")
        if self.weights_unknown:
            return
        if model.decoder != self._decoder:
            raise Unsupported("another decoder is served there (option decoder)")
        self._tokens, self._next = {}, 0

    @property
    def weights_unknown(self) -> bool:
        """Whether there is no float64 of what is served."""
        return self._decoder is None

    def find_model(self) -> str:
        """The name of the only model that the server has. Raises Unsupported where it has several."""
        names = [str(x["id"]) for x in self._ask("models", None)["data"]]
        if len(names) != 1:
            raise Unsupported(
                f"{self._address} serves {', '.join(names) or 'no model'}: name one with the option model"
            )
        return names[0]

    def predict(self, prompts: list[list[int]]) -> np.ndarray:
        said = self._complete(self._ask_logprobs(prompts if len(prompts) > 1 else prompts[0]))
        if len(said) != len(prompts):
            raise RuntimeError(f"{self._address} gives {len(said)} completions of {len(prompts)} prompts")
        return np.stack([self._row(x["top_logprobs"][-1]) for x in said])

    def echo(self, tokens: list[int]) -> np.ndarray:
        """NaN where the server echoes no prompt."""
        unknown = np.full((len(tokens) - 1, self.vocabulary), np.nan, np.float32)
        if not self._echoes:
            return unknown
        try:
            (said,) = self._complete(self._ask_logprobs(tokens) | {"echo": True})
        except Unsupported:
            said = {"top_logprobs": ()}
        self._echoes = len(said["top_logprobs"]) > len(tokens)
        return np.stack([self._row(x) for x in said["top_logprobs"][1 : len(tokens)]]) if self._echoes else unknown

    def answer(self, prompts: list[list[int]], count: int) -> list[tuple[list[int], np.ndarray]]:
        asked = self._ask_logprobs(prompts if len(prompts) > 1 else prompts[0])
        said = self._complete(asked | {"max_tokens": count, "temperature": 0.0})
        if len(said) != len(prompts):
            raise RuntimeError(f"{self._address} gives {len(said)} completions of {len(prompts)} prompts")
        return [
            ([self._number(name) for name in x["tokens"]], np.stack([self._row(y) for y in x["top_logprobs"]]))
            for x in said
        ]

    def complete(self, tokens: list[int], how: Sampling, length: int, count: int, seed: int) -> list[list[int]]:
        asked: dict[str, Any] = {"prompt": self._send(tokens), "max_tokens": length, "logprobs": 1, "ignore_eos": True}
        asked |= {"temperature": how.temperature, "top_p": how.top_p, "n": count, "seed": seed}
        more = {"top_k": (how.top_k, 0), "min_p": (how.min_p, 0.0)}
        asked |= {name: value for name, (value, usual) in more.items() if value != usual}
        return [[self._number(name) for name in x["tokens"]] for x in self._complete(asked)]

    # --- what is sent and what comes back -------------------------------------------------------------------------

    def _ask_logprobs(self, prompt: Any) -> dict[str, Any]:
        # At temperature 1 it does not matter whether a server shows logarithms from before or after it.
        many = self._logprobs or self.vocabulary
        sent = [self._send(x) for x in prompt] if isinstance(prompt[0], list) else self._send(prompt)
        return {"prompt": sent, "max_tokens": 1, "temperature": 1.0, "logprobs": many, "ignore_eos": True}

    def _row(self, said: Mapping[str, float] | None) -> np.ndarray:
        return self.make_row({self._number(name): value for name, value in (said or {}).items()})

    def _number(self, name: str) -> int:
        """The number of a token that a server names."""
        if self.weights_unknown:
            return self._number_unknown(str(name))
        found = _TOKEN.fullmatch(str(name))
        if found is None or int(found[1]) >= self.vocabulary:
            raise Unsupported(
                f"{self._address} names a token {name!r}, of which the served checkpoint has none (t0 to t{self.vocabulary - 1})"
            )
        return int(found[1])

    def _number_unknown(self, name: str) -> int:
        """The number here of a token of an unknown vocabulary: the server's own where a prompt may have it, else one
        behind these."""
        found = _NUMBERED.fullmatch(name)
        if found is not None and int(found[1]) < PROMPT_TOKENS:
            return int(found[1])
        number = self._numbers.setdefault(name, PROMPT_TOKENS + len(self._numbers))
        if number >= self.vocabulary:
            raise Unsupported(
                f"{self._address} names more than {self.vocabulary} tokens: ask for fewer (option logprobs)"
            )
        self._theirs[number] = None if found is None else int(found[1])
        return number

    def _send(self, tokens: list[int]) -> list[int]:
        """Tokens by the server's numbers."""
        sent = [self._theirs.get(x, x) for x in tokens]
        if None in sent:
            raise Unsupported(
                f"{self._address} names tokens by their text alone: what it has answered cannot be given back to it (vLLM: return_tokens_as_token_ids)"
            )
        return [int(x) for x in sent if x is not None]

    def _complete(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """The logprobs of each completion. Raises Unsupported where there are none, or the server does not take the
        request."""
        self._model = self._model or self.find_model()
        said = self._ask("completions", asked | {"model": self._model, "return_tokens_as_token_ids": True})
        choices = sorted(said.get("choices", ()), key=lambda x: int(x.get("index", 0)))
        found = [_read_logprobs(x.get("logprobs") or {}) for x in choices]
        if not found or not all(x.get("tokens") and x.get("top_logprobs") for x in found):
            raise Unsupported(
                f"{self._address} gives no logprobs: start the server so that completions have them (vLLM: --max-logprobs)"
            )
        return found

    def _ask(self, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        data = None if body is None else json.dumps(body).encode()
        for wait_s in (*WAITS_S, None):
            request = urllib.request.Request(f"{self._address}/{path}", data, headers)
            try:
                with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                    found = json.load(answer)
                if not isinstance(found, dict):
                    raise ValueError("a list")
                return found
            except urllib.error.HTTPError as error:
                said = " ".join(error.read(2000).decode(errors="replace").split())[:200]
                if error.code in BUSY and wait_s is not None:
                    time.sleep(_read_retry_seconds(error.headers.get("Retry-After"), wait_s, self._timeout_s))
                    continue
                if error.code == 400:
                    raise Unsupported(f"{self._address} refuses: {said} (HTTP 400)") from None
                tried = f" {len(WAITS_S) + 1} times" if error.code in BUSY else ""
                raise RuntimeError(
                    f"{self._address} answers{tried} HTTP {error.code}: {said or error.reason}"
                ) from None
            except TimeoutError:
                raise RuntimeError(
                    f"{self._address} did not answer in {self._timeout_s:g} s (option timeout_s)"
                ) from None
            except urllib.error.URLError as error:
                if isinstance(error.reason, TimeoutError):
                    raise RuntimeError(
                        f"{self._address} did not answer in {self._timeout_s:g} s (option timeout_s)"
                    ) from None
                raise RuntimeError(f"nobody answers at {self._address} ({error.reason}): is the server up?") from None
            except (OSError, ValueError) as error:
                raise RuntimeError(f"{self._address} answers no JSON of this API ({error})") from None
        raise AssertionError("the last try returns or raises")


def _read_logprobs(said: dict[str, Any]) -> dict[str, Any]:
    """The logprobs of a completion as OpenAI's completions have them (``tokens``, ``top_logprobs``): llama.cpp's server
    gives those of OpenAI's chats, each token with its number. A logprob that is null, as JSON has −inf, is −inf. Raises
    Unsupported for another form."""
    if not (steps := said.get("content")):
        return said
    name = lambda x: f"token_id:{x['id']}" if "id" in x else str(x["token"])  # noqa: E731
    sure = lambda x: -math.inf if x["logprob"] is None else float(x["logprob"])  # noqa: E731
    try:
        top = [{name(x): sure(x) for x in step.get("top_logprobs") or ()} for step in steps]
        return {"tokens": [name(step) for step in steps], "top_logprobs": top}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said_why = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise Unsupported(f"the server's logprobs are not of the form of OpenAI's chats: {said_why}") from None


def _read_retry_seconds(said: str | None, otherwise: float, most: float) -> float:
    """How long a server asks to wait."""
    try:
        return min(max(float(said or ""), 0.0), most)
    except ValueError:
        return otherwise
