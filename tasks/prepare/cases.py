"""Prepared cases: inputs, reference, noise floor and exported forms, made once and kept by content on disk."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks import catalogs, checks, counterparts, sources
from tasks.arrays import module_state
from tasks.arrays.noise import DRAWS
from tasks.arrays.pack import ArrayPack, PackError, Written, digest_arrays, save_pack, spool_arrays
from tasks.arrays.tree import (
    NotEncodable,
    TensorSpec,
    decode_tree_specs,
    encode_tensor_spec,
    list_tensor_specs,
    make_contiguous_tensor,
)
from tasks.catalogs.base import CANDIDATES, Failure, Sample
from tasks.catalogs.user_definitions import USER
from tasks.graphs import traced_program
from tasks.judge import policy_files
from tasks.judge.policy import GROSS
from tasks.judge.weak_samples import (
    bfloat16_would_pass,
    compare_two_oracles,
    constant_would_pass,
    find_weak_threshold,
    has_common_constant,
    measure_excused_share,
    others_would_pass,
    smaller_would_pass,
    zero_would_pass,
)
from tasks.model import (
    Elsewhere,
    Form,
    Group,
    Invalid,
    Leaf,
    OpClass,
    Oracle,
    Unsupported,
    Vacuous,
    is_complex_dtype,
    is_inexact_dtype,
)
from tasks.model.named import Named
from tasks.passport import SumTerms
from tasks.prepare import derived, products
from tasks.prepare.named import find_catalog_function
from tasks.prepare.ranked import rank_prepared_samples
from tasks.prepare.record import OP_CLASSES, Add, LeafRecord, OracleRecord, SampleRecord

#: Elements of an output, of a training run's steps, that tell what their floor excuses.
EXCUSED_OF = 1 << 22
#: What the key of a pack ends with that has its samples' products (`tasks.prepare.products`).
WITH_PRODUCTS = "-products"


def make_pack_key(
    group: Group, draws: int = DRAWS, bad: dict[int, Failure] | None = None, with_products: bool = True
) -> str:
    """Content key of a prepared group. ``bad``: samples known to kill the preparer; with_products: see `prepare_group`.

    What is only built has the samples of the forward check, and shares their pack.
    """
    return _list_pack_keys(group, draws, bad, with_products)[0]


def _list_pack_keys(group: Group, draws: int, bad: dict[int, Failure] | None, with_products: bool) -> list[str]:
    """The keys of packs that have of a group what is asked for, the least first."""
    group = _find_sample_group(group)
    catalog = catalogs.get_catalog(group.catalog)
    own = catalog.group_version(group)
    parts = [
        sources.digest_case_sources(type(catalog).__module__),
        _find_catalog_version(group.catalog),
        own,
        vars(group),
        draws,
        np.__version__,
    ]
    if bad:
        parts.append({str(k): asdict(v) for k, v in bad.items()})
    content = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]
    if not products.may_have_products(group):
        return [content]
    return [content + WITH_PRODUCTS] if with_products else [content, content + WITH_PRODUCTS]


def _find_sample_group(group: Group) -> Group:
    """The group whose samples a group has."""
    check = checks.name_samples_of_check(group.check)
    return group if check == group.check else replace(group, check=check)


@functools.cache
def _find_catalog_version(name: str) -> str:
    return catalogs.get_catalog(name).version()


def find_pack_key(
    group: Group, cache: Path, draws: int = DRAWS, bad: dict[int, Failure] | None = None, with_products: bool = True
) -> str | None:
    """The key of a group's pack in the cache that has what is asked for (`prepare_group`), or more; None where there is
    none."""
    names = _list_pack_keys(group, draws, bad, with_products)
    return next((name for name in names if find_pack_path(cache, name).exists()), None)


def find_pack_path(cache: Path, key: str) -> Path:
    return Path(f"{cache}/cases/{key[:2]}/{key}.pack")  # taken apart once: for every group of a run


def find_exported_form_path(cache: Path, key: str, form: str, exporter_version: str) -> Path:
    tag = hashlib.sha256(f"{key} {form} {exporter_version}".encode()).hexdigest()[:40]
    return cache / "forms" / tag[:2] / f"{tag}.pack"


def prepare_group(
    group: Group,
    cache: Path,
    draws: int = DRAWS,
    bad: dict[int, Failure] | None = None,
    started: Callable[[int], None] = lambda index: None,
    with_products: bool = True,
) -> tuple[str, PreparedGroup]:
    """Make a group's samples, or take them from the cache. Returns (key, prepared group).

    ``bad`` holds samples that killed an earlier preparer: they are written as failures without being run.
    ``started(i)`` is called before the i-th sample is made. with_products: whether a backend may compute products, and
    nothing else, in less than the dtype (`RuntimeInfo.of_products`). Without, nobody looks for any, and to ask for them
    raises PackError. Raises StorageError when the cache cannot be written.
    """
    names = _list_pack_keys(group, draws, bad, with_products)
    for name in names:
        path = find_pack_path(cache, name)
        try:
            return name, PreparedGroup(path)
        except FileNotFoundError:
            pass
        except PackError:
            path.unlink(missing_ok=True)  # cut short by a crash of the machine: made again
    name, with_products = names[0], names[0].endswith(WITH_PRODUCTS)
    path = find_pack_path(cache, name)
    group = _find_sample_group(group)
    catalog = catalogs.get_catalog(group.catalog)
    catalog.load()

    def first() -> Sample:
        """The op's sample that a check derives its own of."""
        forward = replace(group, check=checks.FORWARD, samples=1)
        alone = prepare_group(forward, cache, draws, None, started, with_products)[1]
        return alone.samples[0].again()

    with spool_arrays(path.parents[1]) as spool:
        made = derived.derive_samples(catalog, group, draws, bad or {}, first)
        header, arrays, records = _collect_prepared_pack(made, group, draws, bad or {}, started, with_products)
        written = save_pack(path, header, arrays, spool)
    return name, PreparedGroup(path, written=written, records=records)


