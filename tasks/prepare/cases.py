"""Prepared cases: inputs, reference, noise floor and exported forms, made once and kept by content on disk."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks import catalogs, checks, counterparts, sources
from tasks.arrays import held
from tasks.arrays.noise import DRAWS
from tasks.arrays.pack import Pack, PackError, Written, save
from tasks.arrays.tree import NotEncodable, TensorSpec, contiguous, decode, encode_tensor, spec_of, tensor_specs
from tasks.catalogs.base import CANDIDATES, Failure, Sample
from tasks.graphs import program as programs
from tasks.judge import verdict
from tasks.judge.policy import GROSS
from tasks.judge.prepared import (
    bfloat16_would_pass,
    common_constant,
    compare_oracles,
    constant_would_pass,
    excused,
    others_would_pass,
    smaller_would_pass,
    weak_threshold,
    zero_would_pass,
)
from tasks.model import Form, Group, Invalid, Leaf, OpClass, Oracle, Unsupported, Vacuous, is_complex, is_inexact
from tasks.prepare import derived, products
from tasks.prepare.ranked import ranked


def key(group: Group, draws: int = DRAWS, bad: dict[int, Failure] | None = None) -> str:
    """Content key of a prepared group. ``bad``: samples known to kill the preparer (see `prepare`).

    What is only built has the samples of the forward check, and shares their pack.
    """
    group = _sampled(group)
    catalog = catalogs.get(group.catalog)
    own = catalog.group_version(group)
    parts = [
        sources.of_cases(type(catalog).__module__),
        _catalog_version(group.catalog),
        own,
        vars(group),
        draws,
        np.__version__,
    ]
    if bad:
        parts.append({str(k): asdict(v) for k, v in bad.items()})
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


def _sampled(group: Group) -> Group:
    """The group whose samples a group has."""
    check = checks.samples_of(group.check)
    return group if check == group.check else replace(group, check=check)


@functools.cache
def _catalog_version(name: str) -> str:
    return catalogs.get(name).version()


def is_prepared(group: Group, cache: Path, bad: dict[int, Failure] | None = None) -> bool:
    """Whether the cache has a group, as `prepare` looks for it."""
    return pack_path(cache, key(group, bad=bad or None)).exists()


def pack_path(cache: Path, key: str) -> Path:
    return Path(f"{cache}/cases/{key[:2]}/{key}.pack")  # taken apart once: for every group of a run


def form_path(cache: Path, key: str, form: str, exporter_version: str) -> Path:
    tag = hashlib.sha256(f"{key} {form} {exporter_version}".encode()).hexdigest()[:40]
    return cache / "forms" / tag[:2] / f"{tag}.pack"


def prepare(
    group: Group,
    cache: Path,
    draws: int = DRAWS,
    bad: dict[int, Failure] | None = None,
    started: Callable[[int], None] = lambda index: None,
) -> tuple[str, PreparedGroup]:
    """Make a group's samples, or take them from the cache. Returns (key, prepared group).

    ``bad`` holds samples that killed an earlier preparer: they are written as failures without being run.
    ``started(i)`` is called before the i-th sample is made. Raises OSError when the cache cannot be written.
    """
    name = key(group, draws, bad)
    path = pack_path(cache, name)
    try:
        return name, PreparedGroup(path)
    except FileNotFoundError:
        pass
    except PackError:
        path.unlink(missing_ok=True)  # cut short by a crash of the machine: made again
    group = _sampled(group)
    catalog = catalogs.get(group.catalog)
    catalog.load()

    def first() -> Sample:
        """The op's sample that a check derives its own of."""
        alone = prepare(replace(group, check=checks.FORWARD, samples=1), cache, draws, None, started)[1]
        return alone.samples[0].again()

    made = derived.samples(catalog, group, draws, bad or {}, first)
    written = save(path, *_collect(made, group, draws, bad or {}, started))
    return name, PreparedGroup(path, written=written)


