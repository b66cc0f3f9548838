"""Faults planted in single nodes, and in fused ones, of the catalog's models behind a stand-in: what the search names."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.cache import default_cache
from tasks.hunt.dialogue import Ask, DialoguePiece, NotFailing, Ran
from tasks.hunt.localise.question import CulpritQuestion, SearchClock
from tasks.hunt.localise.search import Culprit, search_culprit
from tasks.hunt.localise.serving import list_backend_settings, make_culprit_question, read_onnx_form
from tasks.hunt.localise.windows import WIDEST
from tasks.hunt.onnx_program import OnnxProgram
from tasks.judge import policy_files
from tasks.model import Form, Group, RuntimeInfo
from tasks.prepare.cases import prepare_group
from tests import stand_in
from tests.bench.record import Result
from tests.bench.running import Size
from tests.stand_in import Fault

#: Seconds that a search may take.
BOUND_S = 60.0
#: Faults drawn for each that is kept: what does not make its model fail is no fault of the model.
DRAWN = 8


@dataclass
class Loaded:
    """A model of the catalog with what its sample is judged by."""

    name: str
    form: Form
    program: OnnxProgram
    question: CulpritQuestion

    @property
    def graph(self) -> Any:
        return self.program.graph


@dataclass
class Tally:
    """Outcomes by word, and seconds of CPU of every search."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def add(self, word: str, seconds: float, told: str = "") -> None:
        self.counts[word] += 1
        self.seconds.append(seconds)
        if told:
            print(f"  {told}", flush=True)


def localise(folder: Path, size: Size) -> Result:
    """Faults in single nodes, faults that exist only fused, and sound backends, over models of the catalog."""
    models = [_load(name) for name in size["models"]]
    seed = random.Random(size.get("seed", 1))
    single = _planted(models, size["faults"], seed)
    fused = _fused(models, size["fused"], seed)
    clean = _clean(models, size["backends"])
    named, planted = single.counts["named"], sum(single.counts.values()) - single.counts["passes"]
    together = sum(fused.counts.values()) - fused.counts["passes"]
    longest = max([*single.seconds, *fused.seconds])
    figures = {
        "models": len(models),
        "faults": planted,
        "named": named,
        "wrong_node": single.counts["wrong"],
        "passed": single.counts["passes"],
        "fused": together,
        "fused_right": fused.counts["window"] + fused.counts["fusion"],
        "fused_wrong": fused.counts["wrong"],
        "clean": sum(clean.counts.values()),
        "blamed": clean.counts["blamed"],
        "longest_s": longest,
    }
    text = (
        f"{named} of {planted} faults in single nodes of {len(models)} models named to the node (bound: 95 %), "
        f"{single.counts['wrong']} to another one; of {together} faults that exist only fused {fused.counts['window']} a window of up to "
        f"{WIDEST} nodes, {fused.counts['fusion']} fusion, {fused.counts['wrong']} a wrong node (bound: none); "
        f"{clean.counts['blamed']} of {sum(clean.counts.values())} sound pairs of model and backend blamed (bound: none); "
        f"longest search {longest:.0f} s of CPU (bound: {BOUND_S:.0f} s)"
    )
    return Result(figures, text)


def _load(name: str) -> Loaded:
    op, _, variant = name.partition(".")
    _, made = prepare_group(Group(op, variant, "float32", 1), default_cache())
    sample = made.samples[0]
    form = sample.form("onnx")
    program = read_onnx_form(form, "float32")
    question = make_culprit_question(
        sample, program, form, policy_files.load_policy("error_units"), RuntimeInfo("", ""), BOUND_S
    )
    return Loaded(name, form, program, question)


# --- faults ---------------------------------------------------------------------------------------------------------


def _candidates(one: Loaded) -> dict[str, list[Fault]]:
    """The faults that the nodes of a model can have, by kind."""
    found: dict[str, list[Fault]] = defaultdict(list)
    for place in one.program.places:
        node = one.graph.node[place]
        value = one.program.exact.get(node.output[0])
        if isinstance(value, np.ndarray):
            for kind, rewrite in stand_in.kinds(stand_in.Site(one.graph, place), value.shape):
                found[kind].append(Fault(kind, node.output[0], rewrite))
    return found


def _planted(models: Sequence[Loaded], wanted: int, seed: random.Random) -> Tally:
    """Kinds in turn, each in another model as long as there is one."""
    offered = {one.name: _candidates(one) for one in models}
    kinds = sorted({kind for found in offered.values() for kind in found})
    tally, by_name, used = Tally(), {one.name: one for one in models}, Counter[str]()
    tried = 0
    while sum(tally.counts.values()) - tally.counts["passes"] < wanted and tried < DRAWN * wanted:
        kind = kinds[tried % len(kinds)]
        tried += 1
        having = [name for name, found in offered.items() if found.get(kind)]
        if not having:
            continue
        name = min(having, key=lambda x: (used[x], seed.random()))
        used[name] += 1
        faults = offered[name][kind]
        _try_single(by_name[name], faults.pop(seed.randrange(len(faults))), tally)
    return tally


