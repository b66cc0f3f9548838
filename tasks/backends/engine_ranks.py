"""An engine of several ranks: each in a process of its own, asked the same at the same time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.backends.collectives import RankGroup
from tasks.backends.shared.ranks import find_named_object
from tasks.model import Misbehaviour, Unsupported
from tasks.model.engine import Decoder, Sampling, ServedModel
from tasks.model.kind import KIND_RELATION


class RankedEngine:
    """A `tasks.model.engine.Engine` whose calls all ranks of a group take. name: "module:Class" of a rank."""

    def __init__(self, group: RankGroup, name: str) -> None:
        self._group, self._name = group, name

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        opened = {"open": f"{__name__}:{open_engine_rank.__name__}", "arguments": [self._name], "plant": ""}
        self._group.ask(opened, {})
        self._decoder = model.decoder
        said = [model.decoder.values(), model.dtype, compiled]
        self._call("load", *said, weights=model.weights)

    def watch(self) -> None:
        self._call("watch")

    def prefill(self, tokens: Sequence[int], after: int | None = None, cache: str = "") -> tuple[int, np.ndarray]:
        sequence, logits = self._call("prefill", list(tokens), after, cache)
        return int(sequence.item()), logits

    def batch(self, prompts: Sequence[Sequence[int]], side: str) -> tuple[list[int], np.ndarray]:
        sequences, logits = self._call("batch", [list(x) for x in prompts], side)
        return [int(x) for x in sequences], logits

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        return self._call("decode", list(sequences), [int(x) for x in tokens])[0]

    def fork(self, sequence: int, length: int) -> int:
        return int(self._call("fork", sequence, length)[0].item())

    def crop(self, sequence: int, length: int) -> None:
        self._call("crop", sequence, length)

    def evict(self, sequence: int) -> None:
        self._call("evict", sequence)

    def free(self, sequence: int) -> None:
        self._call("free", sequence)

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        raise Unsupported("samplers are asked in one process")

    def _call(self, method: str, *args: Any, weights: Mapping[str, np.ndarray] | None = None) -> list[np.ndarray]:
        """What the first rank returns. Raises Misbehaviour where another one returns something else."""
        call = np.frombuffer(json.dumps([method, args]).encode(), np.uint8)
        arrays = {"call": call, **(weights or {})}
        first, *others = self._group.ask({"step": list(arrays)}, arrays)
        for rank, made in enumerate(others, 1):
            if [x.tobytes() for x in made] != [x.tobytes() for x in first]:
                said = f"rank {rank} returns something else from {method} than rank 0"
                raise Misbehaviour(KIND_RELATION, said + self._locate_layer(first[-1], made[-1]))
        return first

    def _locate_layer(self, a: np.ndarray, b: np.ndarray) -> str:
        """In words, where two ranks part: logits (tokens, vocabulary), behind which stands what is watched inside."""
        vocabulary, width = self._decoder.vocabulary, self._decoder.width
        if a.shape != b.shape or a.shape[-1] <= vocabulary:
            return ""
        off = np.flatnonzero((a[:, vocabulary:] != b[:, vocabulary:]).any(0))
        if not off.size:
            return ", behind all layers"
        layer, part = divmod(int(off[0]) // width, 2)
        return f", first in layer {layer}, {'behind its' if part else 'in what its'} heads{'' if part else ' give'}"


class EngineRank:
    """What a rank's process does with calls: a session of `tasks.backends.shared.ranks`."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def step(self, args: Sequence[Any], given: Mapping[str, Any]) -> list[Any]:
        import torch

        from tasks.arrays import torch_tree

        arrays = {name: torch_tree.tensor_to_numpy(x) for name, x in given.items()}
        method, values = json.loads(arrays.pop("call").tobytes())
        if method == "load":
            decoder, dtype, compiled = values
            values = [ServedModel(Decoder(**decoder), dtype, arrays), compiled]
        made = getattr(self._engine, method)(*values)
        parts = made if isinstance(made, tuple) else () if made is None else (made,)
        return [torch.from_numpy(np.ascontiguousarray(x)) for x in parts]


def open_engine_rank(name: str) -> EngineRank:
    """A rank's engine, made by its class."""
    return EngineRank(find_named_object(name)())
