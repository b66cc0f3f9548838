"""A prepared sample as its pack has it: JSON, with every array by its place in the pack. Nothing in it is executable.

The keys are the names of the fields. A pack that a lake keeps (a minimal case) outlives the farm that wrote it: what was added later has
a default, and a key that this farm does not know is told (`PackError`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, TypeVar

import numpy as np

from tasks.arrays.pack import PackError
from tasks.catalogs.base import Failure
from tasks.model import Leaf

#: Puts an array into the pack and returns its place there.
Add = Callable[[np.ndarray], int]
#: Fields of a leaf that are arrays.
ARRAYS = ("reference", "noise", "of_products", "jumps", "kept", "ties")
R = TypeVar("R", bound="LeafRecord | OracleRecord | SampleRecord")


def _construct_record(kind: type[R], values: Mapping[str, Any]) -> R:
    """A record of some values: a frozen dataclass of forty fields takes ten times as long to construct."""
    known, needed = _KEYS[kind]
    if not known.keys() >= values.keys():
        name = min(values.keys() - known.keys())
        raise PackError(
            f"a prepared case has {name!r}, which this farm does not know: it is of a later one; update, or prepare it again"
        )
    if not values.keys() >= needed:
        raise PackError(f"a prepared case has no {min(needed - values.keys())!r}: it is damaged; prepare it again")
    made = object.__new__(kind)
    made.__dict__.update({**known, **values})
    return made


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

    @classmethod
    def of(cls, leaf: Leaf, add: Add) -> LeafRecord:
        """That of a leaf, whose arrays are added to the pack."""
        values: dict[str, Any] = {f.name: getattr(leaf, f.name) for f in fields(cls)}
        values |= {name: add(values[name]) for name in ARRAYS if values[name] is not None}
        return cls(**{**values, "shape": list(leaf.shape)})

    def leaf(self, array: Callable[[int], np.ndarray], of_products: bool = False) -> Leaf:
        """The leaf, its arrays as ``array`` gives them; with its floor of products where that is asked for."""

        def there(place: int | None) -> np.ndarray | None:
            return None if place is None else array(place)

        return Leaf(
            self.dtype,
            tuple(self.shape),
            there(self.reference),
            there(self.noise),
            self.rtol,
            self.atol,
            self.meaning,
            there(self.of_products) if of_products else None,
            there(self.jumps),
            there(self.kept),
            self.shared,
            there(self.ties),
        )


@dataclass(frozen=True)
class OracleRecord:
    """A `tasks.model.Oracle`, with its distance to the first one (`tasks.judge.prepared.compare_oracles`)."""

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
    definition: str
    derived: Sequence[LeafRecord]
    others: Sequence[OracleRecord]
    repeats: int
    wrt: Sequence[int]
    cotangents: Sequence[int]
    #: SHA-256 of the bytes of the inputs and the model, or of what the module holds: 16 hex digits.
    digest: str
    #: Of all tensors among the arguments, in words: "2x3 scalar".
    shapes: str
    #: Place of the ONNX model's bytes.
    model: int | None
    columns: Mapping[str, Any]
    failure: Failure | None
    on_device: Sequence[tuple[str, Sequence[int]]] = ()
    coarse: Mapping[str, Sequence[int]] = field(default_factory=dict)
    uncast: Sequence[int] = ()
    twins: int = 0
    products: bool = False
    names: Sequence[str] = ()
    batched: Sequence[int] = ()
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
        failure = values.get("failure")
        return _construct_record(
            cls,
            {
                **values,
                "expected": [_construct_record(LeafRecord, x) for x in values.get("expected", ())],
                "derived": [_construct_record(LeafRecord, x) for x in values.get("derived", ())],
                "others": [_construct_record(OracleRecord, x) for x in values.get("others", ())],
                "failure": Failure(**failure) if failure else None,
            },
        )

    def values(self) -> dict[str, Any]:
        """As `read` takes it."""
        return vars(self) | {
            "expected": [vars(x) for x in self.expected],
            "derived": [vars(x) for x in self.derived],
            "others": [vars(x) for x in self.others],
            "failure": None if self.failure is None else asdict(self.failure),
        }


def _list_record_keys(kind: type) -> tuple[dict[str, Any], set[str]]:
    """All keys of a record with what stands for those that are not there, and those that must be."""
    without = {f.name: f.default_factory() if f.default_factory is not MISSING else f.default for f in fields(kind)}
    return without, {name for name, value in without.items() if value is MISSING}


_KEYS: dict[type, tuple[dict[str, Any], set[str]]] = {
    kind: _list_record_keys(kind) for kind in (LeafRecord, OracleRecord, SampleRecord)
}
