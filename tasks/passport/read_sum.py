"""Reads one sum of a device: its tree, how its steps add, and whether that tells its results to the bit."""

from __future__ import annotations

import functools
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.model.dtypes import TABLE, get_numpy_dtype
from tasks.passport.adder import (
    FACTORS,
    FORMATS,
    PRODUCTS,
    ROUNDINGS,
    SumAdder,
    confirm_adder,
    measure_adder,
    measure_adder_ends,
)
from tasks.passport.device_sum import ORDER_ALONE, Apart, DeviceSum, NotReadable, Question
from tasks.passport.predict_sum import SumModel
from tasks.passport.reveal_positive_tree import reveal_positive_tree
from tasks.passport.reveal_tree import reveal_sum_tree
from tasks.passport.sum_reading import NodeRule, SumReading
from tasks.passport.sum_trees import (
    Tree,
    TreeKind,
    decode_tree,
    drop_tree_terms,
    encode_tree,
    list_tree_nodes,
    list_tree_terms,
    make_tree_of_kind,
    name_tree_kind,
    order_tree,
)

#: Inputs that are drawn to tell models apart, how many of those the device is asked, and unseen ones that the model is
#: tried on.
DRAWN, TRIED, UNSEEN = 256, 24, 100
#: How often models that give as many results as each other are told apart by further ones.
ROUNDS = 3
#: Unseen inputs of a sum that is taken to add as one that is known.
UNSEEN_ALIKE = 50
#: Unseen inputs that a model is tried on besides where it does not give all results, and most of a share of them that
#: it may not give then.
MORE, DOUBTED = 200, 0.05
#: Unseen results of each sum that is asked beside another one: fewer tell that it adds alike.
TOLD = 8
#: Levels of Python's calls for a term: a sequence of n terms is a tree of n levels.
LEVELS = 4
#: Where a bias is added.
THEN_BIAS, FROM_BIAS, BIAS_WITHIN = "then the bias", "from the bias", "the bias within"


def make_sum_model(reading: SumReading, output: str, products: int) -> SumModel:
    """The model that was read. Raises ValueError where none was."""
    if reading.bits is None:
        raise ValueError(f"{reading.where}: no model was read: {reading.words}")
    pairs = zip((reading.others or ())[::2], (reading.others or ())[1::2])
    others = {k: replace(reading.rule, bits=bits) for k, bits in pairs}
    fused = tuple(reading.fused or ())
    adder = SumAdder(reading.rule, others, fused, taken=reading.taken or 0, taking=reading.taking or "")
    return SumModel(decode_tree(reading.tree or ()), adder, output, reading.finish or "", products)


def read_device_sum(
    device: DeviceSum, rows: int | None = None, likes: Sequence[SumReading] = (), seed: int = 0, unseen: int = UNSEEN
) -> SumReading:
    """The reading of one sum, and what it cost; what cannot be read says why. likes: of other sums of the device, the
    likeliest first: this one is taken to add as one of them, where its order and one step of it agree and unseen
    results tell that this is so. Raises Apart where the device's sums do not add alike."""
    began = time.process_time()
    sys.setrecursionlimit(max(sys.getrecursionlimit(), LEVELS * device.count + 1000))
    found = _read_device_sum(device, rows, likes, seed, unseen)
    if not found.known or (found.bits or 0) > (TABLE[device.output].digits or 0) + 1:
        device.compare()  # each of two orders may be one that can be read; results of few bits do not tell them apart
    return replace(found, calls=device.calls, cpu_ms=1000 * (time.process_time() - began))


