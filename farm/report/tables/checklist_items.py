"""The items of vendors' checklists: what is claimed, and which rows prove it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks.model import Status

#: Where an op was asked to run, it must: what the CPU took instead, or nobody did, is no proof of a device.
DISPATCHED = (Status.FALLBACK.value,)
IMPLEMENTED = (Status.FALLBACK.value, Status.UNSUPPORTED.value)


@dataclass(frozen=True)
class ChecklistItem:
    """One item: what is claimed, and the rows that prove it.

    check, ops, dtypes, flags: of the rows, the latter three by glob over the op's label, the dtype, and each word of
    the column ``flags`` (one must match). backends: globs over a backend's name or what it is like, instead of the
    list's; against: statuses that fail the item besides those that fail a row; each: a column and the globs of which
    every one must be met by a proved cell. whole: the catalog all of whose ops it speaks of. never: why no row of the
    farm can prove it.
    """

    words: str
    ops: tuple[str, ...] = ("*",)
    check: str = "forward"
    dtypes: tuple[str, ...] = ("*",)
    flags: str = "*"
    backends: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    each: tuple[str, tuple[str, ...]] = ("", ())
    whole: str = ""
    never: str = ""


@dataclass(frozen=True)
class Checklist:
    """A list of items. title; backends: globs of those it is about, "!" before what is left out; config: what asks
    it."""

    title: str
    backends: tuple[str, ...]
    items: tuple[ChecklistItem, ...]
    config: str = "configs/checklist.yaml"


_PRODUCTS = (
    *("torch:mm", "torch:bmm", "torch:addmm*", "torch:addbmm*", "torch:baddbmm*", "torch:matmul", "torch:__rmatmul__"),
    *("torch:nn.functional.linear", "critical:matmul", "critical:bmm", "critical:addmm", "critical:linear"),
)
_CONVOLUTIONS = ("torch:nn.functional.conv*", "critical:conv*")
_ATTENTION = ("torch:nn.functional.scaled_dot_product_attention*", "torch:*flash_attention*", "critical:scaled_dot_*")
_HALVES = ("float16", "bfloat16")


def _make_autocast_item(backend: str) -> ChecklistItem:
    return ChecklistItem(
        "Mixed precision (torch.amp) works",
        check="amp",
        backends=(backend,),
        each=("flags", tuple(f"autocast={dtype}" for dtype in _HALVES)),
    )


_ROCM = (
    ChecklistItem(
        "All ATen ops dispatch to HIP kernels correctly",
        ("torch:*",),
        backends=("torch-rocm",),
        against=DISPATCHED,
        whole="torch",
    ),
    ChecklistItem(
        "torch.cuda.* APIs work on ROCm",
        never="no check calls streams, events or memory statistics by name; each cell exercises device and synchronize",
    ),
    ChecklistItem(
        "torch.compile with the Triton backend generates valid GPU code",
        flags="kernels=[1-9]*",
        backends=("inductor-rocm",),
    ),
    _make_autocast_item("torch-rocm"),
    ChecklistItem("Autograd's backward pass matches the reference", check="backward", backends=("torch-rocm",)),
    ChecklistItem("torch.distributed works with the RCCL backend", ("collective:*",), backends=("rccl-rocm",)),
)

_CUDA = (
    ChecklistItem(
        "cuDNN dispatches the fastest algorithm for each convolution",
        never="no check times cuDNN's algorithms against one another",
    ),
    ChecklistItem("Convolutions are right, whichever algorithm is dispatched", _CONVOLUTIONS, backends=("torch-cuda",)),
    ChecklistItem(
        "cuBLAS GEMM is right in all dtypes", _PRODUCTS, backends=("torch-cuda",), each=("dtype", ("float32", *_HALVES))
    ),
    ChecklistItem(
        "FlashAttention is numerically right (scaled_dot_product_attention in its dtypes)",
        _ATTENTION,
        dtypes=_HALVES,
        backends=("torch-cuda",),
        each=("dtype", _HALVES),
    ),
    ChecklistItem(
        "TensorFloat32 is respected: off computes in float32, on within TF32",
        (*_PRODUCTS, *_CONVOLUTIONS),
        dtypes=("float32",),
        backends=("torch-cuda",),
        each=("flags", ("tf32=off", "tf32=on")),
    ),
    ChecklistItem("CUDA graphs capture and replay correctly", check="graph", backends=("torch-cuda",)),
    ChecklistItem(
        "The same through ONNX Runtime",
        check="replay",
        flags="enable_cuda_graph=1",
        backends=("ort-cuda", "ort-tensorrt"),
    ),
    ChecklistItem("torch.compile generates valid GPU code", flags="kernels=[1-9]*", backends=("inductor-cuda",)),
    ChecklistItem("Autograd's backward pass matches the reference", check="backward", backends=("torch-cuda",)),
    _make_autocast_item("torch-cuda"),
)

_ONNX = (
    ChecklistItem(
        "All ONNX ops are implemented in the execution provider", ("onnx:*",), against=IMPLEMENTED, whole="onnx"
    ),
    ChecklistItem("Opsets 15 to 19", check="opsets", each=("flags", tuple(f"opset={n}" for n in range(15, 20)))),
    ChecklistItem("Dynamic shapes are handled correctly", check="shapes"),
    ChecklistItem(
        "Quantised models (INT8, FP16)", check="quantized", each=("flags", ("quantized=int8", "quantized=float16"))
    ),
    ChecklistItem("Graph optimisation passes don't change semantics", check="levels"),
)

_COMMON = tuple(f"critical:{name}" for name in ("matmul", "softmax", "relu", "gelu", "layer_norm"))
_TENSORFLOW = (
    ChecklistItem("tf.matmul, softmax, relu, gelu and layer normalisation are right", _COMMON, each=("op", _COMMON)),
    ChecklistItem("The same in float16", _COMMON, dtypes=("float16",), each=("op", _COMMON)),
    ChecklistItem("Graph optimisation and XLA keep the results", _COMMON, backends=("tfxla-*",), each=("op", _COMMON)),
    ChecklistItem("Ops run on the requested device", against=DISPATCHED),
    ChecklistItem("A saved and reloaded SavedModel gives the same results", check="roundtrip"),
)

#: How ranks may share a training run, one process a rank.
_SPREAD = ("ddp-*", "fsdp-*", "tensor-*", "sequence-*", "pipeline-*", "expert-*", "launched-*")


def _make_train_item(words: str, ops: tuple[str, ...] = ("training:*",), **more: Any) -> ChecklistItem:
    return ChecklistItem(words, ops, check="train", **more)


_TRAINING = (
    _make_train_item("Every step of a training run is float64's within the floor of float32", dtypes=("float32",)),
    _make_train_item("The same under autocast", dtypes=_HALVES, each=("dtype", _HALVES)),
    _make_train_item("Decoders train: tied embeddings, grouped queries", ("training:gpt", "training:llama")),
    _make_train_item("Routed experts train", ("training:experts",)),
    _make_train_item("Convolutions and batch norms train", ("training:convolution", "training:diffusion")),
    _make_train_item("Fused and foreach optimisers are right", ("training:gpt", "*foreach", "*fused", "*sgd")),
    _make_train_item("Activations may be computed again in the backward pass", ("*checkpoint",)),
    _make_train_item("Gradients may be accumulated over micro-batches", ("*micro",)),
    _make_train_item("What is compiled trains as well", backends=("inductor-*", "optax-*")),
    _make_train_item("Several ranks train as one process does", backends=_SPREAD),
)

_SERVING = (
    ChecklistItem("The logits are float64's", ("engine:float64",), check="serving"),
    ChecklistItem("The tokens that it chooses are float64's, but for near-ties", ("engine:greedy",), check="serving"),
    ChecklistItem(
        "Batches give what each prompt alone gives, in any order",
        ("engine:padded_*", "engine:permuted"),
        check="serving",
        each=("op", ("engine:padded_*", "engine:permuted")),
    ),
    ChecklistItem(
        "A cache gives what one pass over all tokens gives",
        ("engine:recomputed", "engine:static_cache", "engine:paged_cache", "engine:int8_cache"),
        check="serving",
        each=("op", ("engine:recomputed",)),
    ),
    ChecklistItem(
        "Prompts in chunks and behind shared prefixes are those read at once",
        ("engine:chunked", "engine:prefix_reused"),
        check="serving",
        each=("op", ("engine:chunked", "engine:prefix_reused")),
    ),
    ChecklistItem(
        "Drafts that are forgotten leave nothing behind", ("engine:cropped", "engine:speculative"), check="serving"
    ),
    ChecklistItem("Sequences that were preempted come back whole", ("engine:preempted",), check="serving"),
    ChecklistItem("The same requests give the same again", ("engine:again",), check="serving"),
    ChecklistItem(
        "Compiled, and over several ranks, it computes the same",
        ("engine:compiled", "engine:tensor_parallel"),
        check="serving",
        each=("op", ("engine:compiled", "engine:tensor_parallel")),
    ),
    ChecklistItem(
        "What it answers hangs on its prompt alone, by its own answers", ("engine:own_answers",), check="serving"
    ),
    ChecklistItem("Tokens are drawn from the distribution that is asked for", ("engine:sampling",), check="serving"),
    ChecklistItem("In 16 bits as well", ("engine:*",), check="serving", dtypes=_HALVES),
)

CHECKLISTS = {
    "cuda": Checklist("PyTorch on CUDA (NVIDIA)", ("torch-cuda", "inductor-cuda"), _CUDA),
    "onnx": Checklist("ONNX Runtime with a provider of one's own", ("ort-*", "!ort-cpu"), _ONNX),
    "serving": Checklist(
        "May this stack serve?",
        (
            *("engine-*", "endpoint-*", "transformers-*", "genai-*", "llamacpp-*"),
            *("vllm-*", "sglang-*", "tensorrtllm-*"),
        ),
        _SERVING,
        "configs/serving.yaml",
    ),
    "rocm": Checklist("PyTorch on ROCm (AMD)", ("torch-rocm", "inductor-rocm"), _ROCM),
    "training": Checklist("May this stack train?", ("torch-*", "inductor-*", "optax-*", *_SPREAD), _TRAINING),
    "tensorflow": Checklist("TensorFlow", ("tensorflow-*", "tfxla-*"), _TENSORFLOW),
}
