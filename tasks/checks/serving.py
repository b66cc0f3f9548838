"""The check serving: an engine gives the same logits whichever way it takes for the same requests, and float64's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tasks.arrays.tree import decode
from tasks.checks.base import FindBeyond, Observation, Scenario
from tasks.checks.engine_relations import RELATIONS
from tasks.checks.engine_sampling import OP, measure_deviation
from tasks.checks.same import APART, difference
from tasks.model import Form, Leaf, Program, Session, Status, Unsupported, np_dtype
from tasks.model.engine import Decoder, Engine, EngineSession, Requests, Sampling, ServedModel
from tasks.model.kind import KIND_DISTRIBUTION, KIND_RELATION


class Serving(Scenario):
    """The op names the relation. The logits of one way are held to those of the usual one, in units of the float64 floor of the same requests:
    an engine that computes another function whichever way it takes fails against float64 alone (the op ``float64``).

    What is the same to the byte has 0 in the column apart_units; nobody promises it.
    """

    name = "serving"
    about = "an engine gives the same logits in batches, in chunks, with other caches …, and those of float64"
    lacking = "no engine serves it: the catalog engine has what is served"
    prepared = True
    forms = ("engine",)

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        opened: EngineSession = session  # type: ignore[assignment]
        name = form.op.partition(":")[2]
        if is_of_sampler(form):
            logits, shares = form.arrays
            yield Observation(name, [measure_deviation(opened.engine, logits, shares, sampling_of(form))])
            return
        relation, requests = RELATIONS[name], requests_of(form)
        engine, usual = _watch(opened.engine, form), None
        if relation.usual is not None:
            usual = _split(relation.usual(engine, requests), form)
            yield Observation("the usual way", usual[:1], judged=False)
        if relation.compiled:
            engine = _watch(opened.load(compiled=True), form)
        found = _split(relation.way(engine, requests), form)
        logits, heads = found[:1], found[1:]
        if usual is None:
            inside = Observation(name, heads, part=(1, 2)) if heads else None
            yield Observation("cached decoding" if name == "float64" else name, logits, part=(0, 1), inside=inside)
            return
        apart = difference(usual[:1], logits)
        units = 0.0 if apart is None else apart.units
        program.columns = program.columns | {APART: units}
        inside = Observation(name, heads, part=(1, 2), held_to=usual[1:]) if heads else None
        yield Observation(name, logits, part=(0, 1), held_to=usual[:1], apart=units, inside=inside)

    def name_fault(
        self, seen: Sequence[Observation], statuses: Sequence[Status], expected: Sequence[Leaf], find_beyond: FindBeyond
    ) -> tuple[str, str]:
        """The first token that is off, of several prompts in that with the fewest tokens before it."""
        (one,) = seen
        if one.name == OP:
            rows = find_beyond(one)[0].size
            said = f"tokens are drawn from another distribution in {rows} of {np.size(one.outputs[0])} rows of logits"
            return (KIND_DISTRIBUTION, said) if rows else ("", "")
        shape = np.shape(one.outputs[0])
        if len(shape) != 3 or shape != expected[0].shape or not (places := find_beyond(one)[0]).size:
            return "", ""
        off = {(int(step), int(prompt)) for prompt, step, _ in zip(*np.unravel_index(places, shape))}
        step, prompt = min(off)
        kind, against = ("numbers", "float64") if one.held_to is None else (KIND_RELATION, "the usual way")
        words = f"{one.name} differs from {against} in {len(off)} of {shape[0] * shape[1]} tokens, first in token {step} behind prompt {prompt}"
        return kind, words + _locate_head(one, prompt, step, find_beyond)


def requests_of(form: Form) -> Requests:
    """The requests of a form of the catalog `engine`: its first arrays are tokens (prompts, longest), −1 behind a prompt's last, and the
    tokens that follow (prompts, steps)."""
    prompts, following = form.arrays[:2]
    return Requests(
        tuple(tuple(int(x) for x in row if x >= 0) for row in prompts),
        tuple(tuple(int(x) for x in row) for row in following),
    )


def model_of(form: Form) -> ServedModel:
    """What an engine is loaded with for a form: the arrays behind the requests are the weights."""
    said = decode(form.kwargs, lambda kind, node: node)
    decoder = Decoder(**said["decoder"])
    return ServedModel(decoder, form.dtype, dict(zip(decoder.weight_shapes(), form.arrays[2:], strict=True)))


def is_of_sampler(form: Form) -> bool:
    """Whether a form is of the op of samplers."""
    return form.op.partition(":")[2] == OP


def sampling_of(form: Form) -> Sampling:
    """How tokens are drawn, of a form of the op of samplers."""
    said = dict(decode(form.kwargs, lambda kind, node: node)["sampling"])
    return Sampling(**said | {"before": tuple(said["before"])})


def _watch(engine: Engine, form: Form) -> Engine:
    """The engine, watched inside where it shows that. Raises Unsupported where it gives no logits."""
    vocabulary = model_of(form).decoder.vocabulary
    sequence, logits = engine.prefill([vocabulary - 1])
    engine.free(sequence)
    if np.ndim(logits) != 2 or np.shape(logits)[-1] < vocabulary:
        shape = np.shape(logits) if isinstance(logits, np.ndarray) else type(logits).__name__
        raise Unsupported(
            f"the engine gives no logits: prefill of 1 token returned {shape}, not an array (1, {vocabulary})"
        )
    if watch := getattr(engine, "watch", None):
        watch()
    return engine


def _split(found: np.ndarray, form: Form) -> list[Any]:
    """Logits in the dtype under test, which an engine may have widened since, and what the heads gave where it is there, as expected."""
    decoder, dtype = model_of(form).decoder, np_dtype(form.dtype)
    parts = [found[..., : decoder.vocabulary]]
    if found.shape[-1] > decoder.vocabulary:
        heads = found[..., decoder.vocabulary :]
        parts.append(heads.reshape(*found.shape[:-1], decoder.layers, decoder.heads, decoder.head_width))
    return [np.ascontiguousarray(x).astype(dtype, copy=True) for x in parts]


def _locate_head(seen: Observation, prompt: int, step: int, find_beyond: FindBeyond) -> str:
    """In words, the first layer in which what a head gives for a token is off, and the heads there; "" where nobody looked inside."""
    if seen.inside is None:
        return ""
    shape = np.shape(seen.inside.outputs[0])
    off = [at[2:4] for at in zip(*np.unravel_index(find_beyond(seen.inside)[0], shape)) if at[:2] == (prompt, step)]
    if not off:
        return ", behind the heads of all layers"
    layer = min(int(at[0]) for at in off)
    heads = sorted({int(head) for at, head in off if at == layer})
    return f", there in layer {layer}, head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}"
