"""The whole search: from a model that fails to its culprit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tasks.hunt.dialogue import Ask, NotFailing, Ran, Search
from tasks.hunt.localise import nodes, settings, windows
from tasks.hunt.localise.nodes import NodeProbe, SuspectNode
from tasks.hunt.localise.question import FURTHER, CulpritQuestion
from tasks.hunt.localise.settings import NOTHING, BackendSettings

#: Suspects whose own error is followed to the model's outputs: each costs an evaluation of what comes after it.
FOLLOWED = 12


@dataclass(frozen=True)
class Culprit:
    """What a search ends with.

    name: text of the column ``culprit``; "" where none can be named; effect: the column ``probe_effect``; node_units:
    own error units by node, in the graph's order, NaN where a node was not judged; places: of the culprit's nodes in
    the program; units: its own; alone: whether it fails by itself as well, None where that was not tried; feeds: of its
    piece; why: how it is known, a sentence a line.
    """

    name: str = ""
    effect: str = ""
    node_units: tuple[float, ...] = ()
    places: tuple[int, ...] = ()
    units: float | None = None
    alone: bool | None = None
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)
    why: tuple[str, ...] = ()


def search_culprit(question: CulpritQuestion, offered: BackendSettings = NOTHING, whole: str = "") -> Search[Culprit]:
    """What makes the model fail. offered: settings of the backend that may be to blame; whole: why the backend cannot
    be given parts of the program, "" where it can.

    Raises NotFailing where the model does not fail when it is run again, or raises.
    """
    first = yield Ask()
    if first.outputs is None:
        raise NotFailing(f"the model does not run: {first.error}")
    if not question.fails(first.outputs):
        raise NotFailing("run again, the model does not fail")
    if question.reaches({}):
        return Culprit(question.program.maker, why=("the graph itself, in float64, is not what the case expects",))
    question.failing = first.outputs
    found = Culprit(why=(whole,) if whole else ())
    if not whole:
        found = yield from _search_failing_nodes(question, first)
    return (yield from _find_responsible_setting(question, found, offered))


def _search_failing_nodes(question: CulpritQuestion, first: Ran) -> Search[Culprit]:
    probe = yield from nodes.probe_suspect_nodes(question, first)
    units = tuple(probe.units.get(place, math.nan) for place in question.program.places)
    found = Culprit(effect=probe.effect, node_units=units, why=(_describe_node_probe(probe),))
    precision = _find_coarser_precision(question, probe)
    culprit = next(
        (x for x in probe.suspects[:FOLLOWED] if not question.clock.over and question.reaches(x.values)), None
    )
    if culprit is not None:
        found = replace(found, places=(culprit.place,), units=culprit.units, feeds=culprit.feeds)
        if precision:
            return replace(
                found, name=f"precision {precision}", why=(*found.why, f"most of its products are in {precision}")
            )
        alone = yield from windows.does_window_fail(question, [culprit.place])
        if alone is False and not (yield from _does_suspect_err_alone(question, culprit)):
            return (yield from _search_window_beside(question, found, culprit))
        return replace(found, name=question.program.blame(culprit.place), alone=alone)
    if _do_suspects_fail_together(question, probe):
        worst = max(probe.suspects, key=lambda x: x.units)
        told = f"nodes, {len(probe.suspects)} of them, the worst {question.program.title(worst.place)}"
        why = (*found.why, "the errors of these nodes make it fail together, and none of them alone")
        return replace(found, name=told, places=(worst.place,), units=worst.units, feeds=worst.feeds, why=why)
    return (yield from _describe_culprit_window(question, found))


def _does_suspect_err_alone(question: CulpritQuestion, suspect: SuspectNode) -> Search[bool]:
    """Whether a node errs as much by itself on the inputs that the backend gave it; where it does not run, it is
    believed to."""
    piece = question.program.piece([suspect.place], suspect.feeds)
    ran = yield Ask(piece)
    if ran.outputs is None:
        return True
    judged = nodes.judge_suspect_node(
        question, suspect.place, {**suspect.feeds, **dict(zip(piece.outputs, ran.outputs))}
    )
    return judged is None or judged.units > max(nodes.LIMIT, suspect.units / FURTHER)


def _search_window_beside(question: CulpritQuestion, found: Culprit, suspect: SuspectNode) -> Search[Culprit]:
    """The window that fails where a node seems to err and, by itself on the very inputs, does not: what the backend
    gives as its inputs is not what it computes with, as where nodes are fused and tensors asked for are computed beside
    them."""
    why = f"{question.program.title(suspect.place)} does not follow from the inputs that are given for it, and by itself it does"
    return (
        yield from _describe_culprit_window(
            question, Culprit(effect=found.effect, node_units=found.node_units, why=(*found.why, why))
        )
    )


def _do_suspects_fail_together(question: CulpritQuestion, probe: NodeProbe) -> bool:
    """Whether the model fails if all suspects err as they did, and nothing else does."""
    return len(probe.suspects) > 1 and question.reaches_all([x.values for x in probe.suspects])


def _describe_culprit_window(question: CulpritQuestion, found: Culprit) -> Search[Culprit]:
    window = yield from windows.shrink_failing_window(question)
    places, tried = window.places, f"{window.tried} windows of the graph were run by themselves"
    span = f"{question.program.name(places[0])}..{question.program.name(places[-1])}"
    wide = len(places) > windows.WIDEST
    if wide and question.clock.over:  # not known: a smaller one may fail
        return replace(found, why=(*found.why, f"{tried}, until the time was over at {len(places)} nodes, {span}"))
    why = (*found.why, tried)
    if wide:
        why = (
            *why,
            f"none of up to {windows.WIDEST} nodes fails alone, and of {len(places)}, {span}, none can be left out",
        )
        if len(places) > windows.SHOWN:
            return replace(found, name="fusion", why=why)
    feeds = question.program.piece(places).feeds
    named = "fusion" if wide else question.program.blame(places[0], places[-1])
    return replace(found, name=named, places=tuple(places), alone=True, feeds=feeds, why=why)


def _describe_node_probe(probe: NodeProbe) -> str:
    if not probe.effect:
        return f"with its tensors asked for, the model does not run: {probe.error}"
    effects = {
        "same": "asking for all tensors changes no bit of the outputs",
        "changed": "asking for all tensors changes the outputs, and they still fail",
        "healed": "asking for all tensors heals the model: what it does then is no evidence",
    }
    return effects[probe.effect]


def _find_coarser_precision(question: CulpritQuestion, probe: NodeProbe) -> str:
    """What most products of the model are computed in, if that is coarser than asked; "" if it is not."""
    kinds = {place: question.program.op(place) for place in probe.units}
    products = [place for place, kind in kinds.items() if nodes.may_multiply_coarsely(kind)]
    beyond: list[SuspectNode] = [x for x in probe.suspects if nodes.may_multiply_coarsely(kinds[x.place])]
    if len(beyond) < 2 or 2 * len(beyond) < len(products):
        return ""
    return Counter(nodes.find_coarser_precision(question.program, x) for x in beyond).most_common(1)[0][0]


def _find_responsible_setting(question: CulpritQuestion, found: Culprit, offered: BackendSettings) -> Search[Culprit]:
    """The setting of the backend that makes the difference takes the culprit's place. It is looked for with the culprit
    alone where that fails by itself, else with the whole model."""
    asked, wrong = Ask(), lambda ran: question.fails(ran.outputs)
    if found.alone:
        piece = question.program.piece(found.places)
        asked = Ask(piece)
        wrong = lambda ran: question.reaches(dict(zip(piece.outputs, ran.outputs)))  # noqa: E731
    name = yield from settings.blame_setting(asked, wrong, offered, question.clock)
    if not name:
        return found
    return replace(found, name=name, why=(*found.why, *([f"at {found.name}"] if found.name else [])))
