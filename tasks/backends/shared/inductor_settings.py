"""What of inductor may be set otherwise without changing what is computed: the same graph, other settings, the same answer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tasks.draw.choices import DrawnChoices
from tasks.model import Form

#: The option's value for settings that are drawn for each case.
DRAWN = "drawn"
#: By its name in torch/_inductor/config.py: values other than the default. None changes a rounding that is asked for,
#: waits for a measurement, or is for devices other than a CPU.
SETTINGS: Mapping[str, Sequence[Any]] = {
    "cpp.simdlen": (1, 256),
    "epilogue_fusion": (False,),
    "max_fusion_size": (1, 2),
    "cpp.max_horizontal_fusion_size": (1,),
    "loop_ordering_after_fusion": (False,),
    "aggressive_fusion": (True,),
    "permute_fusion": (True,),
    "combo_kernels": (True,),
    "inplace_buffers": (False,),
    "allow_buffer_reuse": (False,),
    "memory_planning": (True,),
    "pattern_matcher": (False,),
    "joint_graph_constant_folding": (False,),
    "constant_and_index_propagation": (False,),
    "split_reductions": (False,),
    "unroll_reductions_threshold": (1, 64),
    "realize_reads_threshold": (1, 100),
    "realize_opcount_threshold": (1, 100),
    "max_pointwise_cat_inputs": (1, 64),
    "comprehensive_padding": (False,),
    "layout_optimization": (False,),
    "reorder_for_locality": (False,),
    "conv_1x1_as_mm": (True,),
    "cpp.min_chunk_size": (1,),
    "cpp.enable_tiling_heuristics": (False,),
    "cpp.enable_loop_tail_vec": (False,),
    "cpp.no_redundant_loops": (False,),
}
#: Most settings that are drawn for a case.
MOST = 4


def check_inductor_settings(given: Any) -> str | dict[str, Any]:
    """The option "settings": DRAWN, or values by the names of inductor's own config. Raises ValueError."""
    if given is None:
        return {}
    if given == DRAWN:
        return DRAWN
    if not isinstance(given, Mapping):
        raise ValueError(f"settings: {given!r} is neither {DRAWN!r} nor a mapping such as {{epilogue_fusion: false}}")
    return {str(name): value for name, value in given.items()}


def draw_inductor_settings(form: Form) -> dict[str, Any]:
    """One to MOST settings, by what is computed alone: the same case has the same ones in every run."""
    digest = hashlib.blake2b(form.op.encode(), digest_size=8)
    digest.update(form.model or b"")
    for array in form.arrays:
        digest.update(memoryview(array).cast("B") if array.size and array.flags.c_contiguous else b"")
    choose = DrawnChoices.from_seed(int.from_bytes(digest.digest(), "little"))
    return {name: choose.of(SETTINGS[name]) for name in choose.some(tuple(SETTINGS), 1, MOST)}


def word_inductor_settings(settings: Mapping[str, Any]) -> Iterable[str]:
    """A setting a word, for the flags of a row."""
    return (f"{name}={value}" for name, value in settings.items())
