"""A served model as transformers has it: the configuration of its family and the network with its weights."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tasks.cache import default_cache
from tasks.model.engine import ServedModel


def save_checkpoint(model: ServedModel, folder: Path) -> None:
    """Write a folder that transformers, vLLM, SGLang and converters of others load: weights, configuration,
    tokenizer."""
    make_transformers_network(model).save_pretrained(folder)
    save_tokenizer(folder, model.decoder.vocabulary)


def keep_checkpoint(model: ServedModel) -> Path:
    """The folder of a model's checkpoint in the cache, written once for its content."""
    return keep_engine_file(f"checkpoint-{digest_served_model(model)}", lambda made, _: save_checkpoint(model, made))


def keep_engine_file(name: str, make: Callable[[Path, Path], None]) -> Path:
    """What the cache has of this name, made where it has nothing. make: is given the path of the file or folder to
    write, and an empty folder for what it needs meanwhile. Raises what it raises, and keeps nothing then."""
    kept = default_cache() / "engines" / name
    if kept.exists():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        made, beside = Path(folder, "made"), Path(folder, "beside")
        beside.mkdir()
        make(made, beside)
        try:
            made.rename(kept)
        except OSError:
            if not kept.exists():  # else another process was first
                raise
    return kept


def digest_served_model(model: ServedModel, *more: str) -> str:
    """A name for a model and what else decides what is made of it."""
    digest = hashlib.sha256(f"{more} {model.decoder} {model.dtype}".encode())
    for name in sorted(model.weights):
        digest.update(model.weights[name].tobytes())
    return digest.hexdigest()[:24]


def list_token_names(vocabulary: int) -> list[str]:
    """What a served checkpoint's tokens are called."""
    return [f"t{k}" for k in range(vocabulary)]


def save_tokenizer(folder: Path, vocabulary: int) -> None:
    """A tokenizer whose tokens are t0, t1, …: builders copy it, and nobody gives it text."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {name: k for k, name in enumerate(list_token_names(vocabulary))}
    made = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="t0", bos_token="t1", eos_token="t2").save_pretrained(
        folder
    )


def make_transformers_network(model: ServedModel, attention: str = "sdpa") -> Any:
    """The network (LlamaForCausalLM, with a window MistralForCausalLM) in the model's dtype, for evaluation. attention:
    transformers' name of the implementation."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    decoder = model.decoder
    said: dict[str, Any] = {
        "vocab_size": decoder.vocabulary,
        "hidden_size": decoder.width,
        "intermediate_size": decoder.inner,
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.kv_heads,
        "max_position_embeddings": decoder.positions,
        "rms_norm_eps": decoder.epsilon,
        "rope_theta": decoder.rotary_base,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "attn_implementation": attention,
    }
    dtype = getattr(torch, model.dtype)
    if decoder.window:
        network: Any = MistralForCausalLM(MistralConfig(**said, sliding_window=decoder.window))
    else:
        network = LlamaForCausalLM(LlamaConfig(**said))
    weights = {name: torch.tensor(np.asarray(x, np.float32)).to(dtype) for name, x in model.weights.items()}
    network = network.to(dtype)
    network.load_state_dict(weights)
    return network.eval()