def _collect(
    made: Iterator[Sample], group: Group, draws: int, bad: dict[int, Failure], started: Callable[[int], None]
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The header and the arrays of the pack of a group, whose samples are ``made``.

    Weak samples are left behind for strong ones that the catalog offers beyond the number asked for.
    """
    found: list[tuple[Sample, float]] = []
    shares: list[float] = []  # excused of each
    sound: list[bool] = []  # neither failed nor weak by itself
    single: list[int] = []  # those of one element
    strong: list[bool] = []
    place = 0
    while place < group.samples or (place < CANDIDATES * group.samples and _wanting(found, strong, group.samples)):
        started(place)
        begin = time.perf_counter()
        try:
            sample = next(made)
            sample.failure = bad.get(place, sample.failure)
            products.tell(sample, group, draws)
        except StopIteration:
            break
        except Exception as error:
            sample = Sample(-1, failure=Failure.of(error, "sample"))
            made = iter(())
        found.append((sample, (time.perf_counter() - begin) * 1e3))
        shares.append(_excused(sample, group))
        one = sample.failure is None and _one_element(sample)
        single += [place] * one
        sound.append(sample.failure is None and not _weak(sample, one) and (shares[-1] < GROSS or bool(sample.names)))
        place += 1
        if place >= group.samples:
            strong = _strong(found, sound, single)
    if len(strong) < len(found):
        strong = _strong(found, sound, single)
    strong = [good and not _loose(group, found[k][0], found[k - 1][0]) for k, good in enumerate(strong)]
    arrays: list[np.ndarray] = []
    models: dict[bytes | int, int] = {}
    records = []
    for k in _chosen(found, strong, group.samples):
        sample, milliseconds = found[k]
        record = _record(sample, arrays, models)
        record |= {"weak": not strong[k], "excused": shares[k], "prepare_ms": milliseconds}
        records.append(record)
    found_by_name = bool(arrays) and catalogs.get(group.catalog).is_public(group)
    return {"group": dict(vars(group)), "public": found_by_name, "samples": ranked(records)}, arrays


def save_alone(path: Path, group: Group, sample: Sample) -> None:
    """Write a pack of one sample that no catalog makes. Raises OSError."""
    arrays: list[np.ndarray] = []
    record = _record(sample, arrays, {}) | {"weak": False, "excused": 0.0, "prepare_ms": 0.0}
    save(path, {"group": dict(vars(group)), "public": False, "samples": [record]}, arrays)


def _strong(found: list[tuple[Sample, float]], sound: list[bool], single: list[int]) -> list[bool]:
    """Which samples are evidence: ``single``, those of one element, are not, if one constant would pass for all of them."""
    if any(sound[k] for k in single) and _one_constant_for_all([found[k][0] for k in single]):
        return [is_sound and k not in single for k, is_sound in enumerate(sound)]
    return list(sound)


def _wanting(found: list[tuple[Sample, float]], strong: list[bool], wanted: int) -> bool:
    """Whether a further candidate could take the place of a weak sample."""
    failed = sum(sample.failure is not None for sample, _ in found[:wanted])
    return failed + sum(strong) < wanted


def _chosen(found: list[tuple[Sample, float]], strong: list[bool], wanted: int) -> list[int]:
    """Places of the samples that are kept: what failed of those asked for, strong ones, then weak ones."""
    if len(found) <= wanted:
        return list(range(len(found)))
    failed = [k for k, (sample, _) in enumerate(found[:wanted]) if sample.failure]
    weak = [k for k, (sample, _) in enumerate(found) if not strong[k] and not sample.failure]
    return sorted((failed + [k for k, is_strong in enumerate(strong) if is_strong] + weak)[:wanted])


def _judged(sample: Sample) -> list[Leaf]:
    return sample.derived if sample.definition else sample.expected


def _weak(sample: Sample, one: bool) -> bool:
    """Whether a constant would pass as every output; of outputs of ``one`` element each, whether zero would."""
    if sample.op_class is OpClass.RANDOM and not sample.definition:
        return True  # nothing of its numbers is compared
    check = zero_would_pass if one else constant_would_pass
    return all(check(leaf, weak_threshold(leaf.dtype), sample.op_class) for leaf in _judged(sample))


def _excused(sample: Sample, group: Group) -> float:
    """What the default policy's limit excuses of every output, because rounding the inputs moves it; 0 of what is derived."""
    still = sample.op_class is not OpClass.MODEL and all(leaf.noise is None for leaf in sample.expected)
    if sample.failure or sample.definition or still:
        return 0.0
    limit = _default_policy().limit_value(group.label, sample.op_class.value, group.dtype)
    known = [leaf for leaf in sample.expected if leaf.reference is not None and leaf.reference.size]
    precision = checks.get(group.check).precision(group.dtype)
    shares = [excused(leaf, limit, sample.op_class, precision) for leaf in known] if limit else [0.0]
    # Of a training step's many outputs each is asked for.
    return sum(shares) / len(shares) if sample.names else min(shares, default=0.0)


@functools.cache
def _default_policy() -> verdict.Policy:
    return verdict.load("error_units")


def _loose(group: Group, sample: Sample, other: Sample) -> bool:
    """Whether a model's own outputs rounded to bfloat16, or those of another sample, would pass; of a training step those
    that are grossly smaller."""
    if sample.op_class is not OpClass.MODEL or sample.definition or sample.failure:
        return False
    how = (_default_policy(), group.label, group.dtype)
    if sample.names:
        return smaller_would_pass(sample.expected[1:], *how, checks.get(group.check).precision(group.dtype))
    exchanged = (
        other.arrays is not sample.arrays
        and other.failure is None
        and others_would_pass(sample.expected, other.expected, *how)
    )
    return exchanged or bfloat16_would_pass(sample.expected, *how)


def _one_element(sample: Sample) -> bool:
    leaves = _judged(sample)
    return bool(leaves) and all(leaf.reference is not None and leaf.reference.size == 1 for leaf in leaves)


def _one_constant_for_all(samples: list[Sample]) -> bool:
    """Whether one and the same constant per output would pass for all ``samples``, which have one element each."""
    counts = {len(_judged(s)) for s in samples}
    return len(counts) == 1 and all(
        common_constant(
            leaves := [_judged(s)[i] for s in samples], weak_threshold(leaves[0].dtype), samples[0].op_class
        )
        for i in range(min(counts))
    )


def _record(sample: Sample, arrays: list[np.ndarray], models: dict[bytes | int, int]) -> dict[str, Any]:
    """The JSON record of a sample; its arrays are appended to ``arrays``. models: where those of other samples are, an array by its
    id: the weights of a network are kept once."""

    def add(array: np.ndarray) -> int:
        arrays.append(array)
        return len(arrays) - 1

    whole = [*([] if sample.model is None else [sample.model]), *sample.files.values()]
    for content in whole:
        if content not in models:
            models[content] = add(np.frombuffer(content, dtype=np.uint8))
    for x in sample.state.values():
        if id(x) not in models:
            models[id(x)] = add(x)
    base = len(arrays)
    arrays.extend(sample.arrays)
    failure = sample.failure
    try:
        args, kwargs = sample.encoded()
    except NotEncodable as error:
        args, kwargs = [], {"$": "dict", "v": []}
        failure = failure or Failure.of(error, "store")
    specs = tensor_specs(args) + tensor_specs(kwargs)

    def leaf_record(leaf: Leaf) -> dict[str, Any]:
        return {
            "dtype": leaf.dtype,
            "shape": list(leaf.shape),
            "reference": None if leaf.reference is None else add(leaf.reference),
            "noise": None if leaf.noise is None else add(leaf.noise),
            "rtol": leaf.rtol,
            "atol": leaf.atol,
            "meaning": leaf.meaning,
            "of_products": None if leaf.of_products is None else add(leaf.of_products),
            "jumps": None if leaf.jumps is None else add(leaf.jumps),
            "kept": None if leaf.kept is None else add(leaf.kept),
            "shared": leaf.shared,
            "ties": None if leaf.ties is None else add(leaf.ties),
        }

    return {
        "sample": sample.index,
        "args": args,
        "kwargs": kwargs,
        "base": base,
        "inputs": len(sample.arrays),
        "expected": [leaf_record(leaf) for leaf in sample.expected],
        "oracle": sample.oracle,
        "op_class": sample.op_class.value,
        "definition": sample.definition,
        "derived": [leaf_record(leaf) for leaf in sample.derived],
        "on_device": [[dtype, list(shape)] for dtype, shape in sample.on_device],
        "others": [_oracle_record(oracle, sample, add) for oracle in sample.others],
        "coarse": {name: list(map(add, outputs)) for name, outputs in sample.coarse.items()},
        "uncast": list(map(add, sample.uncast)),
        "repeats": sample.repeats,
        "twins": sample.twins,
        "products": sample.products,
        **{name: list(getattr(sample, name)) for name in ("wrt", "cotangents", "names", "batched", "stepped")},
        "digest": _digest(sample),
        "shapes": " ".join("x".join(map(str, _shape(s, sample.arrays))) or "scalar" for s in specs),
        "model": None if sample.model is None else models[sample.model],
        "program": sample.program,
        "state": {name: models[id(x)] for name, x in sample.state.items()},
        "alike": sample.alike,
        "writes": sample.writes,
        "written": list(sample.written),
        "takes": sample.takes,
        "files": {form: models[content] for form, content in sample.files.items()},
        "ranks": list(map(list, sample.ranks)),
        "columns": sample.columns,
        "failure": None if failure is None else asdict(failure),
    }


def _oracle_record(oracle: Oracle, sample: Sample, add: Callable[[np.ndarray], int]) -> dict[str, Any]:
    """The record of a further oracle, with its distance to the first."""
    found = compare_oracles(oracle.references, sample.expected, sample.op_class, oracle.rounding)
    return {"name": oracle.name, "references": list(map(add, oracle.references)), "rounded": oracle.rounded, **found}


def _digest(sample: Sample) -> str:
    """SHA-256 of the bytes of the inputs and the model, or of what the module holds, first 16 hex digits."""
    digest = hashlib.sha256()
    for array in sample.arrays:
        digest.update(array.tobytes() if array.dtype.kind != "O" else repr(array.tolist()).encode())
    digest.update(sample.model or b"")
    digest.update(held.digest(sample.state).encode() if sample.state else b"")
    return digest.hexdigest()[:16]


def _kind(dtype: str) -> tuple[bool, bool]:
    """What two dtypes share whose numbers can be held against one reference."""
    return is_inexact(dtype), is_complex(dtype)


def _shape(spec: TensorSpec, arrays: list[np.ndarray]) -> tuple[int, ...]:
    return spec.shape if spec.shape is not None else arrays[spec.id].shape


class PreparedGroup:
    """A prepared group read from its pack; ``samples`` in the order in which they are chosen.

    check: what is to hold, if not what the pack was prepared for ("build" for those of "forward"); written: see `Pack`.
    """

    def __init__(self, path: str | os.PathLike[str], check: str = "", written: Written | None = None) -> None:
        self.pack = Pack(path, written)
        self.group = Group(**self.pack.header["group"])
        self.check = check or self.group.check
        self.samples = [PreparedSample(self, record) for record in self.pack.header["samples"]]
        self.columns = self.group.columns


@dataclass(frozen=True)
class PreparedSample:
    """One sample of a prepared group; arrays are read from the pack when asked for."""

    owner: PreparedGroup
    record: dict[str, Any]

    @property
    def index(self) -> int:
        return int(self.record["sample"])

    @property
    def failure(self) -> Failure | None:
        return Failure(**self.record["failure"]) if self.record["failure"] else None

    def inputs(self) -> list[np.ndarray]:
        """The stored arrays of the inputs, read-only."""
        base = self.record["base"]
        return [self.owner.pack.array(base + i) for i in range(self.record["inputs"])]

    @functools.cached_property
    def specs(self) -> list[TensorSpec]:
        """The tensors among the arguments, in their order."""
        return [*tensor_specs(self.record["args"]), *tensor_specs(self.record["kwargs"])]

    def tensors(self) -> list[np.ndarray]:
        """The values of `specs`, as they are laid out. Raises ValueError for one that is not strided."""
        if sparse := [spec.layout for spec in self.specs if spec.layout != "strided"]:
            raise ValueError(f"a tensor is {sparse[0]}")
        stored = self.inputs()
        return [contiguous(stored[spec.id], spec) for spec in self.specs]

    @functools.cached_property
    def op_class(self) -> OpClass:
        return OpClass(self.record["op_class"])

    def again(self) -> Sample:
        """The sample as its catalog made it, but for what only its own rows need."""
        record = self.record
        args, kwargs = (decode(record[name], lambda kind, node: spec_of(node)) for name in ("args", "kwargs"))
        return Sample(
            self.index,
            args,
            kwargs,
            arrays=self.inputs(),
            expected=self.expected(),
            op_class=self.op_class,
            definition=record["definition"],
            derived=self.derived(),
            on_device=[(dtype, tuple(shape)) for dtype, shape in record.get("on_device", ())],
            oracle=record["oracle"],
            others=[
                Oracle(x["name"], [self.owner.pack.array(i) for i in x["references"]], rounded=x["rounded"])
                for x in record["others"]
            ],
            repeats=record["repeats"],
            twins=record.get("twins", 0),
            model=self.graph(),
            state=self.state(),
            alike=record.get("alike", ""),
            writes=record.get("writes", False),
            written=tuple(record.get("written", ())),
            takes=record.get("takes", True),
            columns=record["columns"],
            failure=self.failure,
        )

    def on(self, device: str) -> PreparedSample:
        """The sample as torch's kernels for a device (`Backend.torch_device`, "" for the CPU) are to compute it.

        An output that has another shape there, or is none of the CPU's, has no reference: only its metadata is expected.
        """
        there = self.record.get("on_device")
        if not (device and there):
            return self
        here = self.record["expected"]
        made = []
        for place, (dtype, shape) in enumerate(there):
            known = here[place] if place < len(here) else {}
            alike = known and known["shape"] == shape and _kind(known["dtype"]) == _kind(dtype)
            unknown = dict.fromkeys(("reference", "noise", "rtol", "atol"))
            made.append((known if alike else unknown) | {"dtype": dtype, "shape": shape})
        others = self.record["others"] if len(made) == len(here) else []
        return replace(self, record=self.record | {"expected": made, "others": others, "on_device": []})

    def expected(self, of_products: bool = False) -> list[Leaf]:
        """What the outputs are to be. of_products: with the floor of products whose factors alone are coarser than the dtype."""
        found = [self._leaf(e) for e in self.record["expected"]]
        if not of_products:
            return found
        floors = [e.get("of_products") for e in self.record["expected"]]
        return [
            leaf if place is None else replace(leaf, of_products=self.owner.pack.array(place))
            for leaf, place in zip(found, floors)
        ]

    @property
    def products(self) -> bool:
        """Whether products are computed in it that a matrix unit may take coarser than the dtype."""
        return bool(self.record.get("products"))

    def derived(self) -> list[Leaf]:
        """What `tasks.judge.definitions` is to make of the outputs, for a sample with a definition."""
        return [self._leaf(e) for e in self.record["derived"]]

    def _leaf(self, e: dict[str, Any]) -> Leaf:
        pack = self.owner.pack
        return Leaf(
            e["dtype"],
            tuple(e["shape"]),
            None if e["reference"] is None else pack.array(e["reference"]),
            None if e["noise"] is None else pack.array(e["noise"]),
            e["rtol"],
            e["atol"],
            e.get("meaning", ""),
            jumps=None if e.get("jumps") is None else pack.array(e["jumps"]),
            kept=None if e.get("kept") is None else pack.array(e["kept"]),
            shared=e.get("shared"),
            ties=None if e.get("ties") is None else pack.array(e["ties"]),
        )

    def other(self, number: int, expected: list[Leaf], part: slice = slice(None)) -> list[Leaf]:
        """What is ``expected`` (those ``part`` of all outputs) as a further oracle has it, with the first one's noise floor,
        which nothing of another shape has."""
        found = map(self.owner.pack.array, self.record["others"][number]["references"][part])
        return [
            replace(leaf, reference=y)
            if y.shape == leaf.shape
            else Leaf(leaf.dtype, y.shape, y, None, leaf.rtol, leaf.atol, leaf.meaning)
            for leaf, y in zip(expected, found)
        ]

    def coarse(self) -> dict[str, list[np.ndarray]]:
        """Of a model, by precision: the outputs with its products' weights rounded to it."""
        found = self.record.get("coarse", {})
        return {name: [self.owner.pack.array(i) for i in places] for name, places in found.items()}

    def uncast(self) -> list[np.ndarray]:
        """Of a model that is no graph: the outputs without its casts to narrower dtypes; empty where it has none."""
        return [self.owner.pack.array(i) for i in self.record.get("uncast", ())]

    def state(self) -> dict[str, np.ndarray]:
        """The tensors that the module holds which is the torch form, by name; nothing where it is none of one's own."""
        return {name: self.owner.pack.array(k) for name, k in self.record.get("state", {}).items()}

    def graph(self) -> bytes | None:
        """The ONNX model that is the sample, None where it is none."""
        return None if (k := self.record["model"]) is None else bytes(self.owner.pack.array(k).tobytes())

    def form(self, kind: str, exported: Pack | None = None) -> Form:
        """The sample as a form. ``exported`` is the pack of exported forms where ``kind`` is not the catalog's own.

        Raises Invalid (the sample could not be prepared) or Unsupported (no such form, with the reason).
        """
        if (failure := self.failure) and not failure.raised:
            raise Invalid(failure.error)
        check = checks.installed(self.owner.check)
        if check.forms and kind not in check.forms:
            raise Unsupported(f"the {check.name} check is about the {' or '.join(check.forms)} form, not {kind}")
        return self._form(kind, exported)

    def _form(self, kind: str, exported: Pack | None = None) -> Form:
        """`form`, whatever the check is about: what a sample of it is held against may be another form."""
        group = self.owner.group
        catalog = catalogs.installed(group.catalog)
        form = Form(
            kind,
            group.op,
            group.dtype,
            self.inputs(),
            args=self.record["args"],
            kwargs=self.record["kwargs"],
            check=group.check if checks.installed(group.check).gradient else checks.FORWARD,
            wrt=tuple(self.record["wrt"]),
            cotangents=tuple(self.record["cotangents"]),
            batched=tuple(self.record.get("batched", ())),
            stepped=tuple(self.record.get("stepped", ())),
            also=self._form,
        )
        if kind in (files := self.record.get("files", {})):
            form.model = self.owner.pack.array(files[kind]).tobytes()
            inputs, outputs = self.record["ranks"]
            form.arrays, form.order = [form.arrays[inputs.index(k)] for k in range(len(inputs))], tuple(outputs)
        elif kind == "onnx" and self.record["model"] is not None:
            form.model = self.graph()
        elif kind == "torch" and (stored := self.record.get("program")):
            form.call = programs.read(stored)
        elif catalog is not None and kind in catalog.forms and kind != "onnx":  # of which the bytes are the form
            if form.check != group.check and not checks.installed(group.check).own_call:
                group = replace(group, check=form.check)  # what is computed, whatever is asked of it
            form.call = catalog.public(group) if self.owner.pack.header.get("public") else catalog.call(group)
            if self.record.get("alike"):
                self._given(form.call, self.state())
        elif form.check != checks.FORWARD:
            raise Unsupported(f"the {group.check} check needs a form that can be differentiated")
        elif (model := self.op_class is OpClass.MODEL and self.graph()) and kind in ("torch", *counterparts.FRAMEWORKS):
            form.model = model
        elif kind in counterparts.FRAMEWORKS:
            form.call = counterparts.counterpart(kind, group.op, group.variant, group.dtype)
        elif exported is not None and (catalog is None or kind in catalog.exports):
            made = exported.header["samples"].get(str(self.index))
            if made is not None and "bad" in made:
                raise Invalid(made["bad"])
            if made is None or "error" in made:
                raise Unsupported(made["error"] if made else f"the {kind} form was not exported")
            if "vacuous" in made:
                raise Vacuous(made["vacuous"])
            form.model = exported.array(made["model"]).tobytes()
            specs = tensor_specs(form.args) + tensor_specs(form.kwargs)
            form.batched = tuple(k for k, i in enumerate(made["inputs"]) if specs[i].id in form.batched)
            form.arrays = [contiguous(form.arrays[specs[i].id], specs[i]) for i in made["inputs"]]
            form.arrays = [a.view(a.real.dtype).reshape(*a.shape, 2) if a.dtype.kind == "c" else a for a in form.arrays]
            form.paired, form.invalid = tuple(made["paired"]), made.get("invalid", "")
            form.args = {"$": "tuple", "v": [encode_tensor(TensorSpec(i)) for i in range(len(specs))]}
        else:
            there = "" if catalog is not None else ": its package is not installed in the backend's environment"
            raise Unsupported(f"the {group.catalog} catalog has no {kind} form of this op{there}")
        return form

    def _given(self, call: Any, state: dict[str, np.ndarray]) -> None:
        """Make a module that was made in this process the one that the sample is of. Raises Invalid."""
        try:
            held.load(call, state)
        except held.NotAlike as error:
            raise Invalid(f"made again it is another module: {error}; what it is made of must not change") from None
        if held.plain_digest(call) != self.record["alike"]:
            raise Invalid(
                "made again it is another module: a number or an array that it holds is another; draw it by a seed"
            )
        call.written = tuple(self.record.get("written", ()))
        if self.record.get("writes"):
            call.renew = functools.partial(held.load, call, state)
