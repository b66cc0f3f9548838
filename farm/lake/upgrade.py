"""Rows of older lakes, as they are read: what stands in columns of its own now was told in a sentence before 1.0.

Each upgrade fills columns that a part does not have, out of others that it has. Nothing else reads those sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tasks.model import Status
from tasks.model.kind import CAUSE_ARITHMETIC, CAUSE_OTHER, KIND_ORACLE, KIND_SUSPECT


@dataclass(frozen=True)
class LakeUpgrade:
    #: A part without this column is of an older farm.
    since: str
    #: Columns that are filled.
    fills: tuple[str, ...]
    #: Columns that are read for that.
    reads: tuple[str, ...]
    #: The table with these columns filled.
    fill: Callable[[pa.Table], pa.Table]


#: The error of a row that a vote had acquitted, in RE2's syntax.
_ACQUITTED = (
    r"(?s)^suspect reference: (?P<acquitted>.*?); it was (?P<was_status>\w+) ?(?P<was_kind>[^:]*): (?P<error>.*)$"
)
#: How the sentence of a cause began or ended that told of the op's own formula, computed with fewer digits.
_ARITHMETIC = re.compile(
    r", in (b?float\d+)$|^(accumulate[sd]|computed|squares) in |^sums are rounded to "
    r"|^(inputs|input \d+|factors) (is|are) (rounded|truncated) to "
)


#: How a placement began that told of a case that did not run on the backend's device, in RE2's syntax.
_EXECUTION = r"(?s)^(?P<execution>emulated|interpreted|unverified)(?:: )?(?P<placement>.*)$"


#: What an oracle's name said beside who it is: that the case brings a tolerance, and why a gradient has no second
#: oracle.
_OWN_TOLERANCE = ", own tolerance"
_NO_DIFFERENCES = r"(?s)^(?P<before>.*?) \(no differences: (?P<why>.*)\)(?P<after>.*)$"
#: How the name of an oracle began that was differences, in whatever way they were taken.
_DIFFERENCES = r"^(finite differences|complex step|differences in \d+ digits)"


def find_cause_code(cause: str | None) -> str:
    """The code of a cause (`tasks.model.kind`) by its sentence: arithmetic is told from the rest; "" for none."""
    if not cause:
        return ""
    return CAUSE_ARITHMETIC if any(_ARITHMETIC.search(words) for words in cause.split(" or ")) else CAUSE_OTHER


def _fill_old_causes(table: pa.Table) -> pa.Table:
    coded = table["cause"].cast(pa.string()).combine_chunks().dictionary_encode()
    codes = pa.array([find_cause_code(x) for x in coded.dictionary.to_pylist()], pa.string())
    return table.append_column("cause_code", codes.take(coded.indices))


def _fill_old_acquitted(table: pa.Table) -> pa.Table:
    status, kind, error = (table[name].cast(pa.string()) for name in ("status", "kind", "error"))
    voted = pc.and_(
        pc.equal(status, Status.INVALID.value), pc.is_in(kind, pa.array([KIND_SUSPECT, KIND_ORACLE]))
    )  # the latter is what it was called at first
    parts = pc.extract_regex(pc.if_else(voted, error, pa.scalar(None, pa.string())), _ACQUITTED)
    found = pc.is_valid(parts)
    if not pc.any(found).as_py():
        return table
    for name in ("acquitted", "was_status", "was_kind"):
        table = table.append_column(name, pc.struct_field(parts, name))
    told = pc.if_else(found, pc.struct_field(parts, "error"), error)
    return table.set_column(table.column_names.index("error"), "error", told)


def _fill_old_execution(table: pa.Table) -> pa.Table:
    placement = table["placement"].cast(pa.string())
    parts = pc.extract_regex(placement, _EXECUTION)
    found = pc.is_valid(parts)
    table = table.append_column(
        "execution",
        pc.if_else(found, pc.struct_field(parts, "execution"), pc.if_else(pc.is_valid(placement), "", None)),
    )
    told = pc.if_else(found, pc.struct_field(parts, "placement"), placement)
    return table.set_column(table.column_names.index("placement"), "placement", told)


def _fill_old_oracle(table: pa.Table) -> pa.Table:
    oracle = table["oracle"].cast(pa.string())
    none = pa.scalar(None, pa.bool_())
    own = pc.ends_with(oracle, _OWN_TOLERANCE)
    oracle = pc.if_else(own, pc.utf8_slice_codeunits(oracle, 0, -len(_OWN_TOLERANCE)), oracle)
    parts = pc.extract_regex(oracle, _NO_DIFFERENCES)
    lacks = pc.is_valid(parts)
    who = pc.binary_join_element_wise(pc.struct_field(parts, "before"), pc.struct_field(parts, "after"), "")
    oracle = pc.if_else(lacks, who, oracle)
    filled = {
        "own_tolerance": pc.if_else(own, True, none),
        "by_differences": pc.if_else(pc.match_substring_regex(oracle, _DIFFERENCES), True, none),
        "no_second_oracle": pc.struct_field(parts, "why"),
    }
    for name, values in filled.items():
        if name not in table.column_names:  # a part of today's farm leaves out what no row of it has
            table = table.append_column(name, values)
    return table.set_column(table.column_names.index("oracle"), "oracle", oracle)


UPGRADES = (
    LakeUpgrade(
        "acquitted", ("was_status", "was_kind", "acquitted", "error"), ("status", "kind", "error"), _fill_old_acquitted
    ),
    LakeUpgrade("cause_code", ("cause_code",), ("cause",), _fill_old_causes),
    LakeUpgrade("execution", ("execution", "placement"), ("placement",), _fill_old_execution),
    LakeUpgrade(
        "own_tolerance",
        ("own_tolerance", "by_differences", "no_second_oracle", "oracle"),
        ("oracle",),
        _fill_old_oracle,
    ),
)


def list_columns_to_upgrade(asked: Collection[str], present: Collection[str]) -> list[str]:
    """What is to be read of a part beside the columns ``asked`` for, so that `upgrade_lake_rows` can fill those."""
    older = [x for x in UPGRADES if x.since not in present and not set(x.fills).isdisjoint(asked)]
    return [name for x in older for name in x.reads if name in present and name not in asked]


def upgrade_lake_rows(table: pa.Table, present: Collection[str]) -> pa.Table:
    """Rows of a part as this farm would have written them. present: its columns, all of which need not have been read.
    What lacks the columns to be read is left as it is."""
    for one in UPGRADES:
        if one.since not in present and set(one.reads) <= set(table.column_names):
            table = one.fill(table)
    return table
