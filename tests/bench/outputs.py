"""What must never pass for a model's output, on every model of the catalog: beside what its healthy runtimes return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.cache import default_cache
from tasks.judge import policy_files
from tasks.judging import Judgement, judge_outputs
from tasks.model import Group, Leaf, RuntimeInfo, Status, Unsupported, is_inexact_dtype, round_to_dtype
from tasks.prepare.cases import PreparedSample, prepare_group
from tests.bench.record import Result
from tests.bench.running import Size

Outputs = list[np.ndarray]
#: What stands for the outputs of a backend, given those of the sample and of its neighbour.
PLANTED: Mapping[str, Callable[[Outputs, Outputs], Outputs]] = {
    "zeros": lambda own, other: [np.zeros_like(y) for y in own],
    "another sample's": lambda own, other: other,
    "rounded to bfloat16": lambda own, other: [
        round_to_dtype(y.astype(np.float64), "bfloat16").astype(y.dtype) if is_inexact_dtype(y.dtype.name) else y
        for y in own
    ],
}
SAMPLES = 2


@dataclass(frozen=True)
class Spoilt(PreparedSample):
    """A sample whose noise floor is NaN in one place."""

    def expected(self, of_products: bool = False) -> list[Leaf]:
        first, *others = super().expected()
        noise = np.zeros(first.shape) if first.noise is None else first.noise.copy()
        noise.reshape(-1)[-1] = np.nan
        return [replace(first, noise=noise), *others]


@dataclass
class Tally:
    """Verdicts by what was planted, the largest error units of what is healthy, and what went otherwise, in words."""

    counts: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0
    odd: list[str] = field(default_factory=list)

    def add(self, word: str, right: bool, told: str) -> None:
        """Count a verdict that is to be ``word``. A weak sample is no evidence of what a runtime does: it is counted
        apart."""
        self.counts[f"{word} planted"] += 1
        self.counts[word] += right
        if not right:
            self.odd.append(f"{word}: {told}")


def models(folder: Path, size: Size) -> Result:
    """Zeros, another sample's outputs and a backend's own rounded to bfloat16 must be wrong, a floor of NaN invalid;
    what the backends return themselves must pass, and bfloat16 that nobody asked for must be said."""
    tally, policy = Tally(), policy_files.load_policy("error_units")
    backends = [_started(name, {}) for name in size["backends"]]
    coarse = _started("openvino-cpu", {"inference_precision": "default"})
    for label in size["models"]:
        op, _, variant = label.partition(".")
        _, group = prepare_group(Group(op, variant, "float32", SAMPLES), default_cache())
        samples = [x for x in group.samples if not x.failure]
        tally.counts["samples"] += len(samples)
        tally.counts["weak samples"] += sum(x.record.weak for x in samples)
        if not samples:
            tally.odd.append(f"{label}: {group.samples[0].failure}")
        for backend, info in backends:
            _of_backend(tally, samples, backend, info, policy, f"{label} on {backend.name}")
        if coarse[1].unasked:
            _told(tally, samples, *coarse, policy, label)
        print(f"  {label}: {len(samples)} samples; healthy within {tally.largest:.3g} so far", flush=True)
    for text in tally.odd:
        print(f"  {text}", flush=True)
    return _result(tally)


def _started(name: str, options: Mapping[str, Any]) -> tuple[Backend, RuntimeInfo]:
    backend = BackendSpec.parse(name, name, dict(options)).create()
    return backend, backend.start()


def _run(sample: PreparedSample, backend: Backend, tally: Tally) -> Outputs | None:
    """The outputs of a sample on a backend; None where it does not take it, or fails: that is counted, and nothing
    planted."""
    for kind in backend.forms:
        try:
            return [np.array(x) for x in backend.build(sample.form(kind)).run()]
        except Unsupported:
            continue
        except Exception as error:
            tally.counts["failed by themselves"] += 1
            last = (str(error).strip() or type(error).__name__).splitlines()[-1]
            tally.odd.append(f"{sample.owner.group.label} on {backend.name} fails by itself: {last}")
            return None
    return None


def _of_backend(
    tally: Tally,
    samples: Sequence[PreparedSample],
    backend: Backend,
    info: RuntimeInfo,
    policy: policy_files.Policy,
    told: str,
) -> None:
    found = [(x, y) for x in samples if (y := _run(x, backend, tally)) is not None]

    def of(sample: PreparedSample, outputs: Outputs) -> Judgement:
        return judge_outputs(sample, [list(outputs)], policy, info)

    for place, (sample, own) in enumerate(found):
        healthy = of(sample, own)
        units = healthy.metrics.error_units or 0.0
        tally.largest = max(tally.largest, units)
        tally.add("healthy passed", healthy.status is Status.PASS, f"{told}: {healthy.status}, {units:.3g} units")
        tally.add("healthy not suspected", not healthy.columns.get("unasked"), told)
        spoilt = of(Spoilt(sample.owner, sample.record), own)
        tally.add("floor of NaN invalid", (spoilt.status, spoilt.kind) == (Status.INVALID, "oracle"), told)
        other = found[place - 1][1]
        for name, plant in PLANTED.items():
            planted = of(sample, plant(own, other))
            weak = " (weak samples)" if sample.record.weak else ""
            units = planted.metrics.error_units or 0.0
            right = planted.status is Status.WRONG
            tally.add(f"{name} wrong{weak}", right, f"{told}: {planted.status}, {units:.3g} units")


def _told(
    tally: Tally,
    samples: Sequence[PreparedSample],
    backend: Backend,
    info: RuntimeInfo,
    policy: policy_files.Policy,
    label: str,
) -> None:
    """A runtime in its default precision, judged as if it had said nothing of it."""
    silent = replace(info, compute_precision="", unasked=False)
    for sample in samples:
        if (outputs := _run(sample, backend, tally)) is None:
            continue
        found = judge_outputs(sample, [outputs], policy, silent)
        units = found.metrics.error_units or 0.0
        told = f"{label} in {info.compute_precision}: {found.status}, {units:.3g} units, {found.columns.get('error')}"
        tally.add("coarser than asked wrong", found.status is Status.WRONG, told)
        tally.add("coarser than asked said", found.columns.get("unasked") == info.compute_precision, told)


def _result(tally: Tally) -> Result:
    figures: dict[str, float] = {"samples": tally.counts["samples"], "weak samples": tally.counts["weak samples"]}
    words = [x.removesuffix(" planted") for x in tally.counts if x.endswith(" planted")]
    for word in words:
        figures |= {word: tally.counts[word], f"{word}, of": tally.counts[f"{word} planted"]}
    figures["healthy units at most"] = tally.largest
    figures["failed by themselves"] = failed = tally.counts["failed by themselves"]
    parts = [f"{word} {tally.counts[word]} of {tally.counts[f'{word} planted']}" for word in words]
    return Result(
        figures,
        f"{tally.counts['samples']} samples, {tally.counts['weak samples']} weak: {'; '.join(parts)}; healthy within "
        f"{tally.largest:.3g} units; {failed} outputs missing: the runtime itself fails",
    )
