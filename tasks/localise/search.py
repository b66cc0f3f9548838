"""The whole search: from a model that fails to its culprit."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from tasks.localise import nodes, settings, windows
from tasks.localise.dialogue import NOTHING, Ask, Clock, Found, NotFailing, Ran, Search, Settings
from tasks.localise.nodes import Probe, Suspect
from tasks.localise.searched import FURTHER, Searched

#: Suspects whose own error is followed to the model's outputs: each costs an evaluation of what comes after it.
FOLLOWED = 12


def search(subject: Searched, clock: Clock, offered: Settings = NOTHING, whole: str = "") -> Search[Found]:
    """What makes the model fail. offered: settings of the backend that may be to blame; whole: why the backend cannot be given parts of the program, "" where it can.

    Raises NotFailing where the model does not fail when it is run again, or raises.
    """
    first = yield Ask()
    if first.outputs is None:
        raise NotFailing(f"the model does not run: {first.error}")
    if not subject.fails(first.outputs):
        raise NotFailing("run again, the model does not fail")
    if subject.reaches({}):
        return Found(subject.maker, why=("the graph itself, in float64, is not what the case expects",))
    subject.failing = first.outputs
    found = Found(why=(whole,) if whole else ())
    if not whole:
        found = yield from _where(subject, first, clock)
    return (yield from _setting(subject, found, offered, clock))


def _where(subject: Searched, first: Ran, clock: Clock) -> Search[Found]:
    probe = yield from nodes.probe(subject, first, clock)
    units = tuple(probe.units.get(place, math.nan) for place in subject.places)
    found = Found(effect=probe.effect, node_units=units, why=(_describe_probe(probe),))
    precision = _precision(subject, probe)
    culprit = next((x for x in probe.suspects[:FOLLOWED] if not clock.over and subject.reaches(x.values)), None)
    if culprit is not None:
        found = replace(found, places=(culprit.place,), units=culprit.units, feeds=culprit.feeds)
        if precision:
            return replace(
                found, culprit=f"precision {precision}", why=(*found.why, f"most of its products are in {precision}")
            )
        alone = yield from windows.fails(subject, [culprit.place])
        if alone is False and not (yield from _errs(subject, culprit)):
            return (yield from _beside(subject, found, culprit, clock))
        return replace(found, culprit=f"node {subject.title(culprit.place)}", alone=alone)
    if _together(subject, probe):
        worst = max(probe.suspects, key=lambda x: x.units)
        told = f"nodes, {len(probe.suspects)} of them, the worst {subject.title(worst.place)}"
        why = (*found.why, "the errors of these nodes make it fail together, and none of them alone")
        return replace(found, culprit=told, places=(worst.place,), units=worst.units, feeds=worst.feeds, why=why)
    return (yield from _window(subject, found, clock))


def _errs(subject: Searched, suspect: Suspect) -> Search[bool]:
    """Whether a node errs as much by itself on the inputs that the backend gave it; where it does not run, it is believed to."""
    part, inputs, outputs = subject.piece([suspect.place])
    ran = yield Ask(part, {name: suspect.feeds[name] for name in inputs})
    if ran.outputs is None:
        return True
    judged = nodes.judge(subject, suspect.place, {**suspect.feeds, **dict(zip(outputs, ran.outputs))})
    return judged is None or judged.units > max(nodes.LIMIT, suspect.units / FURTHER)


def _beside(subject: Searched, found: Found, suspect: Suspect, clock: Clock) -> Search[Found]:
    """The window that fails where a node seems to err and, by itself on the very inputs, does not: what the backend gives as
    its inputs is not what it computes with, as where nodes are fused and tensors asked for are computed beside them."""
    why = f"{subject.title(suspect.place)} does not follow from the inputs that are given for it, and by itself it does"
    return (
        yield from _window(
            subject, Found(effect=found.effect, node_units=found.node_units, why=(*found.why, why)), clock
        )
    )


def _together(subject: Searched, probe: Probe) -> bool:
    """Whether the model fails if all suspects err as they did, and nothing else does."""
    return len(probe.suspects) > 1 and subject.reaches_all([x.values for x in probe.suspects])


def _window(subject: Searched, found: Found, clock: Clock) -> Search[Found]:
    window = yield from windows.shrink(subject, clock)
    places, tried = window.places, f"{window.tried} windows of the graph were run by themselves"
    span = f"{subject.name(places[0])}..{subject.name(places[-1])}"
    wide = len(places) > windows.WIDEST
    if wide and clock.over:  # not known: a smaller one may fail
        return replace(found, why=(*found.why, f"{tried}, until the time was over at {len(places)} nodes, {span}"))
    why = (*found.why, tried)
    if wide:
        why = (
            *why,
            f"none of up to {windows.WIDEST} nodes fails alone, and of {len(places)}, {span}, none can be left out",
        )
        if len(places) > windows.SHOWN:
            return replace(found, culprit="fusion", why=why)
    feeds = {name: subject.exact[name] for name in subject.piece(places)[1]}
    named = "fusion" if wide else f"window {span}" if len(places) > 1 else f"node {subject.title(places[0])}"
    return replace(found, culprit=named, places=tuple(places), alone=True, feeds=feeds, why=why)


def _describe_probe(probe: Probe) -> str:
    if not probe.effect:
        return f"with its tensors asked for, the model does not run: {probe.error}"
    effects = {
        "same": "asking for all tensors changes no bit of the outputs",
        "changed": "asking for all tensors changes the outputs, and they still fail",
        "healed": "asking for all tensors heals the model: what it does then is no evidence",
    }
    return effects[probe.effect]


def _precision(subject: Searched, probe: Probe) -> str:
    """What most products of the model are computed in, if that is coarser than asked; "" if it is not."""
    kinds = {place: subject.op(place) for place in probe.units}
    products = [place for place, kind in kinds.items() if nodes.multiplies(kind)]
    beyond: list[Suspect] = [x for x in probe.suspects if nodes.multiplies(kinds[x.place])]
    if len(beyond) < 2 or 2 * len(beyond) < len(products):
        return ""
    return Counter(nodes.coarser(subject, x) for x in beyond).most_common(1)[0][0]


def _setting(subject: Searched, found: Found, offered: Settings, clock: Clock) -> Search[Found]:
    """The setting of the backend that makes the difference takes the culprit's place. It is looked for with the culprit
    alone where that fails by itself, else with the whole model."""
    asked, wrong = Ask(), lambda ran: subject.fails(ran.outputs)
    if found.alone:
        part, _, outputs = subject.piece(found.places)
        asked = Ask(part, {name: subject.exact[name] for name in found.feeds})
        wrong = lambda ran: subject.reaches(dict(zip(outputs, ran.outputs)))  # noqa: E731
    name = yield from settings.blame(asked, wrong, offered, clock)
    if not name:
        return found
    return replace(found, culprit=name, why=(*found.why, *([f"at {found.culprit}"] if found.culprit else [])))