def read_sums_alike(
    make: Callable[[Sequence[int], bool], DeviceSum],
    besides: Sequence[Sequence[int]],
    rows: int | None,
    likes: Sequence[SumReading],
    unseen: int = UNSEEN,
) -> tuple[SumReading, Sequence[int]]:
    """The reading of a sum, and which others add alike: the first of ``besides`` of which all do, the last of which are
    none. make: the sum beside others, by their numbers, and whether each question is put to all of them, as it is to
    all but the first of ``besides``."""
    calls, cpu_ms = 0, 0.0
    for k, beside in enumerate(besides):
        began, device = time.process_time(), make(beside, k > 0)
        try:
            found = read_device_sum(device, rows, likes, unseen=unseen)
            return replace(found, calls=calls + device.calls, cpu_ms=cpu_ms + (found.cpu_ms or 0.0)), beside
        except Apart:
            calls += device.calls
            cpu_ms += 1000 * (time.process_time() - began)
    raise ValueError("besides: the last has to be empty: a sum alone has none that differs from it")


def _read_device_sum(
    device: DeviceSum, rows: int | None, likes: Sequence[SumReading], seed: int, unseen: int
) -> SumReading:
    terms = device.terms
    known: dict[str, Any] = {
        "where": terms.where,
        "part": terms.part,
        "rows": terms.rows or rows,
        "terms": device.count,
        "made_of": terms.of or name_sum_terms(device.weighted, terms.divided),
    }
    guesses = _list_tree_guesses(device, likes)
    if terms.of:
        return _read_tree_order(device, known, guesses, seed)
    rng = np.random.default_rng(seed)
    try:
        for tried in (guesses, []):
            tree, _ = reveal_sum_tree(device, random.Random(seed), tried, _can_sums_tell_orders(device, likes))
            kind, where = _name_tree_order(tree, device.count - 1 if terms.alone else None)
            known |= {
                "tree": tuple(encode_tree(tree)),
                "kind": f"{kind}, {where}" if where else str(kind),
                "kind_code": kind.code,
                "size": kind.size or None,
            }
            few = min(unseen, max(UNSEEN_ALIKE, TOLD * device.width))
            alike = next((models for like in likes if (models := _list_models_alike(device, tree, like))), [])
            if alike:
                found = _finish_sum_reading(known, *_choose_sum_model(device, alike, few, rng))
                if found.known:
                    return found
            if tree not in tried:
                break
        adder = measure_adder(device, tree)
    except NotReadable as error:
        return SumReading(**known, code=error.code, words=str(error))
    finishes = ("divide", "reciprocal") if device.terms.divided else ("",)
    models = [
        SumModel(tree, one, device.output, finish, device.terms.products)
        for finish in finishes
        for one in _list_unseen_adders(adder, tree)
    ]
    return _finish_sum_reading(known, *_choose_sum_model(device, models, unseen, rng))


def name_sum_terms(products: bool, divided: bool) -> str:
    """What a sum is of, and whether it is divided by their number: sums of the same name are made by the same
    kernels."""
    return f"{'products' if products else 'terms'}{', divided' * divided}"


def _can_sums_tell_orders(device: DeviceSum, likes: Sequence[SumReading]) -> bool:
    """Whether unseen results can tell orders apart: those of a dtype with fewer bits than the sum hide them."""
    digits = TABLE[device.dtype].digits or 0
    return all((x.bits or 0) <= digits + 1 for x in likes)


def _list_tree_guesses(device: DeviceSum, likes: Sequence[SumReading]) -> list[Tree]:
    """The trees that a sum has if its order is called as one of those that are known."""
    products, alone = device.terms.products, bool(device.terms.alone)
    made = (_make_tree_guess(x.tree, products, alone) for x in likes if x.tree is not None)
    return list(dict.fromkeys(x for x in made if x is not None))


@functools.lru_cache(maxsize=1024)
def _make_tree_guess(parents: tuple[int, ...], products: int, alone: bool) -> Tree | None:
    """The tree of so many products, and a bias where one is ``alone``, whose order is called as that of a tree as
    `encode_tree` has it; None where that does not say how it adds so many."""
    tree = decode_tree(parents)
    count = len(list_tree_terms(tree))
    if count == products + alone:
        return tree
    parts: list[Tree] = list(range(products))
    kind, where = _name_tree_order(tree, count - 1 if alone else None)
    if where == FROM_BIAS:
        parts[0] = (0, products)
    made = make_tree_of_kind(kind, parts) if where != BIAS_WITHIN else None
    if made is None:
        return None
    return order_tree((made, products) if where == THEN_BIAS else made)


