"""What every input catches that samples do not: planted faults at a few inputs, biased kernels, and what such a verdict costs."""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tasks import heap
from tasks.judge import policy_files
from tasks.judge.error_metrics import does_error_lean
from tasks.judging import judge_outputs
from tasks.model import EXHAUSTIVE, Group, RuntimeInfo, Status, get_numpy_dtype
from tasks.prepare.cases import PreparedSample, prepare_group
from tests.bench.record import Result
from tests.bench.running import PLUGIN, Size

if str(PLUGIN) not in sys.path:
    sys.path.insert(0, str(PLUGIN))

#: Distributions and how many samples of each.
TRIED = {EXHAUSTIVE: 1, "own": 8, "boundary": 8, "adversarial": 8}
BLAMED = {Status.WRONG, Status.IMPRECISE}
#: Most inputs of 65,536 that a fault touches.
FEW = 16


def inputs(folder: Path, size: Size) -> Result:
    """Each fault and its sound twin, the exact result rounded once, on the samples of each distribution."""
    from planted_inputs import FAULTS

    heap.keep_freed_memory()  # as in a child
    policy, info = policy_files.load_policy("error_units"), RuntimeInfo("1", "cpu")
    caught: dict[str, Counter[str]] = {}
    spent: dict[str, list[float]] = {"passing": [], "failing": []}
    blamed, faults = set(), FAULTS[:: size["every"]]
    for number, fault in enumerate(faults):
        for distribution, count in TRIED.items():
            tally = caught.setdefault(distribution, Counter())
            group = Group(f"torch:{fault.op}", "", fault.dtype, count, distribution=distribution)
            told = set()
            for sample, right, wrong in _outputs(group, folder / "cache", fault.wrong):
                begin = time.process_time()
                sound = judge_outputs(sample, [[right]], policy, info)
                between = time.process_time()
                told.add(judge_outputs(sample, [[wrong]], policy, info).status)
                if distribution == EXHAUSTIVE:
                    spent["passing"].append(1e3 * (between - begin))
                    spent["failing"].append(1e3 * (time.process_time() - between))
                    _few(fault.op, right, wrong)
                assert sound.status is not Status.INVALID or distribution != EXHAUSTIVE, f"no oracle of {fault.op}"
                if sound.status in BLAMED:
                    blamed.add((number, distribution))
            tally[fault.kind] += bool(told & BLAMED)
    return _result(len(faults), caught, len(blamed), spent, Counter(f.kind for f in faults))


def _outputs(group: Group, cache: Path, wrong: object) -> Iterator[tuple[PreparedSample, np.ndarray, np.ndarray]]:
    """Each sample of a group with the results of the sound kernel and of the ``wrong`` one, in the dtype of the
    output."""
    for sample in prepare_group(group, cache)[1].samples:
        leaves = [] if sample.failure else sample.expected()
        if len(leaves) != 1 or leaves[0].reference is None or not leaves[0].reference.size:
            continue
        [leaf], given = leaves, sample.tensors()
        assert leaf.reference is not None and callable(wrong)
        with np.errstate(all="ignore"):
            exact, target = leaf.reference.astype(np.float64), get_numpy_dtype(leaf.dtype)
            right = leaf.reference.astype(target)
            broadcast = [np.broadcast_to(x, exact.shape) if x.ndim <= exact.ndim else x for x in given]
            broadcast = [np.ascontiguousarray(x).reshape(exact.shape) for x in broadcast if x.dtype == given[0].dtype]
            made = wrong(broadcast, exact)
            changed = ~((made == exact) | (np.isnan(made) & np.isnan(exact)))
            yield sample, right, np.where(changed, made.astype(target), right)


def _few(op: str, right: np.ndarray, wrong: np.ndarray) -> None:
    """Raises AssertionError for a fault that touches nothing, or more than it says."""
    as_bits = [x.reshape(-1).view(f"u{x.dtype.itemsize}") for x in (right, wrong)]
    changed = int(np.count_nonzero(as_bits[0] != as_bits[1]))
    assert 0 < changed <= FEW, f"a fault of {op} changes {changed} of {right.size} results"


def _result(
    faults: int, caught: dict[str, Counter[str]], blamed: int, spent: dict[str, list[float]], kinds: Counter[str]
) -> Result:
    from tests.tasks.test_bias import BIASED, CASES, SOUND, measured

    biased = sum(does_error_lean(measured(BIASED[name][0], dtype, BIASED[name][2])) for name, dtype in CASES)
    dtypes = ("bfloat16", "float16", "float32")
    accused = sum(does_error_lean(measured(kernel, dtype, ties)) for kernel, ties in SOUND.values() for dtype in dtypes)
    figures: dict[str, float] = {
        "faults": faults,
        "twins blamed": blamed,
        "biased": len(CASES),
        "biased caught": biased,
    }
    figures |= {
        "sound": 3 * len(SOUND),
        "sound called biased": accused,
        "verdict ms": statistics.median(spent["passing"]),
    }
    figures["failing verdict ms"] = statistics.median(spent["failing"])
    figures |= {f"caught {name}": tally.total() for name, tally in caught.items()}
    each = "; ".join(
        f"{kind} ({n}): " + ", ".join(f"{d} {t[kind]}" for d, t in caught.items()) for kind, n in kinds.items()
    )
    shares = ", ".join(f"{name} {100 * tally.total() / faults:.0f} %" for name, tally in caught.items())
    return Result(
        figures,
        f"of {faults} faults at no more than {FEW} inputs caught by {shares} ({each}); {blamed} sound twins blamed; of {len(CASES)} biased "
        f"kernels {biased} told, {accused} of {3 * len(SOUND)} sound ones; a passing verdict of all inputs takes "
        f"{figures['verdict ms']:.1f} ms of CPU, a failing one with its worst element and cause {figures['failing verdict ms']:.1f}",
    )
