"""The check serving: an engine gives the same logits whichever way it takes for the same requests, and float64's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tasks.arrays.tree import decode_argument_tree
from tasks.checks import engine_answers, engine_greedy, engine_sampling
from tasks.checks.base import FindBeyond, Observation, Scenario
from tasks.checks.engine_relations import RELATIONS, Way
from tasks.checks.same_bytes import APART, find_byte_difference
from tasks.model import Form, Leaf, Program, Session, Status, Unsupported, get_numpy_dtype
from tasks.model.engine import Decoder, Engine, EngineSession, Requests, Sampling, ServedModel
from tasks.model.kind import KIND_DISTRIBUTION, KIND_RELATION
from tasks.older_python import zip_equal

#: Which of a case's expected outputs are logits, what heads and layers give, and logarithms of probabilities (the
#: catalog `engine`).
LOGITS, INSIDE, LOGPROBS = (0, 1), (1, 2), (2, 3)
#: What each op of the catalog `engine` compares, by name.
ABOUT = {name: one.about for name, one in RELATIONS.items()} | {
    engine_greedy.OP: engine_greedy.ABOUT,
    engine_answers.OP: engine_answers.ABOUT,
    engine_sampling.OP: engine_sampling.ABOUT,
}
#: Ways that relations hold others to.
USUAL = frozenset(one.usual for one in RELATIONS.values())
#: Ways of how many requests are kept.
KEPT = 16


class Serving(Scenario):
    """The op names the relation. The logits of one way are held to those of the usual one, in units of the float64
    floor of the same requests: an engine that computes another function whichever way it takes fails against float64
    alone (the op ``float64``).

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
            yield Observation(name, [_measure_engine_sampler(opened, form)])
            return
        if getattr(opened.engine, "weights_unknown", False) and not is_of_own_answers(form):
            raise Unsupported(
                f"nobody has the weights of what is served (decoder: unknown): only its own answers are judged, engine:{engine_answers.OP}"
            )
        if is_of_own_answers(form):
            yield Observation(name, [_measure_own_answers(opened, form)])
            return
        if name == engine_greedy.OP:
            yield Observation(
                name,
                [
                    engine_greedy.measure_greedy_choices(
                        opened.engine, read_engine_requests(form), read_served_model(form)
                    )
                ],
            )
            return
        relation, requests = RELATIONS[name], read_engine_requests(form)
        engine, usual = _watch_engine(opened.engine, form), None
        if relation.usual is not None:
            once = relation.usual is not relation.way or relation.compiled or relation.ranks > 1
            asked = _ask_engine_once(opened, engine, relation.usual, form) if once else relation.usual(engine, requests)
            usual = _split_logits_and_taps(asked, form)
            yield Observation("the usual way", usual[:1], judged=False)
        if relation.compiled or relation.ranks > 1:
            engine = _watch_engine(opened.load(relation.compiled, relation.ranks), form)
        asked = (
            _ask_engine_once(opened, engine, relation.way, form) if usual is None else relation.way(engine, requests)
        )
        found = _split_logits_and_taps(asked, form)
        logits, layers = found[:1], found[1:]
        said: dict[str, Any] = {"part": LOGITS}
        if getattr(engine, "gives_logprobs", False):
            both = [logits[0]] if usual is None else [logits[0], usual[0]]
            present = _find_tokens_in_all(both)
            for x in both:
                x[~present] = np.nan
            said = {"part": LOGPROBS, "present": [present]}
        if usual is None:
            inside = Observation(name, layers, part=INSIDE) if layers else None
            yield Observation("cached decoding" if name == "float64" else name, logits, inside=inside, **said)
            return
        apart = find_byte_difference(usual[:1], logits)
        units = 0.0 if apart is None else apart.units
        program.columns = program.columns | {APART: units}
        inside = Observation(name, layers, part=INSIDE, held_to=usual[1:]) if layers else None
        yield Observation(name, logits, held_to=usual[:1], apart=units, inside=inside, **said)

    def name_fault(
        self, seen: Sequence[Observation], statuses: Sequence[Status], expected: Sequence[Leaf], find_beyond: FindBeyond
    ) -> tuple[str, str]:
        """The first token that is off, of several prompts in that with the fewest tokens before it."""
        (one,) = seen
        if one.name == engine_sampling.OP:
            rows = find_beyond(one)[0].size
            said = f"tokens are drawn from another distribution in {rows} of {np.size(one.outputs[0])} rows of logits"
            return (KIND_DISTRIBUTION, said) if rows else ("", "")
        if one.name == engine_answers.OP:
            return _name_first_token_off(one, find_beyond)
        if one.name == engine_greedy.OP:
            prompt, step = (
                divmod(int(places[0]), np.shape(one.outputs[0])[1]) if (places := find_beyond(one)[0]).size else (0, 0)
            )
            said = (
                f"{places.size} tokens that float64 would not choose, or not from these logarithms, by more than its margin, the furthest token {step} "
                f"behind prompt {prompt}"
            )
            return ("numbers", said) if places.size else ("", "")
        shape = np.shape(one.outputs[0])
        if len(shape) != 3 or shape != expected[0].shape or not (places := find_beyond(one)[0]).size:
            return "", ""
        off = {(int(step), int(prompt)) for prompt, step, _ in zip(*np.unravel_index(places, shape))}
        step, prompt = min(off)
        kind, against = ("numbers", "float64") if one.held_to is None else (KIND_RELATION, "the usual way")
        words = f"{one.name} differs from {against} in {len(off)} of {shape[0] * shape[1]} tokens, first in token {step} behind prompt {prompt}"
        return kind, words + _locate_engine_layer(one, prompt, step, find_beyond)


