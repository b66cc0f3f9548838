"""The search for a smaller case, as a child serves it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from tasks import catalogs, checks, wire
from tasks.arrays.noise import DRAWS
from tasks.arrays.training import TrainingStep
from tasks.backends.shared.onnx_form import name_onnx_inputs
from tasks.catalogs.base import Sample
from tasks.hunt.call_case import CallCase
from tasks.hunt.case import HuntCase, count_searched_elements
from tasks.hunt.chosen_case import ChosenCase
from tasks.hunt.dialogue import NotFailing, Search, Unfit
from tasks.hunt.graph_case import GraphCase
from tasks.hunt.minimise.case_description import describe_minimal_case
from tasks.hunt.minimise.question import Spent
from tasks.hunt.minimise.search import MinimalCase, search_minimal_case
from tasks.hunt.onnx_program import inline_model_functions
from tasks.hunt.serving import Searcher
from tasks.hunt.traced_case import TracedCase
from tasks.model import FORWARD, Form, Group, Invalid, OpClass, Status, Unsupported, Vacuous
from tasks.wire import ToRun


class Minimiser(Searcher):
    """It goes by the rows of what is run, each judged in the backend's process by a reference of its own."""

    looks = False
    ends = (NotFailing,)

    def __init__(self, command: wire.Search) -> None:
        super().__init__(command)
        assert isinstance(command.what, wire.Minimise)
        self._what = command.what
        self._first: HuntCase | None = None

    def start(self) -> Search[wire.Found]:
        what = self._what
        try:
            minimal = yield from search_minimal_case(
                what.row, self._take_apart, what.strategy, what.budget, what.earlier
            )
        except Spent:
            return wire.Found(error=f"{what.budget} runs are too few to rerun and reduce it")
        return self._found(minimal)

    def write(self, name: str, group: Group, sample: Sample) -> ToRun:
        """A case for the check of the stored one; of a training step's operations gradients are results."""
        check = self.item.group.check
        if sample.program is not None and checks.get_check_or_default(check).gradient:
            check = FORWARD
        item = super().write(name, group, sample)
        return replace(item, group=replace(group, check=check))

    def _take_apart(self) -> HuntCase:
        """The stored case taken apart, as the backend was given it. Raises Unfit."""
        sample, why = self.sample, ""
        for kind in self.backend.forms:
            try:
                form = self.form(kind)
            except (Unsupported, Vacuous, Invalid) as error:
                why = why or str(error)
                continue
            check = checks.get_check_or_default(self.item.group.check)
            graph = check.graph(form, self._what.row.culprit or "") if form.model is not None else None
            if form.model is not None and graph is None:
                raise Unfit(f"a case of the {check.name} check cannot be taken apart")
            group, choices = replace(self.item.group, check=check.samples), sample.record.columns.get("choices")
            if choices and self._what.strategy in ("shrink-all", "choices"):
                self._first = ChosenCase(tuple(choices), group, DRAWS)
            elif graph is not None:
                self._first = self._graph(graph, group, sample.op_class)
            elif form.kind == "torch" and not catalogs.get_catalog(group.catalog).remakes:
                self._first = self._make_traced_case(form, group)
            else:
                record = sample.record
                labels = record.columns.get("structure") or ""
                given = tuple(sample.inputs())
                self._first = CallCase(record.args, record.kwargs, given, group, DRAWS, labels)
            return self._first
        raise Unfit(why or "the backend takes no form of it")

    def _make_traced_case(self, form: Form, group: Group) -> HuntCase:
        """A torch form of several operations. Raises Unfit."""
        if group.check != FORWARD and not isinstance(form.call, TrainingStep):
            raise Unfit(f"a case of the {group.check} check cannot be taken apart")
        try:
            return TracedCase.trace_form(form, group, DRAWS)
        except Unsupported as error:
            raise Unfit(str(error)) from None

    def _graph(self, form: Form, group: Group, op_class: OpClass) -> HuntCase:
        """An ONNX form. Where it has no float64 evaluation and the failure is none of numbers, ONNX's checker says what
        is valid."""
        import onnx

        model = inline_model_functions(onnx.load_from_string(form.model))
        count = sum(node.op_type != "Constant" for node in model.graph.node)
        own = None if op_class in (OpClass.MODEL, OpClass.CHOICE) else (count, op_class)
        feeds = name_onnx_inputs(form)
        rows = tuple(list(feeds)[place] for place in form.batched)
        case = GraphCase(model, feeds, group, DRAWS, whole=own, batched=rows)
        if self._what.row.status in (Status.WRONG, Status.IMPRECISE):
            return case
        try:
            case.make_sample()
        except Unfit:
            return replace(case, judged=False)
        return case

    def _found(self, found: MinimalCase) -> wire.Found:
        item = self.item if found.case is None else self.write("minimal.pack", *found.case.make_sample())
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
                "elements": [count_searched_elements(self._first), count_searched_elements(case)],
                "shapes": [[list(x.shape) for x in one.arrays.values()] for one in (self._first, case)],
                **describe_minimal_case(case),
            }
        return wire.Found(facts, item, found.row)