def _list_models_alike(device: DeviceSum, tree: Tree, like: SumReading) -> list[SumModel]:
    """The models of a sum that adds as one that is known; none where a step says that it does not."""
    products, fused = device.terms.products, len(like.fused or ())
    if not like.known:
        return []
    if like.tree == tuple(encode_tree(tree)):
        model = make_sum_model(like, device.output, products)
        return [replace(model, adder=measure_adder_ends(device, model.adder, tree))]
    if like.others or like.taken or 0 < fused < like.terms - 1:
        return []
    rule = like.rule
    adder = confirm_adder(device, tree, rule, fused > 0)
    return [SumModel(tree, adder, device.output, like.finish or "", products)] if adder is not None else []


def _finish_sum_reading(known: Mapping[str, Any], model: SumModel, right: int, unseen: int) -> SumReading:
    """The reading of a sum whose order is known, of the model of it and how many unseen results that gave."""
    adder, rule = model.adder, model.adder.rule
    found = SumReading(
        **known,
        bits=rule.bits,
        accumulator=adder.accumulator,
        rounding=rule.rounding,
        aligned=rule.aligned,
        alignment=rule.alignment,
        exponents=rule.exponents,
        others=tuple(n for k, x in sorted(adder.others.items()) if x != rule for n in (k, x.bits)),
        fused=adder.fused,
        finish=model.finish,
        taken=adder.taken,
        taking=adder.taking,
        flushes_inputs=adder.flushes[0],
        flushes_results=adder.flushes[1],
        specials=adder.specials,
        overflow=adder.overflow,
        predicted=right,
        unseen=unseen,
    )
    if found.known:
        return found
    words = f"its tree and its adder give {right} of {unseen} results on unseen inputs to the bit"
    return replace(found, code="not predicted", words=words)


def _read_tree_order(device: DeviceSum, known: dict[str, Any], guesses: Sequence[Tree], seed: int) -> SumReading:
    """What can be read of a sum of which the op makes and takes more than is known: its order, and of terms that are
    never negative the bits that it keeps."""
    rng = random.Random(seed)
    try:
        if device.terms.positive:
            tree, bits, rounding = reveal_positive_tree(device, rng, guesses)
            known |= {"bits": bits, "rounding": rounding, "accumulator": FORMATS.get(bits, "")}
        else:
            tree, _ = reveal_sum_tree(device, rng, guesses)
    except NotReadable as error:
        return SumReading(**known, code=error.code, words=str(error))
    kind = name_tree_kind(tree)
    words = f"the sum is of {device.terms.of}, and no model has what else the op does: its results are not predicted"
    return SumReading(
        **known,
        code=ORDER_ALONE,
        words=words,
        tree=tuple(encode_tree(tree)),
        kind=str(kind),
        kind_code=kind.code,
        size=kind.size or None,
    )


def _list_unseen_adders(adder: SumAdder, tree: Tree) -> list[SumAdder]:
    """The adder with each of its rules for the last step, whose own is not seen: no step comes after it that would take
    a large number away again; with each way to tell the largest term of a step, which shows in no power of two, and
    with each in which factors lose digits."""
    last = sum(1 for _ in list_tree_nodes(tree)) - 1
    rules = dict.fromkeys([adder.others.get(last, adder.rule), adder.rule, *adder.others.values()])
    found = [replace(adder, others={**adder.others, last: rule}) for rule in rules]
    if adder.taken:
        found = [replace(one, taking=taking) for one in found for taking in dict.fromkeys(ROUNDINGS.values())]
    if not any(rule.aligned for rule in rules):
        return found
    return [_align_adder_by(one, exponents) for one in found for exponents in (PRODUCTS, FACTORS)]


