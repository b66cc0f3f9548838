"""Architectures that users know, built from transformers' configs (a U-Net from torch), with realistic seeded weights."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.catalogs.models import initial, networks
from tasks.model import Unavailable

#: Counts up whenever weights or example inputs change.
VERSION = "1"
#: Sizes in which every architecture is offered: as users know it; and narrow, of the same code, for training steps.
SIZES = ("full", "small")
#: How to get what the architectures are made of.
EXTRA = 'pip install "validation-farm[models]"'

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Architecture:
    """A network as transformers builds it from a config.

    module: of transformers, with the classes ``model`` and ``config``; settings: of the config, by size; inputs: names
    and kinds ("image", "ids", "mask", "frames") of what it is called with, shapes by size in `shapes`; outputs: fields
    of what it returns; loss: what a training step minimises (see `tasks.catalogs.models.training`); kinks: whether its
    gradient jumps, for it has ReLUs, maxima or a router.
    """

    about: str
    module: str
    model: str
    config: str
    settings: Mapping[str, Settings]
    inputs: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    loss: str
    kinks: bool = False


_TOKENS = {"input_ids": "ids"}
_STILL = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
_BERT_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_DECODER = "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads"


def _list_architecture_sizes(
    names: str, full: tuple[Any, ...] = (), small: tuple[Any, ...] = (), **both: Any
) -> Mapping[str, Settings]:
    """Settings by size: of ``names`` in order (in the full size the config's own defaults, where none are given), and
    ``both``."""
    return {size: {**dict(zip(names.split(), values)), **both} for size, values in zip(SIZES, (full, small))}


def _list_image_shapes(full: int, small: tuple[int, int]) -> Mapping[str, tuple[int, ...]]:
    """Shapes of square images: one as the network is known, some of another width."""
    count, width = small
    return {"full": (1, 3, full, full), "small": (count, 3, width, width)}


#: Every architecture by its name in the catalog. Dropout is off: a step is then the same everywhere.
ARCHITECTURES: dict[str, Architecture] = {
    "resnet50": Architecture(
        "ResNet-50, 224 × 224",
        "resnet",
        "ResNetForImageClassification",
        "ResNetConfig",
        _list_architecture_sizes("num_labels embedding_size hidden_sizes", (1000,), (10, 8, [32, 64, 128, 256])),
        {"pixel_values": "image"},
        _list_image_shapes(224, (4, 64)),
        ("logits",),
        "classes",
        kinks=True,
    ),
    "vit_b16": Architecture(
        "ViT-B/16, 224 × 224",
        "vit",
        "ViTForImageClassification",
        "ViTConfig",
        _list_architecture_sizes(
            "num_labels hidden_size num_hidden_layers num_attention_heads intermediate_size image_size patch_size",
            (1000,),
            (10, 64, 3, 4, 128, 32, 8),
            **_BERT_STILL,
        ),
        {"pixel_values": "image"},
        _list_image_shapes(224, (2, 32)),
        ("logits",),
        "classes",
    ),
    "efficientnet_b0": Architecture(
        "EfficientNet-B0, 224 × 224",
        "efficientnet",
        "EfficientNetForImageClassification",
        "EfficientNetConfig",
        _list_architecture_sizes(
            "num_labels image_size width_coefficient hidden_dim",
            (1000, 224, 1.0, 1280),
            (10, 64, 0.25, 320),
            depth_coefficient=1.0,
            dropout_rate=0.0,
            drop_connect_rate=0.0,
        ),
        {"pixel_values": "image"},
        _list_image_shapes(224, (4, 64)),
        ("logits",),
        "classes",
    ),
    "bert_base": Architecture(
        "BERT-base, 128 tokens, padded",
        "bert",
        "BertModel",
        "BertConfig",
        _list_architecture_sizes(
            "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings",
            (),
            (199, 64, 2, 4, 128, 40),
            **_BERT_STILL,
        ),
        {"input_ids": "ids", "attention_mask": "mask"},
        {"full": (1, 128), "small": (2, 24)},
        ("last_hidden_state", "pooler_output"),
        "features",
    ),
    "gpt2": Architecture(
        "GPT-2, 32 tokens",
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Config",
        _list_architecture_sizes(
            "vocab_size n_positions n_embd n_layer n_head", (), (199, 40, 64, 2, 4), use_cache=False, **_STILL
        ),
        _TOKENS,
        {"full": (1, 32), "small": (2, 24)},
        ("logits",),
        "tokens",
    ),
    "llama_gqa": Architecture(
        "Llama blocks with grouped-query attention, 4 × 512, 64 tokens",
        "llama",
        "LlamaForCausalLM",
        "LlamaConfig",
        _list_architecture_sizes(
            f"{_DECODER} intermediate_size", (4096, 512, 4, 8, 2, 1408), (199, 64, 2, 8, 2, 96), use_cache=False
        ),
        _TOKENS,
        {"full": (1, 64), "small": (2, 24)},
        ("logits",),
        "tokens",
    ),
    "mixtral_moe": Architecture(
        "Mixtral's router and 8 experts, 2 × 256, 32 tokens",
        "mixtral",
        "MixtralForCausalLM",
        "MixtralConfig",
        _list_architecture_sizes(
            f"{_DECODER} intermediate_size num_local_experts",
            (4096, 256, 2, 8, 2, 512, 8),
            (199, 48, 2, 4, 2, 64, 4),
            experts_implementation="batched_mm",
            use_cache=False,
        ),
        _TOKENS,
        {"full": (1, 32), "small": (2, 16)},
        ("logits",),
        "tokens",
        kinks=True,
    ),
    "mamba2": Architecture(
        "Mamba2, 4 × 256, 96 tokens in chunks of 64",
        "mamba2",
        "Mamba2ForCausalLM",
        "Mamba2Config",
        _list_architecture_sizes(
            "vocab_size hidden_size num_heads head_dim state_size num_hidden_layers chunk_size",
            (4096, 256, 8, 64, 64, 4, 64),
            (199, 32, 4, 16, 8, 2, 8),
            n_groups=2,
            use_cache=False,
        ),
        _TOKENS,
        {"full": (1, 96), "small": (2, 20)},
        ("logits",),
        "tokens",
    ),
    "whisper_encoder": Architecture(
        "Whisper's encoder (tiny), 30 s of 80 bands",
        "whisper",
        "WhisperEncoder",
        "WhisperConfig",
        _list_architecture_sizes(
            "d_model encoder_layers encoder_attention_heads encoder_ffn_dim num_mel_bins max_source_positions",
            (),
            (48, 2, 4, 96, 16, 32),
            dropout=0.0,
        ),
        {"input_features": "frames"},
        {"full": (1, 80, 3000), "small": (2, 16, 64)},
        ("last_hidden_state",),
        "features",
    ),
    "unet": Architecture(
        "U-Net of 4 levels, 128 × 128, 4 classes",
        "",
        "",
        "",
        _list_architecture_sizes("base classes", (32, 4), (6, 3)),
        {"image": "image"},
        _list_image_shapes(128, (2, 32)),
        ("logits",),
        "pixels",
        kinks=True,
    ),
}


def get_architectures_version() -> str:
    """What decides the weights: this table, the init, and the packages that lay the networks out."""
    parts = [f"{name} {_find_architectures_package(name)}" for name in ("transformers", "torch", "numpy")]
    own = hashlib.sha256(
        b"".join(Path(m).read_bytes() for m in (__file__, initial.__file__, networks.__file__))
    ).hexdigest()[:12]
    return f"{VERSION} {own} {' '.join(parts)}"


def _find_architectures_package(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def explain_missing_architecture(name: str) -> str:
    """Why an architecture cannot be built here, with the fix; "" where it can."""
    needed = [p for p in ("torch", "transformers") if p == "torch" or ARCHITECTURES[name].module]
    lacking = [p for p in needed if _find_architectures_package(p) == "none"]
    return f"models:{name} needs {' and '.join(lacking)}: {EXTRA}" if lacking else ""


def build_architecture(name: str, size: str = "full", seed: int = 0) -> Any:
    """The network as a torch module in evaluation mode, float32 on the CPU, called with its inputs in order.

    It returns a tuple of tensors, one per name of its ``output_names``; ``input_names`` are those of its inputs. The
    same bytes everywhere: weights come from NumPy's generator, running statistics are rounded. torch's random state is
    left as it was. Raises ValueError for an unknown name or size, Unavailable where a package is missing.
    """
    import torch

    one = _get_architecture(name, size)
    if why := explain_missing_architecture(name):
        raise Unavailable(why)
    with torch.random.fork_rng(devices=[]):
        network = _build_architecture_network(one, dict(one.settings[size]))
    module = networks.wrap_network_positional(network, tuple(one.inputs), one.outputs).eval()
    initial.initialise_network(module, f"{name}/{size}/{seed}")
    shape = one.shapes[size]
    # Statistics need many pixels or many images; smaller ones would have more of their pixels at a border.
    shape = (2 if size == "full" else 16, *shape[1:])
    batches = [draw_architecture_example(name, size, 1000 + k, shape) for k in range(2)]
    initial.calibrate_batch_norms(module, [list(batch.values()) for batch in batches])
    return module


def draw_architecture_example(
    name: str, size: str = "full", seed: int = 0, shape: tuple[int, ...] | None = None
) -> dict[str, np.ndarray]:
    """Seeded inputs of an architecture by name, in its order.

    Images and frames are float32 of N(0, 1), smooth over neighbours; ids int64, uniform; a mask int64 whose last rows
    end in padding. shape: of an input, if another than the size's.
    """
    one = _get_architecture(name, size)
    rng = np.random.default_rng([zlib.crc32(f"{name}/{size}".encode()), seed])
    shape = shape or one.shapes[size]
    vocabulary = int(one.settings[size].get("vocab_size", {"bert_base": 30522, "gpt2": 50257}.get(name, 2)))
    return {key: _DRAWN[kind](rng, shape, vocabulary) for key, kind in one.inputs.items()}


def _draw_smooth_image(rng: np.random.Generator, shape: tuple[int, ...], vocabulary: int) -> np.ndarray:
    x = rng.standard_normal(shape)
    for axis in range(2, len(shape)):
        x = (x + np.roll(x, 1, axis) + np.roll(x, -1, axis)) / 3**0.5
    return np.asarray(x, np.float32)


def _draw_token_mask(rng: np.random.Generator, shape: tuple[int, ...], vocabulary: int) -> np.ndarray:
    mask = np.ones(shape, np.int64)
    mask[-1, -(shape[1] // 4) :] = 0
    return mask


_DRAWN: dict[str, Callable[[np.random.Generator, tuple[int, ...], int], np.ndarray]] = {
    "image": _draw_smooth_image,
    "frames": _draw_smooth_image,
    # Not 0, BERT's padding: by convention its embedding has no gradient, which finite differences deny.
    "ids": lambda rng, shape, vocabulary: rng.integers(1, vocabulary, shape),
    "mask": _draw_token_mask,
}


def _get_architecture(name: str, size: str) -> Architecture:
    if name not in ARCHITECTURES or size not in SIZES:
        raise ValueError(f"models: no architecture {name!r} in size {size!r}; there are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def _build_architecture_network(one: Architecture, settings: dict[str, Any]) -> Any:
    if not one.module:
        return networks.build_unet(**settings)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is looked up: kernels and weights are here
    experts = settings.pop("experts_implementation", None)
    importlib.import_module("transformers").logging.set_verbosity_error()
    package = importlib.import_module(f"transformers.models.{one.module}.modeling_{one.module}")
    configs = importlib.import_module(f"transformers.models.{one.module}.configuration_{one.module}")
    config = getattr(configs, one.config)(**settings)
    if experts:
        config._experts_implementation = experts
    return getattr(package, one.model)(config)
