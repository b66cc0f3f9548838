"""What every backend of a run makes of all inputs of an op: its exhaustive case run again, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from farm.lake.store import Lake
from farm.reproduction.find_case import load_stored_case, parse_row_key
from farm.reproduction.run_again import run_case_here, run_case_in_child
from tasks.judge.error_metrics import compute_ulp_spacing
from tasks.model import EPS, EXHAUSTIVE, MEASURED, SMALLEST_NORMAL, Refusal, flags, get_wide_dtype
from tasks.model.dtypes import round_to_dtype
from tasks.nearest import suggest_nearest_names


@dataclass(frozen=True, eq=False)
class InputErrors:
    """Of one backend: inputs (n,) and |error| in ulps (n,), infinite for a misplaced NaN or Inf; limit: in ulps."""

    backend: str
    op: str
    inputs: np.ndarray
    ulps: np.ndarray
    limit: float


def find_exhaustive_cases(rows: pd.DataFrame, op: str, dtype: str) -> list[str]:
    """Keys of the first exhaustive case of an op ("erf", "torch:erf") in a dtype, one a backend. Raises Refusal."""
    every = rows[(rows["distribution"] == EXHAUSTIVE) & (rows["check"] == "forward")]
    if every.empty:
        raise Refusal(
            "--every-input: the run has no exhaustive case; name another with --run, or make one: farm run configs/every_input.yaml"
        )
    labels = every["op"] + ("." + every["variant"]).where(every["variant"] != "", "")
    named = every[(labels == op) | (labels.str.partition(":")[2] == op)]
    if named.empty:
        raise Refusal(
            f"--every-input: no exhaustive case of {op!r} in this run (--run names another){suggest_nearest_names(op, sorted(set(labels)))}"
        )
    of_dtype = named[named["dtype"] == dtype]
    if of_dtype.empty:
        raise Refusal(f"--dtype: {op} was run in {', '.join(sorted(set(named['dtype'])))}, not in {dtype!r}")
    judged = of_dtype[of_dtype["status"].isin([s.value for s in MEASURED])].sort_values("sample")
    first = judged[judged["op"] == judged["op"].iloc[0]].drop_duplicates("backend") if len(judged) else judged
    return [":".join(map(str, key)) for key in zip(first["run_id"], first["case_id"], first["backend"])]


def compute_input_errors(keys: list[str], lake: Lake, cache: Path) -> Iterator[InputErrors]:
    """What each backend gives now. One that gives nothing here is left out."""
    for key in keys:
        case = load_stored_case(parse_row_key(key, lake), lake, None, cache)
        outcome = run_case_in_child(case) if case.environment is not None else run_case_here(case)
        [leaf, *_] = case.sample.expected()
        y, given = leaf.reference, case.sample.tensors()
        if outcome.actual is None or y is None or len(given) != 1 or given[0].shape != y.shape or leaf.dtype not in EPS:
            continue
        with np.errstate(all="ignore"):
            a, cast = outcome.actual[0].astype(get_wide_dtype(leaf.dtype)), round_to_dtype(y, leaf.dtype)
            ulps = np.abs(a - y) / compute_ulp_spacing(np.abs(y), EPS[leaf.dtype], SMALLEST_NORMAL[leaf.dtype])
            ulps = np.where((a == cast) | (np.isnan(a) & np.isnan(cast)), np.nan_to_num(ulps, posinf=0.0), ulps)
            ulps = np.where(np.isnan(ulps) | np.isinf(ulps), np.inf, ulps)
            x = given[0].astype(np.float64)
        limit = case.policy.limit(case.sample.owner.group.label, case.sample.op_class.value, leaf.dtype)
        flushes = " (flushes subnormals)" if flags.parse_flushed_flag((case.stored or {}).get("flags")) else ""
        yield InputErrors(
            case.spec.name + flushes, case.sample.owner.group.label, x.reshape(-1), ulps.reshape(-1), limit.value
        )
