"""How many of the prepared samples are evidence, and how many of those a constant output would pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import tasks.catalogs as catalogs
from tasks.judge.weak_samples import constant_would_pass, find_weak_threshold, zero_would_pass
from tasks.model import Group
from tasks.prepare.cases import PreparedSample, prepare_group

DTYPES = ("float32", "float16", "bfloat16")
#: Samples of a group, as in configs/full.yaml; ONNX's node cases come in every dtype.
SAMPLES = {"torch": 8, "critical": 1, "onnx": 1}


def groups(every: int) -> Iterator[Group]:
    """The groups of full.yaml's catalogs, or one op in ``every``."""
    for name, count in SAMPLES.items():
        for entry in catalogs.get_catalog(name).entries()[::every]:
            for dtype in entry.dtypes:
                if name == "onnx" or dtype in DTYPES:
                    yield Group(entry.op, entry.variant, dtype, count)


def tally(every: int, cache: Path) -> dict[str, Counter[str]]:
    """Per catalog: samples, weak, evidence; of the evidence: zero, constant (any one, of the sample by itself)."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in SAMPLES}
    for group in groups(every):
        _, prepared = prepare_group(group, cache)
        for sample in prepared.samples:
            if not sample.failure:
                counts[group.catalog].update(_of(sample))
    return counts


def _of(sample: PreparedSample) -> list[str]:
    if sample.record.weak:
        return ["samples", "weak"]
    leaves = sample.derived() if sample.record.definition else sample.expected()
    found = ["samples", "evidence"]
    for name, check in (("zero", zero_would_pass), ("constant", constant_would_pass)):
        if all(check(leaf, find_weak_threshold(leaf.dtype), sample.op_class) for leaf in leaves):
            found.append(name)
    return found


def main(cache: Path, every: int = 1) -> None:
    for name, c in tally(every, cache).items():
        share = 100 / max(c["evidence"], 1)
        print(
            f"weak: {name}: {c['samples']} samples, {c['weak']} weak ({100 * c['weak'] / max(c['samples'], 1):.1f} %), "
            f"{c['evidence']} count as evidence; of these zero would pass {c['zero']} ({share * c['zero']:.2f} %, bound: 1 %), "
            f"some constant of its own each {c['constant']} ({share * c['constant']:.2f} %)",
            flush=True,
        )


if __name__ == "__main__":
    import os
    import sys

    main(Path(os.environ["FARM_CACHE"]), int((sys.argv[1:] or ["1"])[0]))
