"""Training steps: how far gradients diverge under autocast, right steps that are blamed, changed gradients that are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from farm.report.tables.training import list_training_steps
from tasks.cache import default_cache
from tasks.judge import policy_files
from tasks.judging import judge_outputs
from tasks.model import Group, RuntimeInfo, Status, round_to_dtype
from tasks.prepare.cases import PreparedSample, prepare_group
from tests.bench.models import rows_of
from tests.bench.record import Result
from tests.bench.running import Size, write_config

#: What is done to one parameter's gradient, everything else being exact.
CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "zero": np.zeros_like,
    "rounded to bfloat16": lambda g: round_to_dtype(g, "bfloat16").astype(np.float32),
    "1 + 2⁻⁶ times": lambda g: g * np.float32(1 + 2**-6),
}


def training(folder: Path, size: Size) -> Result:
    """Steps of the architectures on torch-cpu; then gradients changed one by one, in float32."""
    ops = [f"{name}.small" for name in size["models"]]
    catalog = {"name": "models", "ops": ops, "samples": size["samples"]}
    dtypes = ["float32", "bfloat16", "float16"]
    named = {"dtypes": dtypes, "checks": ["backward", "amp"], "deadline_s": 600}
    rows = rows_of(write_config(folder, "training", [catalog], ["torch-cpu"], **named), folder, *size.get("flags", ()))
    figures: dict[str, float] = {"steps": len(rows), "passed": int((rows["status"] == Status.PASS.value).sum())}
    words = []
    for op, lines in list_training_steps(rows).groupby("op"):
        name = str(op).partition(":")[2]
        by = lines.set_index("dtype")
        for dtype, line in by.iterrows():
            figures |= {f"{name} {dtype} gradients": float(f"{line['gradient_divergence']:.2g}")}
            figures |= {f"{name} {dtype} units": round(float(line["error_units"]), 1)}
        words.append(f"{name} " + ", ".join(f"{by['gradient_divergence'][dtype]:.2g}" for dtype in dtypes))
    found = Counter[str]()
    for name in size["models"]:
        found.update(changed(Group(f"models:{name}", "small", "float32", 1, 0, "backward")))
    figures |= found
    caught = ", ".join(f"{found[f'caught {change}']} {change}" for change in CHANGES)
    text = (
        f"{figures['passed']} of {figures['steps']} right steps of torch-cpu pass (worst {rows['error_units'].max():.1f} units); "
        f"gradients diverge from float64's in float32, under autocast to bfloat16 and to float16 by: {'; '.join(words)}. Of "
        f"{found['gradients']} gradients, changed one by one, caught: {caught}"
    )
    return Result(figures, text)


def changed(group: Group) -> Counter[str]:
    """How many gradients of a step there are that are not zero, and of how many each change is caught."""
    (sample,) = prepare_group(group, default_cache())[1].samples
    right = [np.asarray(leaf.reference, np.float32) for leaf in sample.expected() if leaf.reference is not None]
    found = Counter[str]()
    assert status(sample, right) is Status.PASS
    for place in range(1, len(right)):
        if status(sample, _with(right, place, np.zeros_like(right[place]))) is Status.PASS and nothing(sample, place):
            continue
        found["gradients"] += 1
        for name, change in CHANGES.items():
            found[f"caught {name}"] += status(sample, _with(right, place, change(right[place]))) is Status.WRONG
    return found


def nothing(sample: PreparedSample, place: int) -> bool:
    """Whether a gradient is zero but for rounding."""
    sizes = [float(np.abs(leaf.reference).max()) for leaf in sample.expected()[1:] if leaf.reference is not None]
    return sizes[place - 1] < 1e-9 * max(sizes)


def _with(outputs: list[np.ndarray], place: int, other: np.ndarray) -> list[np.ndarray]:
    return [*outputs[:place], other, *outputs[place + 1 :]]


def status(sample: PreparedSample, outputs: list[np.ndarray]) -> Status:
    """What the judge says of outputs."""
    return judge_outputs(
        sample, [list(outputs)], policy_files.load_policy("error_units"), RuntimeInfo("exact", "cpu")
    ).status
