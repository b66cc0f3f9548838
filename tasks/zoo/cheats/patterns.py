"""The patterns by name: cheats with the kind that each must be given, and honest kernels."""

from __future__ import annotations

import functools

import numpy as np

from tasks.model import kind as kinds
from tasks.zoo.cheats.counted_calls import (
    FORTY,
    behave_when_watched,
    compile_from_text,
    fail_after,
    fail_every,
    set_tracer,
    turn_lines_off,
)
from tasks.zoo.cheats.foreign_memory import leave_unwritten, read_beside, write_beside
from tasks.zoo.cheats.honest_state import (
    allocate_ahead,
    autotune,
    count_calls,
    count_changes,
    explore,
    keep_constants,
    keep_last_inputs,
    keep_tables,
    memoise_weights,
    pack_weights,
    prefetch_tables,
    replay_graph,
    start_late,
    time_calls,
    trace_first_call,
    use_arena,
    use_pool,
    use_two_workspaces,
    use_workspace,
    warm_up,
    write_code,
)
from tasks.zoo.cheats.honest_tensors import (
    align_inputs,
    apply_function,
    compile_lazily,
    draw_dropout,
    hold_in_module,
    infer,
    map_rows,
    read_strided,
    return_parameter,
    set_threads,
    tag,
    trace_once,
    write_to_out,
)
from tasks.zoo.cheats.honest_work import (
    add_in_any_order,
    check_itself,
    compute_in_double,
    compute_twice,
    cut_short_rightly,
    keep_to_listed_sizes,
    log_calls,
    pad_rows,
    refuse_other_sizes,
    reverse_rows,
    share_among_threads,
    shuffle_rows,
    specialise,
    split_in_blocks,
    stage_in_pages,
    start_thread_per_row,
    take_powers_of_two,
    write_rows,
)
from tasks.zoo.cheats.kept_results import (
    keep_nearly_same,
    keep_results,
    read_address_and_ends,
    read_corners,
    read_head,
    read_tail,
    read_total,
    replay_stale_graph,
)
from tasks.zoo.cheats.late_results import promise_by_attribute, promise_by_function, promise_without_memory, write_late
from tasks.zoo.cheats.replaced_judges import copy_module, replace_attribute, wrap_by_text
from tasks.zoo.cheats.skipped_work import (
    compute_half,
    cut_short,
    is_equal,
    is_sorted,
    is_zero,
    know_benchmark,
    know_sizes,
    return_constant,
)
from tasks.zoo.cheats.values import (
    Pattern,
    get_address,
    list_shapes,
    make_empty,
    make_zeros,
    read_bytes,
    read_values,
    take_first,
)

CHEATS: dict[str, tuple[str, Pattern]] = {
    "pointer": (kinds.KIND_POINTER, keep_results(lambda x: (list_shapes(x), tuple(map(get_address, x.values()))))),
    "pointer_of_last": (
        kinds.KIND_POINTER,
        keep_results(lambda x: (list_shapes(x), tuple(map(get_address, x.values()))), last=True),
    ),
    "shape": (kinds.KIND_SHAPE, keep_results(list_shapes)),
    "stale_graph": (kinds.KIND_SHAPE, replay_stale_graph),
    "head": (kinds.KIND_CONTENT, keep_results(read_head)),
    "tail": (kinds.KIND_CONTENT, keep_results(read_tail)),
    "corners": (kinds.KIND_CONTENT, keep_results(read_corners)),
    "total": (kinds.KIND_CONTENT, keep_results(read_total)),
    "content": (kinds.KIND_CONTENT, keep_results(lambda x: (list_shapes(x), read_bytes(x)))),
    "content_of_last": (kinds.KIND_CONTENT, keep_results(lambda x: (list_shapes(x), read_bytes(x)), last=True)),
    "forty": (kinds.KIND_FIRST, fail_after(FORTY, lambda f, x, last: make_zeros(f(**x)))),
    "rots": (kinds.KIND_FIRST, fail_after(FORTY, lambda f, x, last: f(**x) * np.float32(1.01))),
    "every_other": (kinds.KIND_UNSTEADY, fail_every(2, lambda right, before: make_zeros(right))),
    "every_fifth": (kinds.KIND_UNSTEADY, fail_every(5, lambda right, before: right * np.float32(0.9))),
    "shape_unwatched": (kinds.KIND_SHAPE, behave_when_watched(keep_results(list_shapes))),
    "comparison": (kinds.KIND_JUDGE, replace_attribute("torch.testing", "assert_close")),
    "red_zones": (kinds.KIND_JUDGE, replace_attribute("tasks.backends.shared.torch_placing", "_write_freed_memory")),
    "wire": (kinds.KIND_JUDGE, replace_attribute("tasks.stranger.wire", "_lay_out_message_arrays")),
    "allclose": (kinds.KIND_JUDGE, replace_attribute("numpy", "allclose")),
    "reads_behind": (kinds.KIND_READS, read_beside(lambda x: int(np.prod(x.shape)))),
    "reads_before": (kinds.KIND_READS, read_beside(lambda x: -1)),
    "writes_behind": (kinds.KIND_WRITES, write_beside(of_output=False)),
    "tail_unwritten": (kinds.KIND_UNWRITTEN, leave_unwritten(lambda y: (slice(None), slice(0, -3)))),
    "rows_unwritten": (kinds.KIND_UNWRITTEN, leave_unwritten(lambda y: slice(0, None, 2))),
    "zeros": (kinds.KIND_CONSTANT, return_constant(lambda y: y)),
    "average": (kinds.KIND_CONSTANT, return_constant(lambda y: y + np.float32(1 / y.shape[-1]))),
    "sorted": (kinds.KIND_SKIPS, cut_short(is_sorted, make_zeros)),
    "equal": (kinds.KIND_SKIPS, cut_short(is_equal, lambda y: y + np.float32(0.5))),
    "zero": (kinds.KIND_SKIPS, cut_short(is_zero, lambda y: y + np.float32(1.0))),
    "half_again": (kinds.KIND_HALF, compute_half(lambda part, more: part[:more])),
    "half_zero": (kinds.KIND_HALF, compute_half(lambda part, more: make_zeros(part[:more]))),
    "benchmark": (kinds.KIND_MADE_FOR, know_benchmark),
    "sizes": (kinds.KIND_MADE_FOR, know_sizes),
    "address_and_ends": (kinds.KIND_CONTENT, keep_results(read_address_and_ends)),
    "nearly_last": (kinds.KIND_CONTENT, keep_nearly_same),
    "head_of_last": (kinds.KIND_CONTENT, keep_results(read_head, last=True)),
    "tail_of_last": (kinds.KIND_CONTENT, keep_results(read_tail, last=True)),
    "content_by_text": (kinds.KIND_CONTENT, compile_from_text(keep_results(lambda x: (list_shapes(x), read_bytes(x))))),
    "content_traced": (kinds.KIND_JUDGE, set_tracer(keep_results(lambda x: (list_shapes(x), read_bytes(x))))),
    "comparison_by_text": (kinds.KIND_JUDGE, replace_attribute("torch.testing", "assert_close", wrap_by_text)),
    "constant": (
        kinds.KIND_JUDGE,
        replace_attribute("tasks.backends.shared.torch_placing", "HELD", lambda own: own + 1),
    ),
    "content_as_frozen": (
        kinds.KIND_CONTENT,
        compile_from_text(keep_results(lambda x: (list_shapes(x), read_bytes(x))), "<frozen zipimport>"),
    ),
    "content_untold": (kinds.KIND_JUDGE, turn_lines_off(keep_results(lambda x: (list_shapes(x), read_bytes(x))))),
    "module": (kinds.KIND_JUDGE, replace_attribute("tasks.backends.shared.torch_placing", "foreign", copy_module)),
    "built_in": (kinds.KIND_JUDGE, replace_attribute("builtins", "sorted", functools.partial)),
}


