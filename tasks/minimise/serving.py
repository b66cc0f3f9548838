"""A search in a process of its own: the cases that it wants run are written to packs, the rows of them come back."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tasks import catalogs, checks, wire
from tasks.arrays.noise import DRAWS
from tasks.arrays.pack import Pack
from tasks.arrays.training import TrainingStep
from tasks.backends.shared.onnx_form import inputs_by_name
from tasks.minimise.call_case import CallCase
from tasks.minimise.case import Case, Unfit, elements
from tasks.minimise.chosen_case import ChosenCase
from tasks.minimise.described import describe_case
from tasks.minimise.graph_case import GraphCase
from tasks.minimise.hunt import Ask, NotFailing, Spent
from tasks.minimise.search import Minimal, search
from tasks.minimise.traced_case import TracedCase
from tasks.model import FORWARD, Form, Group, Invalid, OpClass, Status, Unsupported, Vacuous
from tasks.prepare.cases import PreparedGroup, save_alone
from tasks.wire import Minimised, ToRun, Wants


class Minimiser:
    """One search: `begin` starts it, `go_on` tells it what became of what it wanted; each returns what it wants next."""

    def __init__(self, command: wire.Minimise) -> None:
        self._command, self._asked = command, command.item
        self._folder, self._numbers = Path(command.folder), itertools.count()
        self._wanted = ""
        self._first: Case | None = None
        self._search: Any = None

    def begin(self) -> wire.Answer:
        command = self._command
        self._search = search(command.row, self._start, command.strategy, command.budget, command.earlier)
        return self._step(None)

    def go_on(self, tried: wire.Tried) -> wire.Answer:
        """What is wanted next, or what was found."""
        if self._wanted:
            Path(self._wanted).unlink(missing_ok=True)
        return self._step(tried.row)

    def _step(self, row: Any) -> wire.Answer:
        try:
            asked = self._search.send(row)
        except StopIteration as end:
            return self._minimised(end.value)
        except NotFailing as error:
            return Minimised(error=str(error))
        except Spent:
            return Minimised(error=f"{self._command.budget} runs are too few to rerun and reduce it")
        return self._wants(asked)

    def _wants(self, asked: Ask) -> Wants:
        self._wanted = ""
        item = self._asked
        if asked.case is not None:
            item = self._written(f"{next(self._numbers)}.pack", asked.case)
            self._wanted = item.pack
        return Wants(item, asked.before, asked.fresh, asked.patient)

    def _written(self, name: str, case: Case) -> ToRun:
        group, sample = case.made()
        save_alone(self._folder / name, group, sample)
        check = self._asked.group.check
        if isinstance(case, TracedCase) and checks.get_or_default(check).gradient:
            check = FORWARD  # gradients are results of the operations of a training step
        return ToRun(replace(group, check=check), str(self._folder / name), (0,))

    def _start(self) -> Case:
        """The stored case taken apart, as the backend was given it. Raises Unfit."""
        sample = PreparedGroup(self._asked.pack, self._asked.group.check).samples[self._asked.positions[0]]
        exported = Pack(self._asked.exported) if self._asked.exported else None
        why = ""
        for kind in self._command.backend.create().forms:
            try:
                form = sample.form(kind, exported)
            except (Unsupported, Vacuous, Invalid) as error:
                why = why or str(error)
                continue
            check = checks.get_or_default(self._asked.group.check)
            graph = check.graph(form, self._command.row.culprit or "") if form.model is not None else None
            if form.model is not None and graph is None:
                raise Unfit(f"a case of the {check.name} check cannot be taken apart")
            group, choices = replace(self._asked.group, check=check.samples), sample.record.columns.get("choices")
            if choices and self._command.strategy in ("shrink-all", "choices"):
                self._first = ChosenCase(tuple(choices), group, DRAWS)
            elif graph is not None:
                self._first = self._graph(graph, group, sample.op_class)
            elif form.kind == "torch" and not catalogs.get(group.catalog).remakes:
                self._first = self._traced(form, group)
            else:
                record = sample.record
                labels = record.columns.get("structure") or ""
                given = tuple(sample.inputs())
                self._first = CallCase(record.args, record.kwargs, given, group, DRAWS, labels)
            return self._first
        raise Unfit(why or "the backend takes no form of it")

    def _traced(self, form: Form, group: Group) -> Case:
        """A torch form of several operations. Raises Unfit."""
        if group.check != FORWARD and not isinstance(form.call, TrainingStep):
            raise Unfit(f"a case of the {group.check} check cannot be taken apart")
        try:
            return TracedCase.traced(form, group, DRAWS)
        except Unsupported as error:
            raise Unfit(str(error)) from None

    def _graph(self, form: Form, group: Group, op_class: OpClass) -> Case:
        """An ONNX form. Where it has no float64 evaluation and the failure is none of numbers, ONNX's checker says what is
        valid."""
        import onnx

        model = onnx.load_from_string(form.model)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        count = sum(node.op_type != "Constant" for node in model.graph.node)
        own = None if op_class in (OpClass.MODEL, OpClass.CHOICE) else (count, op_class)
        feeds = inputs_by_name(form)
        rows = tuple(list(feeds)[place] for place in form.batched)
        case = GraphCase(model, feeds, group, DRAWS, whole=own, batched=rows)
        if self._command.row.status in (Status.WRONG, Status.IMPRECISE):
            return case
        try:
            case.made()
        except Unfit:
            return replace(case, judged=False)
        return case

    def _minimised(self, found: Minimal) -> Minimised:
        item = self._asked if found.case is None else self._written("minimal.pack", found.case)
        facts: dict[str, Any] = {
            "failure": asdict(found.failure),
            "triggers": [asdict(x) for x in found.triggers],
            **{name: getattr(found, name) for name in ("runs", "refused", "failed", "tried", "flaky", "by_parts")},
            **{name: list(getattr(found, name)) for name in ("before", "told", "why")},
        }
        if found.case is not None and self._first is not None:
            case = found.case.as_made() if isinstance(found.case, CallCase) else found.case
            facts |= {
                "nodes": [len(self._first.ops), len(case.ops)],
                "elements": [elements(self._first), elements(case)],
                "shapes": [[list(x.shape) for x in one.arrays.values()] for one in (self._first, case)],
                **describe_case(case),
            }
        return Minimised(item, found.row, facts)