def _collect_prepared_pack(
    made: Iterator[Sample],
    group: Group,
    draws: int,
    bad: dict[int, Failure],
    started: Callable[[int], None],
    with_products: bool,
) -> tuple[dict[str, Any], list[np.ndarray], list[SampleRecord]]:
    """The header and the arrays of the pack of a group, whose samples are ``made``, and the records that are in the
    header.

    Weak samples are left behind for strong ones that the catalog offers beyond the number asked for.
    """
    found: list[tuple[Sample, float]] = []
    shares: list[float] = []  # excused of each
    sound: list[bool] = []  # neither failed nor weak by itself
    single: list[int] = []  # those of one element
    strong: list[bool] = []
    place = 0
    while place < group.samples or (
        place < CANDIDATES * group.samples and _wants_more_candidates(found, strong, group.samples)
    ):
        started(place)
        begin = time.perf_counter()
        try:
            sample = next(made)
            sample.failure = bad.get(place, sample.failure)
            if with_products:
                products.fill_in_products(sample, group, draws)
        except StopIteration:
            break
        except Exception as error:
            sample = Sample(-1, failure=Failure.of(error, "sample"))
            made = iter(())
        found.append((sample, (time.perf_counter() - begin) * 1e3))
        shares.append(_measure_excused_by_noise(sample, group))
        one = sample.failure is None and _has_one_element_each(sample)
        single += [place] * one
        sound.append(
            sample.failure is None and not _is_sample_weak(sample, one) and (shares[-1] < GROSS or bool(sample.names))
        )
        place += 1
        if place >= group.samples:
            strong = _flag_strong_samples(found, sound, single)
    if len(strong) < len(found):
        strong = _flag_strong_samples(found, sound, single)
    strong = [good and not _is_loosely_judged(group, found[k][0], found[k - 1][0]) for k, good in enumerate(strong)]
    arrays: list[np.ndarray] = []
    models: dict[bytes | int, int] = {}
    records = []
    for k in _select_prepared_samples(found, strong, group.samples):
        sample, milliseconds = found[k]
        records.append(_make_sample_record(sample, arrays, models, not strong[k], shares[k], milliseconds))
    found_by_name = bool(arrays) and catalogs.get_catalog(group.catalog).is_public(group)
    untold = not with_products and products.may_have_products(group)
    ranked = rank_prepared_samples(records)
    return _make_pack_header(group, found_by_name, ranked, untold), arrays, ranked


