"""What is read of one sum, as rows say it and as it travels to where results are judged; how it is read is in `tasks.passport.read_sum`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tasks.model.row import declare_row_column
from tasks.passport.device_sum import ADDRESS, CODES, WARMED

#: Share of unseen results that a model must give to the bit to be called known.
KNOWN = 0.99


@dataclass(frozen=True)
class NodeRule:
    """How a step adds. bits: that its result keeps; rounding: of `tasks.passport.adder.ROUNDINGS`, "" where it could
    not be seen; aligned: of a step of several terms, the bits kept of each beside the largest, 0 where that adds two;
    alignment: how the others' are lost; exponents: PRODUCTS or FACTORS, "" where that adds two."""

    bits: int
    rounding: str = ""
    aligned: int = 0
    alignment: str = ""
    exponents: str = ""


@dataclass(frozen=True)
class SumReading:
    """What was read of one sum: a row of the table `passports`."""

    where: str = declare_row_column("string", "case", "which element of the output: the first, or the last", default="")
    part: str = declare_row_column(
        "string", "case", "which sum of the op, where it has several: mean, squares, weights, values", default=""
    )
    rows: int | None = declare_row_column("int32", "case", "rows of the call, independent sums", "1")
    terms: int = declare_row_column("int32", "case", "terms of the sum, a bias among them", "1", default=0)
    made_of: str | None = declare_row_column(
        "string",
        "case",
        "what is added: products, terms as they are, or what the op makes of them (exponentials, squares, deviations); and whether the sum is divided by their number",
    )
    code: str = declare_row_column(
        "string", "outcome", f"empty where all was read; else why not: {', '.join(CODES)}", default=""
    )
    words: str | None = declare_row_column("string", "outcome", "the same for people")
    tree: tuple[int, ...] | None = declare_row_column(
        "list<int64>",
        "outcome",
        "the order of adding: for each term, then for each step, the number of the step that takes it; -1: the result",
    )
    kind: str | None = declare_row_column("string", "outcome", "what that order is called")
    kind_code: str | None = declare_row_column(
        "string", "outcome", "the first word of that: sequential, lanes, blocks, pairwise, fused, …, irregular"
    )
    size: int | None = declare_row_column(
        "int32", "outcome", "terms of its blocks or of what is added in one step, or how many lanes", "1"
    )
    bits: int | None = declare_row_column(
        "int32", "outcome", "bits of a significand that most steps keep of their result", "bit"
    )
    accumulator: str | None = declare_row_column(
        "string", "outcome", "the dtype that has so many bits; empty: none has"
    )
    rounding: str | None = declare_row_column(
        "string", "outcome", "how most steps lose the rest: nearest even, nearest away, truncated, up, down, other"
    )
    aligned: int | None = declare_row_column(
        "int32", "outcome", "of steps of several terms: bits kept of each beside the largest; 0: none", "bit"
    )
    alignment: str | None = declare_row_column("string", "outcome", "how those lose the rest")
    exponents: str | None = declare_row_column(
        "string",
        "outcome",
        "what tells the largest of them: exponents of the products, or the sums of those of their factors",
    )
    others: tuple[int, ...] | None = declare_row_column(
        "list<int64>",
        "outcome",
        "steps that keep other bits: the number of the step among the steps, its bits, and so on",
    )
    fused: tuple[int, ...] | None = declare_row_column(
        "list<int64>", "outcome", "terms whose product is not rounded before it is added"
    )
    taken: int | None = declare_row_column(
        "int32", "outcome", "bits of a factor that a product takes, where it has more (as TF32 has 11); 0: all", "bit"
    )
    taking: str | None = declare_row_column("string", "outcome", "how factors lose the rest")
    finish: str | None = declare_row_column(
        "string", "outcome", "what is done with the sum: divide, or reciprocal (times one over the number of terms)"
    )
    flushes_inputs: bool | None = declare_row_column(
        "bool", "outcome", "whether subnormal inputs are zero; null: not known"
    )
    flushes_results: bool | None = declare_row_column("bool", "outcome", "the same of results")
    specials: str | None = declare_row_column("string", "outcome", "what Inf, Inf − Inf and NaN become")
    overflow: str | None = declare_row_column(
        "string",
        "outcome",
        "what 2P becomes, and 2P − P, of the dtype's largest power of two P: inf, held (what it is), less (sums saturate)",
    )
    predicted: int | None = declare_row_column(
        "int32", "metrics", "results on unseen inputs that the model gave to the bit", "1"
    )
    unseen: int | None = declare_row_column("int32", "metrics", "unseen inputs", "1")
    calls: int | None = declare_row_column(
        "int32", "metrics", "calls of the device; 0: it answered as the first element, in the same calls", "1"
    )
    cpu_ms: float | None = declare_row_column(
        "float64", "times", "CPU time that the reading took of the process, calls of a device in it among it", "ms"
    )

    @property
    def known(self) -> bool:
        """Whether its model gives the results."""
        return self.has_known_adder and self.keeps_order

    @property
    def keeps_order(self) -> bool:
        """Whether nothing tells that its order is another one in other calls."""
        return self.code not in (ADDRESS, WARMED)

    @property
    def has_known_adder(self) -> bool:
        """Whether its model gives the results of the calls that it was read in: how its steps add is known, and in what
        order unless that is another one in other calls."""
        is_read = self.code in ("", ADDRESS, WARMED)
        return is_read and bool(self.unseen) and (self.predicted or 0) >= KNOWN * (self.unseen or 0)

    @property
    def adder(self) -> tuple[Any, ...]:
        """How its steps add, as far as that may change a result."""
        return self.rule, self.others, self.fused, self.finish, self.taken or 0, self.taking or ""

    @property
    def rule(self) -> NodeRule:
        """How most of its steps add."""
        return NodeRule(
            self.bits or 0, self.rounding or "", self.aligned or 0, self.alignment or "", self.exponents or ""
        )

    @property
    def rules(self) -> frozenset[NodeRule]:
        """How its steps add, each of them."""
        return frozenset([self.rule, *(replace(self.rule, bits=bits) for bits in (self.others or ())[1::2])])

    @property
    def least_bits(self) -> int:
        """Bits that the narrowest of its steps keeps of its result; 0 where none were read."""
        return min(x.bits for x in self.rules)

    def describe(self) -> str:
        """The order and the width in a few words; why there are none of what could not be read."""
        if self.bits is None and not self.kind:
            return self.words or self.code
        width = self.accumulator or f"{self.bits} bits"
        rounding = "" if self.rounding in (None, "", "nearest even") else f" {self.rounding}"
        aligned = f", {self.aligned} bits aligned" if self.aligned else ""
        others = f", {len(self.others) // 2} steps in other bits" if self.others else ""
        others += f", factors of {self.taken} bits" if self.taken else ""
        if self.bits is None:
            return str(self.kind)
        return f"{self.kind}, in {width}{rounding}{aligned}{others}{', FMA' * bool(self.fused)}"