def _try_single(one: Loaded, fault: Fault, tally: Tally) -> None:
    place = one.program.producer[fault.at]
    right = f"node {one.program.name(place)} ({one.graph.node[place].op_type})"
    what = f"{one.name}: {fault.kind} in {right}"
    found, seconds = _searched(one, fault)
    if found is None:
        tally.add("passes", seconds)
    elif found.name == right:
        tally.add("named", seconds)
    else:
        word = "wrong" if found.name.startswith("node") else "other"
        tally.add(word, seconds, f"{what}: {found.name or 'nothing'} ({'; '.join(found.why)})")


def _searched(one: Loaded, fault: Fault) -> tuple[Culprit | None, float]:
    """(what the search finds, None where the model passes, CPU seconds)."""
    begin = time.process_time()
    searching = search_culprit(replace(one.question, clock=SearchClock(BOUND_S)))

    def run(model: Any, feeds: Mapping[str, np.ndarray]) -> Ran:
        return stand_in.run(model, feeds, fault)

    try:
        found = stand_in.answered(searching, one.program.model, one.program.feeds, run)
    except NotFailing:
        found = None
    return found, time.process_time() - begin


def _chains(one: Loaded, length: int) -> Iterator[list[str]]:
    """Tensors of nodes each of which is the only one to take the one before: what an optimiser may fuse."""
    graph, users = one.graph, Counter(x for node in one.graph.node for x in node.input)
    next_of: dict[str, str] = {}
    for place in one.program.places:
        node = graph.node[place]
        for name in node.input:
            if name in one.program.producer and users[name] == 1:
                next_of[name] = node.output[0]
    for place in one.program.places:
        chain = [graph.node[place].output[0]]
        while len(chain) < length and chain[-1] in next_of:
            chain.append(next_of[chain[-1]])
        last = one.program.exact.get(chain[-1])
        if len(chain) == length and isinstance(last, np.ndarray) and last.dtype == np.float32:
            yield chain


def _fused(models: Sequence[Loaded], wanted: int, seed: random.Random) -> Tally:
    """Faults in chains of two to four nodes, and of six, which no window of four shows."""
    tally, tried = Tally(), 0
    while sum(tally.counts.values()) - tally.counts["passes"] < wanted and tried < DRAWN * wanted:
        one, length = models[tried % len(models)], (2, 3, 4, 6)[tried % 4]
        tried += 1
        chains = list(_chains(one, length))
        if not chains:
            continue
        chain = seed.choice(chains)
        found, seconds = _searched(one, Fault("fused", chain[-1], stand_in.times(1.01), tuple(chain[:-1])))
        what = f"{one.name}: fused only, {' '.join(chain)}"
        if found is None:
            tally.add("passes", seconds)
            continue
        seen = {name for place in found.places for name in one.graph.node[place].output}
        if found.name == "fusion":
            tally.add("fusion", seconds, "" if length > WIDEST else f"{what}: fusion ({'; '.join(found.why)})")
        elif len(found.places) in range(2, WIDEST + 1) and seen & set(chain):
            tally.add("window", seconds)
        else:
            tally.add("wrong", seconds, f"{what}: {found.name} ({'; '.join(found.why)})")
    return tally


# --- sound backends -------------------------------------------------------------------------------------------------


def _clean(models: Sequence[Loaded], backends: Sequence[str]) -> Tally:
    tally = Tally()
    for name in backends:
        backend = _started(name)
        for one in models:
            begin = time.process_time()
            whole = "" if "onnx" in backend.forms else "it takes no ONNX"
            question = replace(one.question, clock=SearchClock(BOUND_S))
            searching = search_culprit(question, list_backend_settings(backend), whole)
            try:
                found = _asked(searching, one, backend)
            except NotFailing as error:
                refused = "does not run" in str(error)
                tally.add("refused" if refused else "sound", 0.0, f"{one.name} on {name}: {error}" if refused else "")
                continue
            told = f"{one.name} on {name}: {found.name or 'nothing'} ({'; '.join(found.why)})"
            tally.add("blamed" if found.name else "unnamed", time.process_time() - begin, told)
    return tally


def _started(name: str) -> Backend:
    like, _, level = name.partition("@")
    spec = BackendSpec.parse(name, like, {"graph_optimization": level} if level else {})
    backend = spec.create()
    backend.start()
    return backend


def _asked(searching: Any, one: Loaded, backend: Backend) -> Culprit:
    def ran(asked: Ask) -> Ran:
        try:
            form = one.form if "onnx" in backend.forms else _torch_form(one)
            if isinstance(asked.case, DialoguePiece):
                arrays = [asked.case.feeds[x.name] for x in asked.case.program.graph.input]
                form = Form("onnx", one.form.op, "float32", arrays, model=asked.case.program.SerializeToString())
            return Ran([np.array(x) for x in backend.at(asked.setting).build(form).run()])
        except Exception as error:
            return Ran(None, f"{type(error).__name__}: {error}"[:300])

    return stand_in.driven(searching, ran)


def _torch_form(one: Loaded) -> Form:
    op, _, variant = one.name.partition(".")
    _, made = prepare_group(Group(op, variant, "float32", 1), default_cache())
    return made.samples[0].form("torch")