def _make_pack_header(
    group: Group, public: bool, records: list[SampleRecord], untold_products: bool = False
) -> dict[str, Any]:
    """The header of a group's pack, as `PreparedGroup` reads it. untold_products: nobody has looked for its samples'
    products."""
    catalog = catalogs.get_catalog_if_installed(group.catalog)
    promised = catalog.invariants(group) if catalog is not None and group.check == checks.FORWARD else []
    made = {"group": dict(vars(group)), "public": public, "samples": [record.values() for record in records]}
    made |= {"invariants": promised} if promised else {}
    return made | ({"untold_products": True} if untold_products else {})


def save_sample_alone(path: Path, group: Group, sample: Sample, with_products: bool = True) -> None:
    """Write a pack of one sample that no catalog makes. with_products: see `prepare_group`. Raises OSError."""
    arrays: list[np.ndarray] = []
    if with_products and sample.expected:
        products.fill_in_products(sample, group, DRAWS)
    untold = not with_products and products.may_have_products(group)
    save_pack(path, _make_pack_header(group, False, [_make_sample_record(sample, arrays, {})], untold), arrays)


def _flag_strong_samples(found: list[tuple[Sample, float]], sound: list[bool], single: list[int]) -> list[bool]:
    """Which samples are evidence: ``single``, those of one element, are not, if one constant would pass for all of
    them."""
    if any(sound[k] for k in single) and _one_constant_for_all([found[k][0] for k in single]):
        return [is_sound and k not in single for k, is_sound in enumerate(sound)]
    return list(sound)


def _wants_more_candidates(found: list[tuple[Sample, float]], strong: list[bool], wanted: int) -> bool:
    """Whether a further candidate could take the place of a weak sample."""
    failed = sum(sample.failure is not None for sample, _ in found[:wanted])
    return failed + sum(strong) < wanted


def _select_prepared_samples(found: list[tuple[Sample, float]], strong: list[bool], wanted: int) -> list[int]:
    """Places of the samples that are kept: what failed of those asked for, strong ones, then weak ones."""
    if len(found) <= wanted:
        return list(range(len(found)))
    failed = [k for k, (sample, _) in enumerate(found[:wanted]) if sample.failure]
    weak = [k for k, (sample, _) in enumerate(found) if not strong[k] and not sample.failure]
    return sorted((failed + [k for k, is_strong in enumerate(strong) if is_strong] + weak)[:wanted])


def _select_judged_leaves(sample: Sample) -> list[Leaf]:
    return sample.derived if sample.definition else sample.expected


def _is_sample_weak(sample: Sample, one: bool) -> bool:
    """Whether a constant would pass as every output; of outputs of ``one`` element each, whether zero would."""
    if sample.measured:
        return False
    if sample.op_class is OpClass.RANDOM and not sample.definition:
        return True  # nothing of its numbers is compared
    check = zero_would_pass if one else constant_would_pass
    return all(check(leaf, find_weak_threshold(leaf.dtype), sample.op_class) for leaf in _select_judged_leaves(sample))


def _measure_excused_by_noise(sample: Sample, group: Group) -> float:
    """What the default policy's limit excuses of every output, because rounding the inputs moves it; 0 of what is
    derived."""
    still = sample.op_class is not OpClass.MODEL and all(leaf.noise is None for leaf in sample.expected)
    still = still or sample.measured
    if sample.failure or sample.definition or still:
        return 0.0
    limit = policy_files.load_policy("error_units").limit_value(group.label, sample.op_class.value, group.dtype)
    known = [_thin_leaf(leaf) for leaf in sample.expected if leaf.reference is not None and leaf.reference.size]
    precision = checks.get_check(group.check).precision(group.dtype)
    shares = [measure_excused_share(leaf, limit, sample.op_class, precision) for leaf in known] if limit else [0.0]
    # Of a training step's many outputs each is asked for.
    return sum(shares) / len(shares) if sample.names else min(shares, default=0.0)


