"""The reports: where they stand, what kind of fault each is, and what the farm finds of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: What is found of a fault: in the default form of a run, only where the declaration or the config points at it, or not
#: at all.
ITSELF, POINTED, MISSED = "by itself", "when pointed at", "missed"


@dataclass(frozen=True)
class Report:
    """A public report and its instance.

    where: repository#number. kind: what is wrong, in words. op: the op with the fault as rows name it, twin: the sound
    one (the same op in another dtype where it has one). backend: where both run; sound: the status of the twin. first:
    what was found when the report was tried for the first time; found: what is found now. pointed: settings of the
    kernel (`UserOp`) that point at the fault. status: of the fault where it is found. note: why it was missed, or what
    runs where it is not a kernel.
    """

    where: str
    kind: str
    op: str
    twin: str
    first: str
    found: str
    backend: str = "torch-cpu"
    dtype: str = ""
    sound: str = "pass"
    twin_dtype: str = ""
    pointed: Mapping[str, Any] = field(default_factory=dict)
    status: str = "wrong"
    note: str = ""

    @property
    def link(self) -> str:
        name, number = self.where.split("#")
        return f"https://github.com/{name}/issues/{number}"


def _kernel(where: str, kind: str, name: str, first: str, found: str, **more: Any) -> Report:
    return Report(where, kind, f"user:{name}", f"user:{name.partition('--')[0]}", first, found, **more)


def _model(where: str, kind: str, name: str, twin: str, backend: str, first: str, found: str, **more: Any) -> Report:
    return Report(where, kind, f"models:{name}", f"models:{twin}", first, found, backend, **more)


IDS = {"dtype": "int64", "low": 0, "high": "classes"}

REPORTS = (
    # Runtimes as they can be installed
    Report(
        "pytorch/pytorch#193754",
        "floor_divide of 16 bits differs with the length of the tensor",
        "torch:floor_divide",
        "torch:floor_divide",
        MISSED,
        MISSED,
        dtype="bfloat16",
        twin_dtype="float64",
        note="eager torch 2.13; bodies of vectors round a - mod to bfloat16, as arithmetic in bfloat16 may",
    ),
    _kernel(
        "pytorch/pytorch#189045",
        "attention that returns its weights is NaN where all keys are padding",
        "padded_heads--returns_weights",
        ITSELF,
        ITSELF,
        note="eager torch 2.13",
    ),
    _model(
        "pytorch/pytorch#191449",
        "a view that is resized changes what it was a view of",
        "ResizedView",
        "ResizedCopy",
        "inductor-cpu",
        MISSED,
        ITSELF,
        sound="fallback",
        note="inductor 2.13; the reference died of the resize, and a graph break hid the wrong result",
    ),
    _model(
        "pytorch/pytorch#198101",
        "what was read of a tensor's bits is computed after the tensor was written",
        "BitsThenWrite",
        "CopyThenWrite",
        "inductor-cpu",
        ITSELF,
        ITSELF,
        note="inductor 2.13",
    ),
    _model(
        "pytorch/pytorch#185382",
        "steps of Adam in a loop with .item(): wrong from the third on",
        "Steps",
        "StepsAsTensors",
        "inductor-cpu",
        MISSED,
        ITSELF,
        note="inductor 2.13; the farm compiled .item() into the graph, where torch.compile breaks it",
    ),
    _model(
        "openvinotoolkit/openvino#37766",
        "Div of int64 beyond 32 bits",
        "div_int64",
        "div_int32",
        "openvino-cpu",
        POINTED,
        POINTED,
        note="OpenVINO 2026.4; found of values beyond 32 bits, which the model's author has to have",
    ),
    _model(
        "jax-ml/jax#39103",
        "a product of 32,769 rows and more, squared and summed",
        "lengths_of_40000",
        "lengths_of_400",
        "jax-cpu",
        POINTED,
        POINTED,
        note="JAX 0.10.2; found at this size, which the model's author has to have",
    ),
    _model(
        "tensorflow/tensorflow#118178",
        "the absolute value of a wrapped int8 product is left out",
        "wrapped_int8",
        "wrapped_int32",
        "tfxla-cpu",
        MISSED,
        ITSELF,
        note="TensorFlow 2.21, XLA; ONNX's Less had no counterpart",
    ),
    # Kernels: gradients
    _kernel(
        "fla-org/flash-linear-attention#1140",
        "gradient of the carried state where a chunk is shorter than the window",
        "conv_with_state--short_chunk",
        POINTED,
        POINTED,
        pointed={"dims": {"t": [1, 2, 16], "d": [3]}},
        note="sizes below the smallest that is declared",
    ),
    _kernel(
        "fla-org/flash-linear-attention#955",
        "weight gradient of packed sequences counted once per batch",
        "packed_conv--weight_per_batch",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "fla-org/flash-linear-attention#1142",
        "a term of the gate's gradient is lost in a partial chunk",
        "gated_sum--partial_chunk",
        POINTED,
        ITSELF,
        pointed={"dims": {"t": [64, 100]}},
        note="all sizes that are declared are multiples of the block, and fuzzed gradients had the smallest alone",
    ),
    _kernel(
        "linkedin/Liger-Kernel#968",
        "the gradient of a loss per row is scaled as that of the mean",
        "row_loss--gradient_of_first_row",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "flagos-ai/FlagGems#1082",
        "a backward pass reads the incoming gradient as if it were dense",
        "rms_norm_strides--dense_gradient",
        MISSED,
        ITSELF,
        note="gradients that come in were always contiguous",
    ),
    _kernel(
        "hao-ai-lab/FastVideo#1094",
        "NaN gradients from rows that are padding alone",
        "masked_attention_gradient--nan_of_masked_rows",
        POINTED,
        ITSELF,
        pointed={"dims": {"n": [8], "m": [1, 2]}},
        note="no row of a drawn mask was empty",
    ),
    # Kernels: sizes and layouts
    _kernel(
        "vllm-project/vllm#49087",
        "the last block is never launched where the width is no multiple of 256",
        "identity_experts--whole_blocks",
        POINTED,
        ITSELF,
        pointed={"dims": {"tokens": [3], "hidden": [255, 257]}},
        note="all sizes that are declared are multiples of the block",
    ),
    _kernel(
        "bledden/triton-msl#7",
        "the causal mask is dropped where tiles divide the length",
        "causal_tiles--no_mask_if_tiles_fit",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "thu-ml/SageAttention#386",
        "offsets in 32 bits wrap for rows that lie far apart",
        "strided_row_sums--offsets_in_32_bits",
        MISSED,
        MISSED,
        note="takes 2^31 elements of address",
    ),
    _kernel(
        "microsoft/onnxruntime#29020",
        "a single query is masked as if it were the last",
        "causal_single_query--as_if_it_were_the_last",
        ITSELF,
        ITSELF,
    ),
    # Kernels: structure of inputs
    _kernel(
        "Xilinx/brevitas#1591",
        "NaN for a query of which all keys are masked",
        "masked_attention--nan_of_masked_rows",
        POINTED,
        ITSELF,
        pointed={"dims": {"n": [16], "m": [1, 3]}},
        note="no row of a drawn mask was empty",
    ),
    _kernel(
        "vllm-project/vllm#46408",
        "the slot -1, which is none, is read as the last",
        "sum_of_experts--minus_one_is_last",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "vllm-project/vllm#50979",
        "more than k tokens stay where the k-th is tied",
        "keep_top--keeps_ties",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "harvard-edge/cs249r_book#1444",
        "a constant tensor is quantised to zero",
        "fake_quantize--constant_is_zero",
        POINTED,
        ITSELF,
        pointed={"inputs": {"x": {"shape": ["rows", "columns"], "data": [5.0]}}},
        note="no tensor was constant",
    ),
    # Kernels: arguments and formulas
    _kernel(
        "sgl-project/sglang#35434",
        "bidirectional attention is masked causally",
        "bidirectional--always_causal",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "pie-project/pie#603",
        "partial rotary pairs elements over the whole head",
        "partial_rotary--pairs_of_the_head",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "paiml/aprender#2199",
        "label smoothing gives the rest (1 - s)/C, not s/C",
        "label_smoothing--wrong_share",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "paiml/aprender#1606",
        "RMSNorm takes another model's epsilon",
        "rms_norm_eps--of_another_model",
        ITSELF,
        ITSELF,
        status="imprecise",
        note="10^-5 for 10^-6 beside values around 1",
    ),
    # Kernels: narrow numbers
    _kernel(
        "linkedin/Liger-Kernel#1462",
        "1 + weight is rounded to bfloat16",
        "offset_rms_norm--offset_in_bfloat16",
        MISSED,
        POINTED,
        pointed={"tolerances": {"bfloat16": {"rtol": 0.0, "atol": 0.0}}},
        note="one more rounding to bfloat16 stays below the limit of four units, but not within a promise to round once",
    ),
    _kernel(
        "vllm-project/vllm#42580",
        "the scale of float8 keys is dropped where queries are float8 too",
        "scaled_keys--no_scale_for_float8",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "pytorch/executorch#21773",
        "zero points in int32 are read as int64",
        "dequantize_per_channel--zero_points_as_int64",
        POINTED,
        ITSELF,
        pointed={
            "inputs": {
                "q": {"shape": ["channels", "n"], "dtype": "int8", "low": -128, "high": 128},
                "scale": {"shape": ["channels"], "low": 0.01, "high": 0.1},
                "zero": {"shape": ["channels"], "dtype": "int32", "low": -100, "high": 100},
            }
        },
        note="an input was given in the dtype that is declared alone",
    ),
    _kernel(
        "pytorch/executorch#20655",
        "a zero point is subtracted in int8",
        "dequantize_int8--subtracts_in_int8",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "tenstorrent/tt-metal#55542",
        "a long cumsum is added one after another in float32",
        "long_cumsum--one_after_another",
        ITSELF,
        ITSELF,
        status="imprecise",
    ),
    # Of the summer of 2026
    _kernel(
        "tensorflow/tensorflow#127690",
        "the gradient of a factor for each column is one sum for all",
        "silu_of_columns--one_sum_for_all_columns",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "flagos-ai/FlagGems#5212",
        "a backward pass reads beyond the one element of its incoming gradient",
        "mean_square--reads_beyond_the_gradient",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "ROCm/aiter#3641", "a split without keys has a weight", "splits_of_keys--empty_split_has_weight", ITSELF, ITSELF
    ),
    _kernel(
        "NVIDIA/recsys-examples#379",
        "a program that was compiled for two splits is taken for four",
        "splits_by_length--cache_by_whether_split",
        ITSELF,
        ITSELF,
    ),
    _kernel(
        "flashinfer-ai/flashinfer#4219",
        "state indices of 64 bits are loaded as 32",
        "states_of_slots--slots_of_32_bits",
        ITSELF,
        ITSELF,
    ),
)
