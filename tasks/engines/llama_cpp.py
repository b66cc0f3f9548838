"""llama.cpp as an engine: a served model as a GGUF file, and the sequences of one context."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.engines.checkpoint import digest_served_model, keep_engine_file
from tasks.model import Unsupported
from tasks.model.engine import LEFT, Decoder, Sampling, ServedModel

#: Sequences of a context at once, and what ggml calls the dtypes of weights and caches.
SEQUENCES = 16
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
#: Names of a block's weights, by those of Llama's checkpoints.
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


class LlamaCppEngine:
    """A `tasks.model.engine.Engine`. A batch is read as it is: nothing is padded. flash: whether attention is fused,
    which rounds to float16 on a CPU."""

    _context: Any = None

    def __init__(self, flash: bool = False) -> None:
        self._flash = flash

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        if compiled:
            raise Unsupported("llama.cpp has one way to run a model")
        import gguf
        import llama_cpp

        self.close()
        self._lib, self._decoder = llama_cpp, model.decoder
        _silence_llama_cpp()
        path = str(keep_gguf(model)).encode()
        self._model = llama_cpp.llama_model_load_from_file(path, llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path.decode()}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = SEQUENCES * model.decoder.positions
        params.n_seq_max, params.n_threads, params.n_threads_batch = SEQUENCES, 1, 1
        params.type_k = params.type_v = int(gguf.GGMLQuantizationType[TYPES[model.dtype]])
        params.kv_unified = True
        params.flash_attn_type = int(self._flash)
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context for {path.decode()}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._free = list(range(SEQUENCES))[::-1]
        self._lengths: dict[int, int] = {}
        #: What evicted sequences had, to be brought back.
        self._evicted: dict[int, Any] = {}

    def prefill(self, tokens: Sequence[int], after: int | None = None, cache: str = "") -> tuple[int, np.ndarray]:
        if cache:
            raise Unsupported("llama.cpp chooses its cache when a context is made")
        sequence = self._open() if after is None else after
        return sequence, self._read([(sequence, list(tokens))])[0]

    def batch(self, prompts: Sequence[Sequence[int]], side: str) -> tuple[list[int], np.ndarray]:
        if side != LEFT:
            raise Unsupported("llama.cpp pads no batches: padded_left asks for one")
        sequences = [self._open() for _ in prompts]
        rows = self._read([(x, list(prompt)) for x, prompt in zip(sequences, prompts)])
        return sequences, np.stack([x[-1] for x in rows])

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        return np.stack([x[-1] for x in self._read([(x, [int(token)]) for x, token in zip(sequences, tokens)])])

    def fork(self, sequence: int, length: int) -> int:
        self._restore(sequence)
        made = self._open()
        self._lib.llama_memory_seq_cp(self._memory, sequence, made, 0, length)
        self._lengths[made] = length
        return made

    def crop(self, sequence: int, length: int) -> None:
        self._restore(sequence)
        if not self._lib.llama_memory_seq_rm(self._memory, sequence, length, -1):
            raise Unsupported("llama.cpp forgets no tokens of this model's cache")
        self._lengths[sequence] = length

    def evict(self, sequence: int) -> None:
        size = self._lib.llama_state_seq_get_size(self._context, sequence)
        kept = (ctypes.c_uint8 * size)()
        self._lib.llama_state_seq_get_data(self._context, kept, size, sequence)
        self._evicted[sequence] = kept
        self._lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def free(self, sequence: int) -> None:
        self._lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._evicted.pop(sequence, None)
        del self._lengths[sequence]
        self._free.append(sequence)

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        raise Unsupported("llama.cpp's samplers are asked with logits of its own alone")

    def close(self) -> None:
        if self._context:
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = None

    def _open(self) -> int:
        if not self._free:
            raise Unsupported(f"a context has {SEQUENCES} sequences at once")
        sequence = self._free.pop()
        self._lengths[sequence] = 0
        return sequence

    def _restore(self, sequence: int) -> None:
        """Bring back what an evicted sequence had."""
        if (kept := self._evicted.pop(sequence, None)) is not None:
            self._lib.llama_state_seq_set_data(self._context, kept, len(kept), sequence)

    def _read(self, parts: list[tuple[int, list[int]]]) -> list[np.ndarray]:
        """Read further tokens of some sequences together. Returns the logits behind each token, float32, per
        sequence."""
        for sequence, _ in parts:
            self._restore(sequence)
        count = sum(len(tokens) for _, tokens in parts)
        batch = self._lib.llama_batch_init(count, 0, 1)
        try:
            places = ((x, k, token) for x, tokens in parts for k, token in enumerate(tokens))
            for at, (sequence, k, token) in enumerate(places):
                batch.token[at], batch.pos[at] = token, self._lengths[sequence] + k
                batch.n_seq_id[at], batch.seq_id[at][0], batch.logits[at] = 1, sequence, True
            batch.n_tokens = count
            if (code := self._lib.llama_decode(self._context, batch)) != 0:
                raise RuntimeError(f"llama_decode returns {code}")
        finally:
            self._lib.llama_batch_free(batch)
        size = self._decoder.vocabulary
        whole = np.ctypeslib.as_array(self._lib.llama_get_logits(self._context), (count, size)).copy()
        for sequence, tokens in parts:
            self._lengths[sequence] += len(tokens)
        return np.split(whole, np.cumsum([len(tokens) for _, tokens in parts])[:-1])


@functools.cache
def _silence_llama_cpp() -> Any:
    """Nobody reads what llama.cpp says while it loads. Returns what has to live as long as the library."""
    import llama_cpp

    heard = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(heard, None)
    return heard


def keep_gguf(model: ServedModel) -> Path:
    """The GGUF file of a served model, written once for its content; it has no tokenizer."""
    name = f"{digest_served_model(model, 'gguf')}.gguf"
    return keep_engine_file(name, lambda made, _: save_gguf(model, made))


def save_gguf(model: ServedModel, path: Path, tokens: Sequence[str] = ()) -> None:
    """Write a GGUF file. Weights of one dimension stay float32, as llama.cpp asks. tokens: what they are called, for a
    server; without, the file has no tokenizer. Raises Unsupported for a decoder that llama.cpp's Llama is not."""
    if model.decoder.window:
        raise Unsupported("llama.cpp's Llama has no window")
    import gguf

    path.parent.mkdir(parents=True, exist_ok=True)
    decoder, kind = model.decoder, gguf.GGMLQuantizationType[TYPES[model.dtype]]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(decoder.positions)
    writer.add_embedding_length(decoder.width)
    writer.add_block_count(decoder.layers)
    writer.add_feed_forward_length(decoder.inner)
    writer.add_head_count(decoder.heads)
    writer.add_head_count_kv(decoder.kv_heads)
    writer.add_layer_norm_rms_eps(decoder.epsilon)
    writer.add_rope_freq_base(decoder.rotary_base)
    writer.add_rope_dimension_count(decoder.head_width)
    writer.add_vocab_size(decoder.vocabulary)
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
        writer.add_token_merges(["t 0"])  # an empty list is not written, and nobody gives it text
        writer.add_add_bos_token(False)
    else:
        writer.add_tokenizer_model("no_vocab")
    for name, weight in model.weights.items():
        wide = _order_rotary(name, np.asarray(weight, np.float32), decoder)
        stored = gguf.GGMLQuantizationType.F32 if wide.ndim == 1 else kind
        writer.add_tensor(_name_gguf_tensor(name), gguf.quants.quantize(wide, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _name_gguf_tensor(name: str) -> str:
    """GGUF's name of a weight."""
    whole = name.removesuffix(".weight")
    if whole in NAMES:
        return f"{NAMES[whole]}.weight"
    _, _, layer, part = whole.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def _order_rotary(name: str, weight: np.ndarray, decoder: Decoder) -> np.ndarray:
    """Rows of queries and keys as llama.cpp's rotary positions take them: neighbours are turned, where Llama's
    checkpoints turn halves."""
    part = name.split(".")[-2]
    if part not in ("q_proj", "k_proj"):
        return weight
    return np.ascontiguousarray(
        weight.reshape(-1, 2, decoder.head_width // 2, decoder.width).swapaxes(1, 2).reshape(weight.shape)
    )
