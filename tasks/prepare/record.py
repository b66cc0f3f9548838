"""A prepared sample as its pack has it: JSON, with every array by its place in the pack. Nothing in it is executable.

The keys are the names of the fields, without those that hold their default. A pack that a lake keeps (a minimal case)
outlives the farm that wrote it: what was added later has a default, and a key that this farm does not know is told
(`PackError`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tasks.arrays.pack import PackError
from tasks.catalogs.base import Failure
from tasks.model import Leaf, OpClass

#: Puts an array into the pack and returns its place there.
Add = Callable[[np.ndarray], int]
#: Fields of a leaf that are arrays.
ARRAYS = ("reference", "noise", "of_products", "jumps", "kept", "ties", "of_norm")
#: By name: to look one up takes a tenth of what an enumeration does.
OP_CLASSES = {op_class.value: op_class for op_class in OpClass}
R = TypeVar("R", bound="LeafRecord | OracleRecord | SampleRecord")


def _construct_sample_record(kind: type[R], values: Mapping[str, Any]) -> R:
    """A record of some values. What is not among them is read off the class, which has the defaults: a frozen dataclass
    of forty fields takes ten times as long to construct."""
    keys = _KEYS[kind]
    if (given := tuple(values)) not in keys.right:
        if unknown := values.keys() - keys.known:
            raise PackError(
                f"a prepared case has {min(unknown)!r}, which this farm does not know: it is of a later one; update, or prepare it again"
            )
        if missing := keys.needed - values.keys():
            raise PackError(f"a prepared case has no {min(missing)!r}: it is damaged; prepare it again")
        keys.right.add(given)
    made = object.__new__(kind)
    object.__setattr__(made, "__dict__", {**keys.empty, **values})
    return made


def _list_record_values(record: LeafRecord | OracleRecord | SampleRecord) -> dict[str, Any]:
    """The JSON object of a record, without what holds its default."""
    usual = _KEYS[type(record)].usual
    return {name: x for name, x in vars(record).items() if x is not (default := usual[name]) and x != default}


@dataclass(frozen=True)
class LeafRecord:
    """A `tasks.model.Leaf`, field by field."""

    dtype: str
    shape: Sequence[int]
    reference: int | None = None
    noise: int | None = None
    rtol: float | None = None
    atol: float | None = None
    meaning: str = ""
    of_products: int | None = None
    jumps: int | None = None
    kept: int | None = None
    shared: float | None = None
    ties: int | None = None
    of_norm: int | None = None

    @classmethod
    def of(cls, leaf: Leaf, add: Add) -> LeafRecord:
        """That of a leaf, whose arrays are added to the pack."""
        values = {**vars(leaf), "shape": list(leaf.shape)}
        for name in ARRAYS:
            if values.get(name) is not None:
                values[name] = add(values[name])
        return _construct_sample_record(cls, values)

    def leaf(self, array: Callable[[int], np.ndarray], of_products: bool = False) -> Leaf:
        """The leaf, its arrays as ``array`` gives them; with its floor of products where that is asked for."""
        values = {**vars(self), "shape": tuple(self.shape)}
        if not of_products:
            values.pop("of_products", None)
        for name in values.keys() & ARRAYS:
            if (place := values[name]) is not None:
                values[name] = array(place)
        return Leaf.of(values)


@dataclass(frozen=True)
class OracleRecord:
    """A `tasks.model.Oracle`, with its distance to the first one (`tasks.judge.weak_samples.compare_two_oracles`)."""

    name: str
    references: Sequence[int]
    rounded: bool
    #: In error units, or in ulps of an exact or elementary op; infinite where shapes or NaNs differ.
    units: float
    #: Whether the two are within the classic tolerance.
    classic: bool
    #: Where they are apart, for people.
    detail: str


@dataclass(frozen=True)
class SampleRecord:
    """A `tasks.catalogs.base.Sample`, whose fields are described there, and what preparing it found out."""

    #: `Sample.index`.
    sample: int
    #: Encoded trees (`tasks.arrays.tree`).
    args: Any
    kwargs: Any
    #: Place of the first of the sample's arrays; they follow one another.
    base: int
    #: How many they are.
    inputs: int
    expected: Sequence[LeafRecord]
    oracle: str
    op_class: str
    #: SHA-256 of the bytes of the inputs and the model, or of what the module holds: 16 hex digits.
    digest: str
    #: Of all tensors among the arguments, in words: "2x3 scalar".
    shapes: str
    definition: str = ""
    derived: Sequence[LeafRecord] = ()
    others: Sequence[OracleRecord] = ()
    repeats: int = 1
    wrt: Sequence[int] = ()
    cotangents: Sequence[int] = ()
    #: Place of the ONNX model's bytes.
    model: int | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    on_device: Sequence[tuple[str, Sequence[int]]] = ()
    coarse: Mapping[str, Sequence[int]] = field(default_factory=dict)
    uncast: Sequence[int] = ()
    twins: int = 0
    products: bool = False
    names: Sequence[str] = ()
    phases: Sequence[str] = ()
    slopes: Sequence[float | None] = ()
    batched: Sequence[int] = ()
    #: `Terms.values` of each.
    terms: Sequence[Mapping[str, Any]] = ()
    #: Places of the arrays whose first axis is the steps of a session.
    stepped: Sequence[int] = ()
    sets: Sequence[str] = ()
    program: Mapping[str, Any] | None = None
    state: Mapping[str, int] = field(default_factory=dict)
    alike: str = ""
    writes: bool = False
    written: Sequence[str] = ()
    takes: bool = True
    files: Mapping[str, int] = field(default_factory=dict)
    ranks: Sequence[Sequence[int]] = ((), ())
    #: Whether an output of zeros, or a constant one, would pass: the sample is no evidence.
    weak: bool = False
    #: Share of the outputs that the default policy's limit does not ask for, 0 to 1.
    excused: float = 0.0
    prepare_ms: float = 0.0

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> SampleRecord:
        """The record of a JSON object. Raises PackError."""
        made = _construct_sample_record(cls, values)
        parts = vars(made)
        parts["expected"] = [_construct_sample_record(LeafRecord, x) for x in values["expected"]]
        if made.derived:
            parts["derived"] = [_construct_sample_record(LeafRecord, x) for x in values["derived"]]
        if made.others:
            parts["others"] = [_construct_sample_record(OracleRecord, x) for x in values["others"]]
        if failure := values.get("failure"):
            parts["failure"] = Failure(**failure)
        if made.op_class not in OP_CLASSES:
            raise PackError(
                f"a prepared case has the op class {made.op_class!r}, which this farm does not know: it is of a later one; update, or prepare it again"
            )
        return made

    def values(self) -> dict[str, Any]:
        """As `read` takes it."""
        made = _list_record_values(self)
        for name in ("expected", "derived", "others"):
            if name in made:
                made[name] = [_list_record_values(x) for x in made[name]]
        return made if self.failure is None else made | {"failure": asdict(self.failure)}


class _Keys(NamedTuple):
    """The keys of a record's JSON object. right: together, as records had them so far, of which there are few; needed:
    those that must be there; empty: the mappings that stand for others which are not, and which a class cannot have;
    usual: what each key holds that is left out, of a needed one an object that is nothing else."""

    known: frozenset[str]
    needed: frozenset[str]
    empty: Mapping[str, Any]
    usual: Mapping[str, Any]
    right: set[tuple[str, ...]]


#: No field holds it.
_NEVER = object()


def _list_record_keys(kind: type) -> _Keys:
    empty = {f.name: f.default_factory() for f in fields(kind) if f.default_factory is not MISSING}
    defaults = {f.name: f.default for f in fields(kind) if f.default is not MISSING} | empty
    known = [f.name for f in fields(kind)]
    usual = {name: defaults.get(name, _NEVER) for name in known}
    return _Keys(frozenset(known), frozenset(known) - defaults.keys(), empty, usual, set())


_KEYS: dict[type, _Keys] = {kind: _list_record_keys(kind) for kind in (LeafRecord, OracleRecord, SampleRecord)}
