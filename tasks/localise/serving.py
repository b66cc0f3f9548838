"""A search in a process of its own: what it wants run is written to packs, what came of it is read from one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks import wire
from tasks.arrays import torch_tree
from tasks.arrays.pack import Pack, save
from tasks.arrays.tree import TensorSpec
from tasks.backends.base import Backend
from tasks.backends.shared.onnx_form import inputs_by_name
from tasks.catalogs.base import Sample
from tasks.graphs import program as programs
from tasks.graphs.evaluate import Graph
from tasks.graphs.floor import reference_and_floor
from tasks.graphs.program import Part
from tasks.graphs.widening import NoOracle
from tasks.judge.policy import Policy
from tasks.judging import judge_outputs
from tasks.localise.dialogue import Ask, Clock, Found, NotFailing, Ran, Settings
from tasks.localise.search import search
from tasks.localise.searched import Searched, Whole
from tasks.localise.subject import Subject
from tasks.localise.traced import Traced
from tasks.model import FILES, Form, Group, Invalid, Leaf, RuntimeInfo, Unsupported, Vacuous
from tasks.model.dtypes import dtype_name
from tasks.prepare.cases import PreparedGroup, PreparedSample, save_alone
from tasks.wire import Located, ToRun, Wants

#: Draws of the noise floor of the culprit's own case.
DRAWS = 8


class Locator:
    """One search: `begin` starts it, `go_on` tells it what became of what it wanted; each returns what it wants next."""

    def __init__(self, command: wire.Localise) -> None:
        item = command.item
        self._asked, self._folder, self._numbers = item, Path(command.folder), itertools.count()
        self._sample = PreparedGroup(item.pack, item.group.check).samples[item.positions[0]]
        self._command, self._wanted = command, item
        self._subject: Searched | None = None
        self._search: Any = None

    def begin(self) -> wire.Answer:
        command = self._command
        backend = command.backend.create()
        info = command.info.runtime
        whole = ""
        try:
            try:
                self._subject = self._of_backend(backend, info)
            except Unsupported as error:  # the settings can be told all the same
                whole = f"{backend.name} cannot be given parts of the model: {error}"
                self._subject = self._of_whole(info)
        except (Unsupported, Vacuous, Invalid, NoOracle, ValueError) as error:
            return Located(error=whole or str(error))
        self._search = search(self._subject, Clock(command.seconds), settings_of(backend), whole)
        return self._step(None)

    def _of_backend(self, backend: Backend, info: RuntimeInfo) -> Searched:
        """What the backend runs, as a program that it can be given parts of. Raises Unsupported where it cannot."""
        if "onnx" in backend.forms:
            return self._of_onnx(info)
        if "torch" not in backend.forms:
            raise Unsupported(
                f"it takes functions of {' or '.join(x for x in backend.forms if x not in FILES)}, whose operations are not told apart"
            )
        return traced_of(self._sample, self._sample.form("torch"), self._command.policy, info)

    def _of_whole(self, info: RuntimeInfo) -> Searched:
        """What is known of a program that the backend cannot be given parts of."""
        try:
            return self._of_onnx(info)
        except Unsupported:
            form = self._sample.form("torch")
            return Whole(*_judge(self._sample, form, self._command.policy, info))

    def _of_onnx(self, info: RuntimeInfo) -> Searched:
        form = self._form()
        return subject_of(self._sample, form, *read_onnx_form(form), self._command.policy, info)

    def go_on(self, tried: wire.Tried) -> wire.Answer:
        """What is wanted next, or what was found."""
        if tried.error:
            return self._step(Ran(None, tried.error))
        pack = Pack(self._wanted.keep)
        ran = Ran([pack.array(i).copy() for i in range(pack.header["outputs"])])
        for path in {self._wanted.keep, self._wanted.pack, self._wanted.part} - {self._asked.pack, ""}:
            Path(path).unlink(missing_ok=True)
        return self._step(ran)

    def _step(self, ran: Ran | None) -> wire.Answer:
        try:
            asked = self._search.send(ran)
        except StopIteration as end:
            return self._located(end.value)
        except (NotFailing, NoOracle) as error:
            return Located(error=str(error))
        self._wanted = self._item(asked)
        return Wants(self._wanted)

    def _form(self) -> Form:
        exported = Pack(self._asked.exported) if self._asked.exported else None
        return self._sample.form("onnx", exported)

    def _item(self, asked: Ask) -> ToRun:
        number = next(self._numbers)
        keep = str(self._folder / f"{number}.outputs")
        if asked.model is None:
            return replace(self._asked, keep=keep, setting=asked.setting)
        if isinstance(asked.model, Part):
            part = str(self._folder / f"{number}.part")
            inputs, outputs = asked.model.inputs, asked.model.outputs
            save(part, {"inputs": inputs, "outputs": outputs}, [np.asarray(asked.feeds[name]) for name in inputs])
            return replace(self._asked, keep=keep, setting=asked.setting, part=part)
        item = self._written(f"{number}.pack", asked.model, asked.feeds, [])
        return replace(item, keep=keep, setting=asked.setting)

    def _written(self, name: str, model: Any, feeds: Mapping[str, np.ndarray], expected: list[Leaf]) -> ToRun:
        """A graph as a case of its own. It is of no catalog, so that every backend is given its ONNX form."""
        group = Group(f"piece:{self._asked.group.op_name}", self._asked.group.variant, self._asked.group.dtype, 1)
        arrays = [np.asarray(feeds[x.name]) for x in model.graph.input]
        args = tuple(TensorSpec(i) for i in range(len(arrays)))
        sample = Sample(0, args, arrays=arrays, expected=expected, model=model.SerializeToString())
        save_alone(self._folder / name, group, sample)
        return ToRun(group, str(self._folder / name), (0,))

    def _located(self, found: Found) -> Located:
        columns = {"culprit": found.culprit, "probe_effect": found.effect, "node_units": found.node_units or None}
        facts: dict[str, Any] = {"units": found.units, "alone": found.alone, "why": list(found.why)}
        piece = None
        subject = self._subject
        if found.places and subject is not None:
            facts["nodes"] = [subject.described(place) for place in found.places]
            piece = self._piece(subject, found) if isinstance(subject, Subject) else None
        return Located(columns, facts, piece)

    def _piece(self, subject: Subject, found: Found) -> ToRun | None:
        """The culprit's nodes with their inputs, exact results and floors, as a case of its own."""
        model, _, outputs = subject.piece(found.places)
        try:
            made = reference_and_floor(Graph(model), dict(found.feeds), DRAWS)
        except NoOracle:
            return None
        known = [subject.exact[name] for name in outputs]
        leaves = [
            Leaf(dtype_name(x.dtype), y.shape, y, delta) for x, y, delta in zip(known, made.references, made.floors)
        ]
        return self._written("culprit.pack", model, found.feeds, leaves)


