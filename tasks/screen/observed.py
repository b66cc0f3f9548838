"""What was seen of one exercise on one device: plain data, which travels and decides."""

from __future__ import annotations

from dataclasses import dataclass

#: Equal parts of an output whose digests are told apart: a fault is somewhere, another algorithm everywhere.
PARTS = 64


@dataclass(frozen=True)
class OutputVariant:
    """Bytes that an exercise gave in ``count`` passes, first in pass ``first``.

    digest: of all bytes, parts: of each of PARTS equal parts; wrong: elements that are not the exact answer, or beyond
    the bound; bits: which bits of those elements are flipped, hexadecimal, "" of an inexact exercise; where: the first
    of them; units: the largest error over the bound (0 of exact answers), parts_units: of each part; odd: of copies of
    one number, the share that has other bytes than most copies, and farther: the share of these that is farther from
    float64; heat: what the device said of itself.
    """

    digest: str
    count: int
    first: int
    wrong: int = 0
    bits: str = ""
    where: int = -1
    units: float = 0.0
    parts: tuple[str, ...] = ()
    parts_units: tuple[float, ...] = ()
    odd: float = 0.0
    farther: float = 0.0
    heat: str = ""


@dataclass(frozen=True)
class ObservedExercise:
    """All passes of one exercise on one device.

    variants: what it gave, the most frequent first; further ones than are kept are in ``more``, by number of passes;
    elements: of the output; steps: operations of one pass; pass_s: seconds that a pass through all exercises takes;
    skipped: why it was not run.
    """

    name: str
    dtype: str
    unit: str
    exact: bool = True
    passes: int = 0
    variants: tuple[OutputVariant, ...] = ()
    more: int = 0
    elements: int = 0
    steps: int = 0
    build_ms: float = 0.0
    run_ms: float = 0.0
    pass_s: float = 0.0
    shapes: str = ""
    placement: str = ""
    error_type: str = ""
    skipped: str = ""
    heat: str = ""

    @property
    def label(self) -> str:
        return f"{self.name}/{self.dtype}"

    @property
    def usual(self) -> OutputVariant:
        """What it gave in most passes."""
        return self.variants[0]
