"""Planted faults of engines: which relations find each, judged as a run judges; and how far right engines are off."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.catalogs.engine import catalog
from tasks.catalogs.engine.catalog import CHECK, DECODERS
from tasks.checks.engine_greedy import OP as GREEDY
from tasks.checks.engine_relations import RELATIONS
from tasks.judge import policy_files
from tasks.model import Group, Unavailable
from tasks.model.row import Row
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group
from tasks.zoo.engines import FAULTS, EngineFault
from tests.bench.record import Result

PLAIN = "tasks.engines.plain:PlainEngine"
DTYPES = ("float32", "bfloat16")
#: Relations whose usual way is cached decoding in the engine's own precision, and whose way costs no compiler.
SWIFT = tuple(name for name, one in RELATIONS.items() if not one.compiled)


@dataclass(frozen=True)
class Found:
    """Relations that blame an engine, and the units of the first of them. row: of one of them."""

    dtype: str
    by: dict[str, float]
    row: Row | None


def judge_engine(
    name: str,
    relations: Iterable[str],
    dtypes: Iterable[str],
    cache: Path,
    variants: Iterable[str] = DECODERS,
    samples: int = 1,
    like: str = "engine-cpu",
) -> Iterator[Row]:
    """Rows of an engine ("module:Class") under some relations. cache: where prepared samples are kept."""
    backend = BackendSpec.parse("own", like=like, options={"class": name} if name else {}).create()
    return judge_backend(backend, list_groups(relations, dtypes, variants, samples), cache)


def list_groups(
    relations: Iterable[str], dtypes: Iterable[str], variants: Iterable[str], samples: int
) -> Iterator[Group]:
    """Groups of the catalog `engine`: what has a reference in common comes one behind another, so that it is made
    once."""
    for variant, dtype, relation in itertools.product(variants, dtypes, list(relations)):
        yield Group(f"engine:{relation}", variant, dtype, samples, check=CHECK)


def judge_backend(backend: Backend, groups: Iterable[Group], cache: Path) -> Iterator[Row]:
    """Rows of a backend of engines."""
    runner = Runner(backend, backend.start(), policy_files.load_policy("error_units"), lambda *at: None)
    try:
        for group in groups:
            for done in runner.run([make_item_of_whole_group(prepare_group(group, cache)[1])]):
                yield done.row
    finally:
        runner.close()


def find_fault(fault: EngineFault, dtype: str, cache: Path, relations: Iterable[str]) -> Found:
    """What blames an engine with a planted fault."""
    name = f"{fault.engine.__module__}:{fault.engine.__qualname__}"
    rows = list(judge_engine(name, relations, [dtype], cache, ["window" if fault.window else "llama"]))
    wrong = {row.op.partition(":")[2]: row for row in rows if row.status == "wrong"}
    return Found(dtype, {k: x.error_units or 0.0 for k, x in wrong.items()}, next(iter(wrong.values()), None))


def engine_faults(cache: Path, size: Mapping[str, Any]) -> Result:
    """Faults found by the relations that are to find them, in each dtype, and right engines blamed.

    faults: names of some, all where it is missing; relations: "right", those that are to find a fault; "all": every one
    is asked."""
    faults, ask_all = list(size.get("faults", FAULTS)), size["relations"] == "all"
    begin = time.process_time()
    found, blamed, worst = dict.fromkeys(DTYPES, 0), 0, dict.fromkeys(DTYPES, 0.0)
    for name in faults:
        fault = FAULTS[name]
        for dtype in DTYPES:
            one = find_fault(fault, dtype, cache, {*SWIFT, *fault.found_by} if ask_all else fault.found_by)
            found[dtype] += set(fault.found_by) <= set(one.by)
            said = one.row.error if one.row else ""
            print(f"{name:26} {dtype:9} {', '.join(one.by) or 'not found':34} {said}", flush=True)
    rows = list(judge_engine(PLAIN, SWIFT, DTYPES, cache))
    for row in rows:
        blamed += row.status != "pass"
        worst[row.dtype] = max(worst[row.dtype], row.error_units or 0.0)
    count = len(faults)
    figures: dict[str, float] = {
        "faults": count,
        "blamed": blamed,
        "right": len(rows),
        "cpu_s": time.process_time() - begin,
    }
    figures |= {f"found_{d}": n for d, n in found.items()} | {f"units_{d}": x for d, x in worst.items()}
    text = (
        ", ".join(f"{n} of {count} faults found in {d}" for d, n in found.items())
        + f", each by the relation that is to find it; the right engine blamed in {blamed} of {len(rows)} cells, at most "
        + ", ".join(f"{x:.2g} units in {d}" for d, x in worst.items())
    )
    return Result(figures, text)


def right_engines(cache: Path, size: Mapping[str, Any]) -> Result:
    """Right engines blamed, over more and longer requests than the catalog has: by every relation, and by the tokens
    that they choose.

    backends: name → how it is made (arguments of `BackendSpec.parse`); samples: of four prompts each; steps: tokens
    that follow each; relations: those that are asked, all where it is missing."""
    begin = time.process_time()
    rows: list[tuple[str, Row]] = []
    groups = list(list_groups(size.get("relations", [*SWIFT, GREEDY]), DTYPES, ["llama"], size["samples"]))
    forget_references()
    with mock.patch.object(catalog, "STEPS", size["steps"]):
        for name, how in size["backends"].items():
            backend = BackendSpec.parse(name, **how).create()
            try:
                backend.start()
            except Unavailable as error:
                print(f"{name} is not asked: {error}", flush=True)
                continue
            for row in judge_backend(backend, groups, cache):
                rows.append((name, row))
                relation, spent = row.op.partition(":")[2], time.process_time() - begin
                said = f"{row.error_units:.2g} units" if row.status == "pass" else row.error or ""
                print(f"{spent:4.0f} s {name} {relation} {row.dtype} {row.sample}: {row.status} {said}", flush=True)
    forget_references()
    known = {("genai-cpu", "engine:padded_left")}
    judged = [(name, row) for name, row in rows if row.status != "unsupported" and (name, row.op) not in known]
    blamed = [row for _, row in judged if row.status != "pass"]
    figures: dict[str, float] = {"judged": len(judged), "blamed": len(blamed), "unsupported": 0}
    figures["unsupported"] = sum(row.status == "unsupported" for _, row in rows)
    for dtype in DTYPES:
        figures[f"units_{dtype}"] = max((x.error_units or 0.0 for _, x in judged if x.dtype == dtype), default=0.0)
    figures["cpu_s"] = time.process_time() - begin
    asked = ", ".join(f"{name} ({len({x.op for n, x in judged if n == name})} relations)" for name in dict(judged))
    text = (
        f"{len(blamed)} of {len(judged)} samples blamed over {4 * size['samples']} prompts × {size['steps']} tokens in "
        f"{' and '.join(DTYPES)} on right engines, {asked}; at most "
        + ", ".join(f"{figures[f'units_{dtype}']:.2g} units in {dtype}" for dtype in DTYPES)
    )
    return Result(figures, text)


def forget_references() -> None:
    """Requests of another length are other samples."""
    for kept in (catalog.draw_requests, catalog.evaluate_decoder_sample):
        kept.cache_clear()
