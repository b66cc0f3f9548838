"""farm init harvest: the distinct nodes of models, with the tensors that come to them, as a catalog that every backend runs."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from farm import lake
from farm.commandline import clean_line, refuse_in_a_line
from farm.exits import OK
from farm.lake.store import find_run_by_word
from farm.options.harvest import make_parser
from tasks.cache import default_cache
from tasks.catalogs.models.table import MODELS
from tasks.catalogs.nodes import folder
from tasks.graphs.given_model import GivenError, read_given_case
from tasks.graphs.harvest import NodeHarvest
from tasks.graphs.widening import NoOracle
from tasks.model import Refusal, Unavailable, culprit, label_op
from tasks.nearest import suggest_nearest_names

#: A model with its inputs, what it is called, and the names of the only nodes that are wanted (none: all).
Source = tuple[Any, dict[str, Any], str, list[str]]


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Write the folder; exit code 0, 2 when something named is not there or cannot be read, or nothing was
    harvested."""
    args = _parse_harvest_arguments(argv)
    found, begin = NodeHarvest(), time.process_time()
    failed = 0
    try:
        for source in _find_harvest_sources(args):
            try:
                model, feeds, name, only = source
                found.add(model, feeds, name, only)
                print(f"{name}: {len(found.largest)} distinct nodes so far", flush=True)
            except NoOracle as error:
                failed += 1
                print(f"warning: {clean_line(name)}: {clean_line(error)}; its nodes are left out", file=sys.stderr)
        if not found.largest:
            raise GivenError(
                "no node was harvested" + (f": {failed} models have no float64 evaluation" if failed else "")
            )
        chosen, lost = found.select_instances(args.mib)
        added, whole = folder.write_nodes_folder(Path(args.out), chosen)
    except (OSError, Unavailable) as error:
        raise Refusal(str(error)) from error
    mib = sum(one.size for _, one in chosen) / 2**20
    print(
        f"{args.out}: {len(found.largest)} distinct of {found.seen} nodes, {len(chosen)} instances, {mib:.0f} MiB; "
        f"{added} are new there, {whole} in all; {time.process_time() - begin:.0f} s of CPU time"
    )
    if lost:
        print(f"{lost} distinct nodes are larger than what was left of {args.mib:g} MiB: --mib takes more")
    for reason, count in sorted(found.left_out.items()):
        print(f"left out: {count} nodes, {reason}")
    print(f"run them: catalogs: [{{name: nodes, path: {args.out}}}] in a config")
    return OK


def _parse_harvest_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser()
    args = parser.parse_args(argv)
    if len(args.model) != len(args.inputs):
        parser.error(f"{len(args.model)} --model and {len(args.inputs)} --inputs: give one --inputs for each --model")
    if args.samples < 1:
        parser.error(f"--samples: at least 1, not {args.samples}")
    if not args.mib > 0:
        parser.error(f"--mib: {args.mib:g} is no room; more than 0")
    if not (args.models or args.model or args.run):
        parser.error(
            f"name models of the catalog ({', '.join(sorted({name for name, _ in MODELS}))}), --model, or --run"
        )
    return args


def _find_harvest_sources(args: argparse.Namespace) -> Iterator[Source]:
    """What is asked for. Raises GivenError, LakeError, Unavailable."""
    for name in _select_models_to_harvest(args.models):
        for index in range(args.samples):
            yield (*_take_catalog_model(name, index, 0), f"models:{label_op(*name)}/{index}", [])
    for model, inputs in zip(args.model, args.inputs, strict=True):
        yield (*read_given_case(Path(model), Path(inputs)), Path(model).name, [])
    if args.run:
        yield from _find_culprits_to_harvest(args.results, args.run)


def _select_models_to_harvest(globs: Sequence[str]) -> list[tuple[str, str]]:
    """Models of the catalog by name and variant. Raises GivenError."""
    labels = {label_op(*name): name for name in MODELS}
    for glob in globs:
        if not fnmatch.filter(labels, glob):
            raise GivenError(f"the catalog models has no {glob!r}{suggest_nearest_names(glob, list(labels))}")
    return [name for label, name in labels.items() if any(fnmatch.fnmatchcase(label, glob) for glob in globs)]


def _take_catalog_model(name: tuple[str, str], index: int, seed: int) -> tuple[Any, dict[str, Any]]:
    import onnx

    model, cache = MODELS[name], default_cache()
    return onnx.load_from_string(model.model(cache)), dict(model.inputs(index, seed, cache))


def _find_culprits_to_harvest(results: str, run_id: str) -> Iterator[Source]:
    """The nodes and windows that a run's rows of the catalog models blame. Raises GivenError, LakeError."""
    opened = lake.open_lake(results)
    run_id = find_run_by_word(opened, run_id)
    rows = lake.read(opened, run_id=run_id)
    located = rows["culprit"].fillna("").map(lambda text: culprit.find_culprit_ends(text) is not None)
    rows = rows[(rows["catalog"] == "models") & located]
    if rows.empty:
        raise GivenError(f"the run {run_id} has located no culprit in a model of the catalog")
    for _, some in rows.fillna({"variant": ""}).groupby(["op", "variant", "sample", "seed"]):
        one: Any = some.iloc[0]
        name = (str(one["op"]).partition(":")[2], str(one["variant"]))
        if name not in MODELS:
            raise GivenError(f"the run {run_id} has {one['op']}, which this farm's catalog has not")
        model, feeds = _take_catalog_model(name, int(one["sample"]), int(one["seed"]))
        nodes = [node for text in sorted(set(some["culprit"])) for node in _find_culprit_nodes(model, text)]
        yield model, feeds, f"models:{label_op(*name)}/{one['sample']}", nodes


def _find_culprit_nodes(model: Any, text: str) -> list[str]:
    """Names of the nodes that a culprit names."""
    from tasks.graphs.evaluate_graph import EvaluatedGraph

    found = culprit.find_culprit_ends(text)
    if found is None or found[0] == found[1]:
        return list(found or ())[:1]
    names = [node.name for node in EvaluatedGraph(model).nodes]
    return names[names.index(found[0]) : names.index(found[1]) + 1] if set(found) <= set(names) else []