def read_onnx_form(form: Form) -> tuple[Any, dict[str, np.ndarray]]:
    """(ModelProto, feeds) of an ONNX form with more than one node. Raises Unsupported, ValueError."""
    import onnx

    if form.model is None:
        raise Unsupported("the case has no ONNX form")
    model = onnx.load_from_string(form.model)
    if sum(node.op_type != "Constant" for node in model.graph.node) < 2:
        raise Unsupported("the graph has one node: there is nothing to localise, farm reproduce shows it")
    return model, inputs_by_name(form)


def subject_of(
    sample: PreparedSample, form: Form, model: Any, feeds: Mapping[str, np.ndarray], policy: Policy, info: RuntimeInfo
) -> Subject:
    """The subject of a search for a prepared sample: it fails where a policy says so. model, feeds: of its ``form``."""
    return Subject(model, feeds, *_judge(sample, form, policy, info))


def traced_of(sample: PreparedSample, form: Form, policy: Policy, info: RuntimeInfo) -> Traced:
    """The same of its torch form. Raises Unsupported where that is no module that can be traced."""
    given = programs.arguments(form)
    program = programs.trace_module(form.call, given)
    names = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    feeds = {name: torch_tree.to_numpy(x) for name, x in zip(names, given, strict=True)}
    return Traced(program, feeds, *_judge(sample, form, policy, info))


def _judge(sample: PreparedSample, form: Form, policy: Policy, info: RuntimeInfo) -> tuple[Any, str, str]:
    """(whether outputs fail, the dtype, the precision that is declared) of a sample."""

    def fails(outputs: Any) -> bool:
        return judge_outputs(sample, [list(outputs)], policy, info, form).fails

    group = sample.owner.group
    return fails, group.dtype, info.precision_for(sample.products)


def settings_of(backend: Backend) -> Settings:
    """What of a backend can be turned off."""
    return Settings(tuple(backend.levels()), tuple(backend.passes()), backend.precise() is not None)