def read_engine_requests(form: Form) -> Requests:
    """The requests of a form of the catalog `engine`: its first arrays are tokens (prompts, longest), −1 behind a
    prompt's last, and the tokens that follow (prompts, steps)."""
    prompts, following = form.arrays[:2]
    return Requests(
        tuple(tuple(int(x) for x in row if x >= 0) for row in prompts),
        tuple(tuple(int(x) for x in row) for row in following),
    )


def read_served_model(form: Form) -> ServedModel:
    """What an engine is loaded with for a form: the arrays behind the requests are the weights."""
    said = decode_argument_tree(form.kwargs, lambda kind, node: node)
    decoder = Decoder(**said["decoder"])
    return ServedModel(decoder, form.dtype, dict(zip_equal(decoder.weight_shapes(), form.arrays[2:])))


def is_of_sampler(form: Form) -> bool:
    """Whether a form is of the op of samplers."""
    return form.op.partition(":")[2] == engine_sampling.OP


def read_engine_sampling(form: Form) -> Sampling:
    """How tokens are drawn, of a form of the op of samplers."""
    said = dict(decode_argument_tree(form.kwargs, lambda kind, node: node)["sampling"])
    return Sampling(**said | {"before": tuple(said["before"])})


def read_engine_way(form: Form) -> str:
    """The way of a form of the op of own answers."""
    return str(decode_argument_tree(form.kwargs, lambda kind, node: node)["way"])


def is_of_own_answers(form: Form) -> bool:
    """Whether a form is of the op for which nobody has to know an engine's weights."""
    return form.op.partition(":")[2] == engine_answers.OP


def _measure_engine_sampler(session: EngineSession, form: Form) -> np.ndarray:
    engine, (logits, shares) = session.engine, form.arrays
    if not getattr(engine, "draw", None):
        return engine_sampling.measure_sampling_deviation(engine, logits, shares, read_engine_sampling(form))
    return engine_sampling.measure_own_deviation(engine, engine.vocabulary, read_engine_sampling(form), len(logits))


def _measure_own_answers(session: EngineSession, form: Form) -> np.ndarray:
    requests, engine = read_engine_requests(form), session.engine
    if not getattr(engine, "answer", None):
        _refuse_without_logits(engine, read_served_model(form).decoder.vocabulary)
    steps = len(requests.following[0])
    found = engine_answers.measure_engine_answers(
        engine, read_engine_way(form), requests.prompts, steps, form.dtype, session.kept
    )
    return found