def _align_adder_by(adder: SumAdder, exponents: str) -> SumAdder:
    """The adder whose steps of several terms tell the largest one so."""

    def align(rule: NodeRule) -> NodeRule:
        return replace(rule, exponents=exponents if rule.aligned else "")

    return replace(adder, rule=align(adder.rule), others={k: align(rule) for k, rule in adder.others.items()})


def _name_tree_order(tree: Tree, bias: int | None) -> tuple[TreeKind, str]:
    """What the order is called, and where a bias, whose number this is, comes into it, in words."""
    body = drop_tree_terms(tree, frozenset([bias])) if bias is not None else None
    if body is None or not isinstance(tree, tuple):
        return name_tree_kind(tree), ""
    holder = next(node for node in list_tree_nodes(tree) if bias in node)
    return name_tree_kind(body), THEN_BIAS if holder is tree else FROM_BIAS if 0 in holder else BIAS_WITHIN


def draw_sum_terms(device: DeviceSum, draws: int, rng: np.random.Generator) -> list[Question]:
    """Normal values of the sum's terms that its dtype holds, so many times. Those that one call can put have the same
    right factors where it needs them to."""
    kind = get_numpy_dtype(device.dtype)

    def draw() -> np.ndarray:
        return np.asarray(rng.standard_normal(device.count).astype(kind).astype(np.float64))

    drawn: list[Question] = []
    right = None
    for k in range(draws):
        if device.weighted and not (device.shares_right and k % device.width):
            right = draw()
            right[device.terms.products :] = 1.0
        drawn.append((draw(), right))
    return drawn


def _choose_sum_model(
    device: DeviceSum, models: Sequence[SumModel], unseen: int, rng: np.random.Generator
) -> tuple[SumModel, int, int]:
    """(the model that gives most of some results on which they disagree, how many of unseen ones it gives, how many
    those are)."""
    chosen = models[0]
    if len(models) > 1:
        drawn = _stack_drawn_terms(device, draw_sum_terms(device, DRAWN, rng))
        left, right = drawn
        best = [(model, model.compute(*drawn)) for model in models]
        for _ in range(ROUNDS):  # those that are equally good on some results may differ on others
            apart = np.flatnonzero(~np.logical_and.reduce([_have_equal_bits(x, best[0][1]) for _, x in best]))[:TRIED]
            if not apart.size:
                break
            found = device.add_each([(left[k], None if right is None else right[k]) for k in apart])
            given = [int(_have_equal_bits(x[apart], found).sum()) for _, x in best]
            best = [(model, x) for (model, x), n in zip(best, given) if n == max(given)]
        chosen = best[0][0]
    given_of = _try_unseen_sums(device, chosen, unseen, rng)
    if 0 < unseen - given_of <= DOUBTED * unseen:  # near to what is called known: more of them tell on which side it is
        given_of += _try_unseen_sums(device, chosen, MORE, rng)
        unseen += MORE
    return chosen, given_of, unseen


def _try_unseen_sums(device: DeviceSum, model: SumModel, unseen: int, rng: np.random.Generator) -> int:
    """How many of so many unseen results a model gives. Raises Apart where it does not give one that a sum of the
    device gives otherwise than another one."""
    new = draw_sum_terms(device, unseen, rng)
    right = _have_equal_bits(model.compute(*_stack_drawn_terms(device, new)), device.add_each(new))
    for k in np.flatnonzero(~right)[:TOLD] if device.width > 1 else ():
        device.add(*new[k])
    return int(right.sum())


def _stack_drawn_terms(device: DeviceSum, drawn: Sequence[Any]) -> tuple[np.ndarray, np.ndarray | None]:
    """Left factors [draws, count] and right ones, None where terms are no products."""
    return np.stack([x for x, _ in drawn]), np.stack([x for _, x in drawn]) if device.weighted else None


def _have_equal_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))