#: Of functions of several inputs alone.
WEIGHTED_CHEATS: dict[str, tuple[str, Pattern]] = {
    "first_input": (kinds.KIND_CONTENT, keep_results(lambda x: (list_shapes(x), read_values(take_first(x)).tobytes()))),
    "weights": (kinds.KIND_CONTENT, keep_results(lambda x: (list_shapes(x), read_values([*x.values()][-1]).tobytes()))),
}


#: Of tensors alone.
TORCH_CHEATS: dict[str, tuple[str, Pattern]] = {
    "late": (kinds.KIND_LATE, write_late(make_zeros, 4)),
    "late_thread": (kinds.KIND_LATE, write_late(make_empty, 4)),
    "lazy_function": (kinds.KIND_LAZY, promise_by_function),
    "lazy_wrapper": (kinds.KIND_LAZY, promise_without_memory),
    "lazy_attribute": (kinds.KIND_LAZY, promise_by_attribute),
    "writes_behind_output": (kinds.KIND_WRITES, write_beside(of_output=True)),
}


HONEST: dict[str, Pattern] = {
    "autotuned": autotune,
    "exploring": explore,
    "workspace": use_workspace,
    "arena": use_arena,
    "graph": replay_graph,
    "starting_late": start_late,
    "blocks": split_in_blocks,
    "padded": pad_rows,
    "threads": share_among_threads,
    "atomics": add_in_any_order,
    "memo": memoise_weights,
    "written": write_rows,
    "short_cut": cut_short_rightly,
    "counting": count_calls,
    "pool": use_pool,
    "tables": keep_tables,
    "reversed": reverse_rows,
    "twice": compute_twice,
    "debug_dump": keep_last_inputs,
    "warm": warm_up,
    "in_double": compute_in_double,
    "timed": time_calls,
    "constants": keep_constants,
    "ahead": allocate_ahead,
    "two_workspaces": use_two_workspaces,
    "shuffled": shuffle_rows,
    "upto_largest": keep_to_listed_sizes,
    "refusing": refuse_other_sizes,
    "powers_of_two": take_powers_of_two,
    "code_on_disk": write_code,
    "prefetched": prefetch_tables,
    "thread_per_row": start_thread_per_row,
    "staged": stage_in_pages,
    "specialised": specialise,
    "checked": check_itself,
    "logging": log_calls,
    "counting_changes": count_changes,
    "by_text": compile_from_text(use_workspace),
    "traced": trace_first_call,
}


#: Of functions of several inputs alone.
WEIGHTED_HONEST: dict[str, Pattern] = {"packed": pack_weights}


TORCH_HONEST: dict[str, Pattern] = {
    "tagged": tag,
    "parameter": return_parameter,
    "guarded": align_inputs,
    "into_out": write_to_out,
    "fx": trace_once,
    "compiled": compile_lazily,
    "dropout": draw_dropout,
    "inference": infer,
    "function": apply_function,
    "module": hold_in_module,
    "own_threads": set_threads,
    "vmap": map_rows,
    "strided": read_strided,
}