def _name_first_token_off(seen: Observation, find_beyond: FindBeyond) -> tuple[str, str]:
    """The first token at which a way's answer differs from the usual one, of several prompts in that with the fewest
    tokens before it."""
    shape = np.shape(seen.outputs[0])
    off = sorted((step, prompt) for prompt, step in zip(*np.unravel_index(find_beyond(seen)[0], shape)))
    if not off:
        return "", ""
    step, prompt = off[0]
    said = f"the engine answers otherwise than it does to each prompt alone, in {len(off)} tokens, first in token {step} behind prompt {prompt}"
    return KIND_RELATION, said


def _find_tokens_in_all(both: Sequence[np.ndarray]) -> np.ndarray:
    """Of which tokens there is a logarithm in all of some arrays (prompts, steps, vocabulary). Raises Unsupported where
    a step has none."""
    present = np.logical_and.reduce([~np.isnan(np.asarray(x, np.float32)) for x in both])
    if not present.any(-1).all():
        none = int((~present.any(-1)).sum())
        raise Unsupported(
            f"the engine gives no logarithms behind {none} of {present[..., 0].size} tokens: does it echo prompts?"
        )
    return present


def _watch_engine(engine: Engine, form: Form) -> Engine:
    """The engine, watched inside where it shows that. Raises Unsupported where it gives no logits."""
    if watch := getattr(engine, "watch", None):
        watch()
    _refuse_without_logits(engine, read_served_model(form).decoder.vocabulary)
    return engine


def _refuse_without_logits(engine: Engine, vocabulary: int) -> None:
    sequence, logits = engine.prefill([vocabulary - 1])
    engine.free(sequence)
    if np.ndim(logits) != 2 or np.shape(logits)[-1] < vocabulary:
        shape = np.shape(logits) if isinstance(logits, np.ndarray) else type(logits).__name__
        raise Unsupported(
            f"the engine gives no logits: prefill of 1 token returned {shape}, not an array (1, {vocabulary})"
        )


def _split_logits_and_taps(found: np.ndarray, form: Form) -> list[Any]:
    """Logits in the dtype under test, which an engine may have widened since, and what heads and layers gave where it
    is there, as expected."""
    decoder, dtype = read_served_model(form).decoder, get_numpy_dtype(form.dtype)
    parts = [found[..., : decoder.vocabulary]]
    if found.shape[-1] > decoder.vocabulary:
        layers = found[..., decoder.vocabulary :]
        parts.append(layers.reshape(*found.shape[:-1], decoder.layers, 2, decoder.heads, decoder.head_width))
    return [np.ascontiguousarray(x).astype(dtype, copy=True) for x in parts]


def _ask_engine_once(session: EngineSession, engine: Engine, way: Way, form: Form) -> np.ndarray:
    """What a way gives: asked once where several relations of a form's requests are held to it. Where a relation asks
    the same way twice, what has happened to the engine in between is what it is about, and neither is kept."""
    if way not in USUAL:
        return way(engine, read_engine_requests(form))
    digest = hashlib.sha256(repr((form.dtype, form.kwargs)).encode())
    for x in form.arrays:
        digest.update(np.ascontiguousarray(x).tobytes())
    key = way, digest.digest()
    if key not in session.kept:
        while len(session.kept) >= KEPT:
            del session.kept[next(iter(session.kept))]
        session.kept[key] = way(engine, read_engine_requests(form))
    return session.kept[key]


def _locate_engine_layer(seen: Observation, prompt: int, step: int, find_beyond: FindBeyond) -> str:
    """In words, the first layer of which something is off for a token: its heads, or what it makes of them; "" where
    nobody looked inside."""
    if seen.inside is None:
        return ""
    shape = np.shape(seen.inside.outputs[0])
    off = [at[2:5] for at in zip(*np.unravel_index(find_beyond(seen.inside)[0], shape)) if at[:2] == (prompt, step)]
    if not off:
        return ", behind all layers"
    layer, behind = min((int(at[0]), int(at[1])) for at in off)
    if behind:
        return f", there in layer {layer}, behind its heads"
    heads = sorted({int(head) for at, part, head in off if (at, part) == (layer, 0)})
    return f", there in layer {layer}, head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}"