def _thin_leaf(leaf: Leaf) -> Leaf:
    """A part of a leaf with more than EXCUSED_OF elements that are in floors of norms: of its longest axis the first
    ones."""
    assert leaf.reference is not None
    y, noise = leaf.reference, leaf.noise
    if y.size <= EXCUSED_OF or noise is None or noise.shape == y.shape:
        return leaf
    axis = max((k for k in range(y.ndim) if noise.shape[k] == 1), key=lambda k: y.shape[k])
    part = y[(slice(None),) * axis + (slice(max(1, y.shape[axis] * EXCUSED_OF // y.size)),)]
    return replace(leaf, shape=part.shape, reference=part)


def _is_loosely_judged(group: Group, sample: Sample, other: Sample) -> bool:
    """Whether a model's own outputs rounded to bfloat16, or those of another sample, would pass; of a training step
    those that are grossly smaller."""
    if sample.op_class is not OpClass.MODEL or sample.definition or sample.failure or sample.measured:
        return False
    how = (policy_files.load_policy("error_units"), group.label, group.dtype)
    if sample.names:
        return smaller_would_pass(sample.expected[1:], *how, checks.get_check(group.check).precision(group.dtype))
    exchanged = (
        other.arrays is not sample.arrays
        and other.failure is None
        and others_would_pass(sample.expected, other.expected, *how)
    )
    return exchanged or bfloat16_would_pass(sample.expected, *how)


def _has_one_element_each(sample: Sample) -> bool:
    leaves = _select_judged_leaves(sample)
    return bool(leaves) and all(leaf.reference is not None and leaf.reference.size == 1 for leaf in leaves)


def _one_constant_for_all(samples: list[Sample]) -> bool:
    """Whether one and the same constant per output would pass for all ``samples``, which have one element each."""
    counts = {len(_select_judged_leaves(s)) for s in samples}
    return len(counts) == 1 and all(
        has_common_constant(
            leaves := [_select_judged_leaves(s)[i] for s in samples],
            find_weak_threshold(leaves[0].dtype),
            samples[0].op_class,
        )
        for i in range(min(counts))
    )


def _make_sample_record(
    sample: Sample,
    arrays: list[np.ndarray],
    models: dict[bytes | int, int],
    weak: bool = False,
    excused: float = 0.0,
    prepare_ms: float = 0.0,
) -> SampleRecord:
    """The record of a sample; its arrays are appended to ``arrays``. models: where those of other samples are, an array
    by its id: the weights of a network are kept once."""

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
    specs = list_tensor_specs(args) + list_tensor_specs(kwargs)
    shapes = (sample.arrays[s.id].shape if s.shape is None else s.shape for s in specs)
    return SampleRecord(
        sample=sample.index,
        args=args,
        kwargs=kwargs,
        base=base,
        inputs=len(sample.arrays),
        expected=[LeafRecord.of(leaf, add) for leaf in sample.expected],
        oracle=sample.oracle,
        op_class=sample.op_class.value,
        definition=sample.definition,
        derived=tuple(LeafRecord.of(leaf, add) for leaf in sample.derived),
        others=tuple(_make_oracle_record(oracle, sample, add) for oracle in sample.others),
        repeats=sample.repeats,
        wrt=tuple(sample.wrt),
        cotangents=tuple(sample.cotangents),
        digest=_digest_prepared_sample(sample),
        shapes=" ".join("x".join(map(str, shape)) or "scalar" for shape in shapes),
        model=None if sample.model is None else models[sample.model],
        columns=sample.columns,
        failure=failure,
        on_device=tuple((dtype, list(shape)) for dtype, shape in sample.on_device),
        coarse={name: list(map(add, outputs)) for name, outputs in sample.coarse.items()},
        uncast=tuple(map(add, sample.uncast)),
        twins=sample.twins,
        products=sample.products,
        names=tuple(sample.names),
        phases=tuple(sample.phases),
        slopes=tuple(sample.slopes),
        batched=tuple(sample.batched),
        terms=tuple(one.values() for one in sample.terms),
        stepped=tuple(sample.stepped),
        sets=tuple(sample.sets),
        program=sample.program,
        state={name: models[id(x)] for name, x in sample.state.items()},
        alike=sample.alike,
        writes=sample.writes,
        written=tuple(sample.written),
        takes=sample.takes,
        files={form: models[content] for form, content in sample.files.items()},
        ranks=tuple(map(tuple, sample.ranks)),
        weak=weak,
        excused=excused,
        prepare_ms=prepare_ms,
    )


def _make_oracle_record(oracle: Oracle, sample: Sample, add: Add) -> OracleRecord:
    """The record of a further oracle, with its distance to the first."""
    apart = compare_two_oracles(oracle.references, sample.expected, sample.op_class, oracle.rounding)
    return OracleRecord(oracle.name, list(map(add, oracle.references)), oracle.rounded, **apart)


def _digest_prepared_sample(sample: Sample) -> str:
    """SHA-256 of the bytes of the inputs and the model, or of what the module holds, first 16 hex digits."""
    digest = digest_arrays(sample.arrays)
    digest.update(sample.model or b"")
    digest.update(module_state.digest_module_state(sample.state).encode() if sample.state else b"")
    return digest.hexdigest()[:16]


def _classify_sample_dtype(dtype: str) -> tuple[bool, bool]:
    """What two dtypes share whose numbers can be held against one reference."""
    return is_inexact_dtype(dtype), is_complex_dtype(dtype)


class PreparedGroup:
    """A prepared group read from its pack; ``samples`` in the order in which they are chosen.

    check: what is to hold, if not what the pack was prepared for ("build" for those of "forward"); written: see `ArrayPack`;
    records: those that have just been written to it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        check: str = "",
        written: Written | None = None,
        records: Sequence[SampleRecord] | None = None,
    ) -> None:
        self.pack = ArrayPack(path, written)
        self.group = Group(**self.pack.header["group"])
        self.check = check or self.group.check
        if records is None:
            records = [SampleRecord.read(x) for x in self.pack.header["samples"]]
        self.samples = [PreparedSample(self, record) for record in records]
        self.columns = self.group.columns
        #: What the user promises of every result (`tasks.judge.invariants`).
        self.invariants: list[tuple[str, Any]] = [tuple(x) for x in self.pack.header.get("invariants", ())]

    @property
    def with_products(self) -> bool:
        """Whether somebody has looked for its samples' products, or there can be none."""
        return not self.pack.header.get("untold_products")


@dataclass(frozen=True)
class PreparedSample:
    """One sample of a prepared group; arrays are read from the pack when asked for."""

    owner: PreparedGroup
    record: SampleRecord
    index: int = field(init=False)
    failure: Failure | None = field(init=False)
    op_class: OpClass = field(init=False)

    def __post_init__(self) -> None:
        record = self.record
        vars(self).update(index=record.sample, failure=record.failure, op_class=OP_CLASSES[record.op_class])

    def _arrays(self, places: Iterable[int]) -> list[np.ndarray]:
        return [self.owner.pack.array(i) for i in places]

    def inputs(self) -> list[np.ndarray]:
        """The stored arrays of the inputs, read-only."""
        return self._arrays(range(self.record.base, self.record.base + self.record.inputs))

    @functools.cached_property
    def specs(self) -> list[TensorSpec]:
        """The tensors among the arguments, in their order."""
        return [*list_tensor_specs(self.record.args), *list_tensor_specs(self.record.kwargs)]

    def tensors(self) -> list[np.ndarray]:
        """The values of `specs`, as they are laid out. Raises ValueError for one that is not strided."""
        if sparse := [spec.layout for spec in self.specs if spec.layout != "strided"]:
            raise ValueError(f"a tensor is {sparse[0]}")
        stored = self.inputs()
        return [make_contiguous_tensor(stored[spec.id], spec) for spec in self.specs]

    def again(self) -> Sample:
        """The sample as its catalog made it, but for what only its own rows need."""
        record = self.record
        args, kwargs = (decode_tree_specs(x) for x in (record.args, record.kwargs))
        return Sample(
            self.index,
            args,
            kwargs,
            arrays=self.inputs(),
            expected=self.expected(),
            op_class=self.op_class,
            definition=record.definition,
            derived=self.derived(),
            on_device=[(dtype, tuple(shape)) for dtype, shape in record.on_device],
            oracle=record.oracle,
            others=[Oracle(x.name, self._arrays(x.references), rounded=x.rounded) for x in record.others],
            repeats=record.repeats,
            twins=record.twins,
            model=self.graph(),
            state=self.state(),
            alike=record.alike,
            writes=record.writes,
            written=tuple(record.written),
            takes=record.takes,
            columns=dict(record.columns),
            failure=self.failure,
        )

    def draw_inputs(self, seed: int) -> list[np.ndarray] | None:
        """Other values for the stored arrays, of the same dtypes and shapes, drawn by a seed as the catalog draws them;
        None where it cannot say, or where none would be others."""
        group, stored = self.owner.group, self.inputs()
        catalog = catalogs.get_catalog_if_installed(group.catalog)
        if catalog is None:
            return None
        given = Sample(self.index, self.record.args, self.record.kwargs, arrays=stored)
        try:
            drawn = catalog.ordinary(group, given, "", seed)
        except Exception:
            return None
        made = list(stored)
        for spec in self.specs:
            if spec.id in drawn and spec.layout == "strided":
                made[spec.id] = np.array(stored[spec.id])
                spec.view(made[spec.id], writeable=True)[...] = drawn[spec.id]
        return None if all(a is b or a.tobytes() == b.tobytes() for a, b in zip(made, stored)) else made

    def of_other_inputs(self, arrays: Sequence[np.ndarray], draws: int = DRAWS) -> PreparedSample | None:
        """The sample with other values in its arrays, of the same dtypes and shapes, and what is expected of these;
        None where its catalog makes no reference of them, or the reference does not take them."""
        group = self.owner.group
        catalog = catalogs.get_catalog_if_installed(group.catalog)
        if catalog is None or not catalog.remakes or self.record.alike:
            return None
        given = Sample(self.index, self.record.args, self.record.kwargs, arrays=list(arrays))
        try:
            made = derived.remake_derived_sample(catalog, group, given, draws)
        except Exception:
            return None
        if made.failure is not None:
            return None
        with tempfile.TemporaryDirectory(prefix="farm-inputs-") as folder:
            path = Path(folder, "case.pack")
            save_sample_alone(path, group, made, self.owner.with_products)
            return PreparedGroup(path, self.owner.check).samples[0]

    def on(self, device: str) -> PreparedSample:
        """The sample as torch's kernels for a device (`Backend.torch_device`, "" for the CPU) are to compute it.

        An output that has another shape there, or is none of the CPU's, has no reference: only its metadata is
        expected.
        """
        there, here = self.record.on_device, self.record.expected
        if not (device and there):
            return self
        made = []
        for place, (dtype, shape) in enumerate(there):
            known = here[place] if place < len(here) else None
            alike = (
                known is not None
                and list(known.shape) == list(shape)
                and _classify_sample_dtype(known.dtype) == _classify_sample_dtype(dtype)
            )
            made.append(replace(known, dtype=dtype) if known is not None and alike else LeafRecord(dtype, shape))
        others = self.record.others if len(made) == len(here) else ()
        return replace(self, record=replace(self.record, expected=made, others=others, on_device=()))

    def expected(self, of_products: bool = False) -> list[Leaf]:
        """What the outputs are to be. of_products: with the floor of products whose factors alone are coarser than the
        dtype; raises PackError then where the group was prepared without."""
        if of_products:
            self._check_products()
        return [x.leaf(self.owner.pack.array, of_products) for x in self.record.expected]

    @property
    def products(self) -> bool:
        """Whether products are computed in it that a matrix unit may take coarser than the dtype. Raises PackError
        where the group was prepared without."""
        self._check_products()
        return self.record.products

    def _check_products(self) -> None:
        if not self.owner.with_products:
            raise PackError(
                f"{self.owner.group.label} in {self.owner.group.dtype} was prepared for backends that compute in the dtype itself, and this "
                "one computes products in less; prepare it again with products"
            )

    def derived(self) -> list[Leaf]:
        """What `tasks.judge.definitions` is to make of the outputs, for a sample with a definition."""
        return [x.leaf(self.owner.pack.array) for x in self.record.derived]

    def other(self, number: int, expected: list[Leaf], part: slice = slice(None)) -> list[Leaf]:
        """What is ``expected`` (those ``part`` of all outputs) as a further oracle has it, with the first one's noise
        floor, which nothing of another shape has."""
        found = self._arrays(self.record.others[number].references[part])
        return [
            leaf.with_reference(y)
            if y.shape == leaf.shape
            else Leaf(leaf.dtype, y.shape, y, None, leaf.rtol, leaf.atol, leaf.meaning)
            for leaf, y in zip(expected, found)
        ]

    def coarse(self) -> dict[str, list[np.ndarray]]:
        """Of a model, by precision: the outputs with its products' weights rounded to it."""
        return {name: self._arrays(places) for name, places in self.record.coarse.items()}

    def uncast(self) -> list[np.ndarray]:
        """Of a model that is no graph: the outputs without its casts to narrower dtypes; empty where it has none."""
        return self._arrays(self.record.uncast)

    def state(self) -> dict[str, np.ndarray]:
        """The tensors that the module holds which is the torch form, by name; nothing where it is none of one's own."""
        return {name: self.owner.pack.array(k) for name, k in self.record.state.items()}

    def graph(self) -> bytes | None:
        """The ONNX model that is the sample, None where it is none."""
        return None if (k := self.record.model) is None else bytes(self.owner.pack.array(k).tobytes())

    def form(
        self, kind: str, exported: ArrayPack | None = None, elsewhere: Elsewhere | None = None, by_name: bool = False
    ) -> Form:
        """The sample as a form. ``exported`` is the pack of exported forms where ``kind`` is not the catalog's own;
        ``elsewhere`` is the form's. by_name: a catalog's function is not looked for: its form has its name instead
        (`tasks.model.named`).

        Raises Invalid (the sample could not be prepared) or Unsupported (no such form, with the reason).
        """
        if (failure := self.failure) and not failure.raised:
            raise Invalid(failure.error)
        check = checks.get_check_or_default(self.owner.check)
        if check.forms and kind not in check.forms:
            raise Unsupported(f"the {check.name} check is about the {' or '.join(check.forms)} form, not {kind}")
        return self._form(kind, exported, elsewhere, by_name)

    def _form(
        self, kind: str, exported: ArrayPack | None = None, elsewhere: Elsewhere | None = None, by_name: bool = False
    ) -> Form:
        """`form`, whatever the check is about: what a sample of it is held against may be another form.

        It is what the first of these has: the sample itself (a file, a graph, a program), its catalog's function, its
        network's graph, another framework's function of the same name, what was exported.
        """
        group, record = self.owner.group, self.record
        check = group.check if checks.get_check_or_default(group.check).gradient else checks.FORWARD
        found = self._own(kind) or self._function(kind, check, by_name)
        if found is None and check != checks.FORWARD:
            raise Unsupported(f"the {group.check} check needs a form that can be differentiated")
        found = found or self._network(kind) or self._find_counterpart(kind) or self._load_exported_form(kind, exported)
        if found is None:
            there = catalogs.get_catalog_if_installed(group.catalog) is not None
            why = "" if there else ": its package is not installed in the backend's environment"
            raise Unsupported(f"the {group.catalog} catalog has no {kind} form of this op{why}")
        usual: dict[str, Any] = {"arrays": self.inputs(), "args": record.args, "batched": tuple(record.batched)}
        if record.terms:
            usual["terms"] = self.terms(range(len(usual["arrays"])))
            usual["summed_shape"] = tuple(record.expected[0].shape)
        return Form(
            kind,
            group.op,
            group.dtype,
            kwargs=record.kwargs,
            check=check,
            wrt=tuple(record.wrt),
            cotangents=tuple(record.cotangents),
            stepped=tuple(record.stepped),
            sets=tuple(record.sets),
            phases=tuple(record.phases),
            names=tuple(record.names),
            repeats=record.repeats,
            also=functools.partial(self._form, by_name=by_name) if by_name else self._form,
            elsewhere=elsewhere,
            **(usual | found),
        )

    def terms(self, order: Sequence[int]) -> tuple[SumTerms, ...]:
        """Where the terms of results lie among a form's arrays, which are the sample's in an order; none of a form that
        lacks an array of theirs."""
        if not self.record.terms:
            return ()
        found = [SumTerms.read(x).placed(order) for x in self.record.terms]
        return tuple(x for x in found if x is not None)

    def _own(self, kind: str) -> dict[str, Any] | None:
        """What the form is that the sample itself is; this and the next as fields of a `Form`."""
        record = self.record
        if kind in record.files:
            inputs, outputs = record.ranks
            model, given = self.owner.pack.array(record.files[kind]).tobytes(), self.inputs()
            arrays = [given[inputs.index(k)] for k in range(len(inputs))]
            return {"model": model, "arrays": arrays, "order": tuple(outputs)}
        if kind == "onnx" and record.model is not None:
            return {"model": self.graph()}
        if kind == "torch" and record.program:
            return {"call": traced_program.decode_program(record.program)}
        return None

    def _function(self, kind: str, check: str, by_name: bool) -> dict[str, Any] | None:
        """The function that the catalog has for its samples, or its name."""
        group = self.owner.group
        catalog = catalogs.get_catalog_if_installed(group.catalog)
        if catalog is None or kind not in catalog.forms or kind == "onnx":  # of which the bytes are the form
            return None
        if check != group.check and not checks.get_check_or_default(group.check).own_call:
            group = replace(group, check=check)  # what is computed, whatever is asked of it
        record, public = self.record, bool(self.owner.pack.header.get("public"))
        named = None
        if by_name or record.alike:
            state, own = self.state() if record.alike else {}, group.catalog == USER
            named = Named(group, public, state, record.alike, tuple(record.written), record.writes, own)
        if by_name:
            return {"call": named}
        found = find_catalog_function(catalog, group, public, named)
        return {"call": found.call, "own": found.own, "renew": found.renew}

    def _network(self, kind: str) -> dict[str, Any] | None:
        """A whole network as its graph, whose operators a framework has functions for."""
        if kind not in ("torch", *counterparts.FRAMEWORKS) or self.op_class is not OpClass.MODEL:
            return None
        model = self.graph()
        return {"model": model} if model else None

    def _find_counterpart(self, kind: str) -> dict[str, Any] | None:
        """The function of another framework that has torch's name."""
        if kind not in counterparts.FRAMEWORKS:
            return None
        group = self.owner.group
        return {"call": counterparts.find_counterpart(kind, group.op, group.variant, group.dtype)}

    def _load_exported_form(self, kind: str, exported: ArrayPack | None) -> dict[str, Any] | None:
        """What an exporter made of the catalog's function, and of the sample's arrays as it takes them."""
        catalog = catalogs.get_catalog_if_installed(self.owner.group.catalog)
        if exported is None or not (catalog is None or kind in catalog.exports):
            return None
        made = exported.header["samples"].get(str(self.index))
        if made is not None and "bad" in made:
            raise Invalid(made["bad"])
        if made is None or "error" in made:
            raise Unsupported(made["error"] if made else f"the {kind} form was not exported")
        if "vacuous" in made:
            raise Vacuous(made["vacuous"])
        taken, given = [self.specs[i] for i in made["inputs"]], self.inputs()
        count = len(given) // max(len(self.record.sets), 1)  # arrays of each set of inputs
        arrays = [
            make_contiguous_tensor(given[at + spec.id], spec)
            for at in range(0, len(given), count or 1)
            for spec in taken
        ]
        return {
            "model": exported.array(made["model"]).tobytes(),
            "arrays": [a.view(a.real.dtype).reshape(*a.shape, 2) if a.dtype.kind == "c" else a for a in arrays],
            "args": {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(i)) for i in range(len(self.specs))]},
            "batched": tuple(k for k, spec in enumerate(taken) if spec.id in self.record.batched),
            "terms": self.terms([spec.id for spec in taken]),
            "paired": tuple(made["paired"]),
            "invalid": made.get("invalid", ""),
        }


def list_prepared_columns(sample: PreparedSample) -> dict[str, Any]:
    """The columns of a row that only the prepared sample decides."""
    record = sample.record
    built = not checks.get_check_or_default(sample.owner.check).runs
    return sample.owner.columns | {
        "check": sample.owner.check,
        "op_class": record.op_class,
        "sample": record.sample,
        "digest": record.digest,
        "shapes": record.shapes,
        "weak": record.weak or built,
        "excused": record.excused,
        "oracle": "" if built else record.oracle,
        "prepare_ms": record.prepare_ms,
        **record.columns,
    }
