"""The search for a culprit, as a child serves it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tasks import wire
from tasks.backends.base import Backend
from tasks.backends.shared.onnx_form import name_onnx_inputs
from tasks.graphs import traced_program
from tasks.graphs.widening import NoOracle
from tasks.hunt.case import HuntCase
from tasks.hunt.dialogue import Search, Unfit
from tasks.hunt.graph_case import GraphCase
from tasks.hunt.localise.question import CulpritQuestion, SearchClock
from tasks.hunt.localise.search import Culprit, search_culprit
from tasks.hunt.localise.settings import BackendSettings
from tasks.hunt.onnx_program import OnnxProgram
from tasks.hunt.program import HuntProgram
from tasks.hunt.serving import Searcher
from tasks.hunt.torch_program import TorchProgram
from tasks.hunt.traced_case import TracedCase
from tasks.judge.policy import Policy
from tasks.judging import judge_outputs
from tasks.model import FILES, Form, Invalid, OpClass, RuntimeInfo, Unsupported, Vacuous
from tasks.prepare.cases import PreparedSample

#: Draws of the noise floor of the culprit's own case.
DRAWS = 8


class Localiser(Searcher):
    """It judges what the backend returns, of the whole and of its pieces, by what it makes of the whole."""

    looks = True

    def __init__(self, command: wire.Search) -> None:
        super().__init__(command)
        assert isinstance(command.what, wire.Localise)
        self._what = command.what

    def start(self) -> Search[wire.Found]:
        whole = ""
        try:
            try:
                question = self._of_backend()
            except Unsupported as error:  # the settings can be told all the same
                whole = f"{self.backend.name} cannot be given parts of the model: {error}"
                question = self._of_whole()
        except (Unsupported, Vacuous, Invalid, NoOracle, ValueError) as error:
            return wire.Found(error=whole or str(error))
        culprit = yield from search_culprit(question, list_backend_settings(self.backend), whole)
        return self._found(question.program, culprit)

    def _of_backend(self) -> CulpritQuestion:
        """What the backend runs, as a program that it can be given parts of. Raises Unsupported where it cannot."""
        forms = self.backend.forms
        if "onnx" in forms:
            return self._of_onnx()
        if "torch" not in forms:
            takes = " or ".join(x for x in forms if x not in FILES)
            raise Unsupported(f"it takes functions of {takes}, whose operations are not told apart")
        form = self.sample.form("torch")
        return self._question(TorchProgram.traced(form, self.item.group.dtype), form)

    def _of_whole(self) -> CulpritQuestion:
        """What is known of a program that the backend cannot be given parts of."""
        try:
            return self._of_onnx()
        except Unsupported:
            return self._question(HuntProgram({}, self.item.group.dtype), self.sample.form("torch"))

    def _of_onnx(self) -> CulpritQuestion:
        form = self.form("onnx")
        return self._question(read_onnx_form(form, self.item.group.dtype), form)

    def _question(self, program: HuntProgram, form: Form) -> CulpritQuestion:
        what = self._what
        return make_culprit_question(self.sample, program, form, what.policy, what.info.runtime, what.seconds)

    def _found(self, program: HuntProgram, culprit: Culprit) -> wire.Found:
        columns = {"culprit": culprit.name, "probe_effect": culprit.effect, "node_units": culprit.node_units or None}
        facts: dict[str, Any] = {"units": culprit.units, "alone": culprit.alone, "why": list(culprit.why)}
        if not culprit.places:
            return wire.Found(facts, columns=columns)
        facts["nodes"] = [program.describe(place) for place in culprit.places]
        try:
            group, sample = self._case(program, culprit).make_sample()
        except (Unfit, Unsupported):
            return wire.Found(facts, columns=columns)
        sample = replace(sample, op_class=OpClass.COMPOSITE)  # as its nodes were judged
        return wire.Found(facts, self.write("culprit.pack", group, sample), columns=columns)

    def _case(self, program: HuntProgram, culprit: Culprit) -> HuntCase:
        """The culprit's nodes with the inputs that they were given, as a case of its own. Raises Unsupported."""
        group = self.item.group
        if isinstance(program, OnnxProgram):
            return GraphCase(program.model, program.feeds, group, DRAWS).of(culprit.places, culprit.feeds)
        assert isinstance(program, TorchProgram)
        piece = program.piece(culprit.places, culprit.feeds)
        return TracedCase.of_program(
            traced_program.cut_program_part(program.program, piece.program), piece.feeds, group, DRAWS
        )


def read_onnx_form(form: Form, dtype: str) -> OnnxProgram:
    """An ONNX form with more than one node. Raises Unsupported, ValueError, NoOracle."""
    import onnx

    if form.model is None:
        raise Unsupported("the case has no ONNX form")
    model = onnx.load_from_string(form.model)
    if sum(node.op_type != "Constant" for node in model.graph.node) < 2:
        raise Unsupported("the graph has one node: there is nothing to localise, farm reproduce shows it")
    return OnnxProgram.inlined(model, name_onnx_inputs(form), dtype)


def make_culprit_question(
    sample: PreparedSample, program: HuntProgram, form: Form, policy: Policy, info: RuntimeInfo, seconds: float
) -> CulpritQuestion:
    """The question of a search for a prepared sample: it fails where a policy says so. form: what the program is of;
    seconds: for the search."""

    def fails(outputs: Any) -> bool:
        return judge_outputs(sample, [list(outputs)], policy, info, form).fails

    return CulpritQuestion(
        program, fails, SearchClock(seconds), info.precision_for(info.of_products and sample.products)
    )


def list_backend_settings(backend: Backend) -> BackendSettings:
    """What of a backend can be turned off."""
    return BackendSettings(tuple(backend.levels()), tuple(backend.passes()), backend.precise() is not None)
