"""A served model as transformers has it: the configuration of its family and the network with its weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.model.engine import ServedModel


def make_network(model: ServedModel, attention: str = "sdpa") -> Any:
    """The network (LlamaForCausalLM, with a window MistralForCausalLM) in the model's dtype, for evaluation. attention: transformers' name
    of the implementation."""
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
