"""Who is wrong: the observations of one exercise on equal devices, and what follows for each of them.

Devices are equal that have the same model, runtime, driver and program. Right answers need no equals: an exact exercise
has one, and beyond the bound of an inexact one lies no honest order of its sums. Within the bound bytes may differ,
because a runtime may choose its algorithm by stopwatch, for each process or each call. Then the dissent is told. It is
a fault where no algorithm explains it: in a few places only, and far more wrong there than anybody else is anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.screen.observed import ObservedExercise, OutputVariant

#: Of the parts of an output, the share that a fault may touch, where another algorithm touches them all; and how many
#: times as far from float64 it must be there as the usual output is anywhere.
FEW, TIMES = 0.25, 8.0
#: Of copies of one number the share that differs where a lane is stuck (one of 64 or of 32, half of whose results it
#: leaves as they are), and of those the share that is farther from float64. The end of a vector that is computed by
#: other code is shorter.
LANES, LANES_MOST, FARTHER = 1 / 160, 1 / 4, 0.9
#: Equals of whom more than half must agree.
EQUALS = 3

#: What is said of a device and an exercise: right; other bytes than its equals or than itself before, and nothing
#: decides; wrong in the same way as all of its equals, or everywhere, so that it is no fault of its own; wrong.
RIGHT, DISSENT, COMMON, WRONG = "right", "dissent", "common", "wrong"


@dataclass(frozen=True)
class ScreenDecision:
    """What follows of an exercise on a device. kind: RIGHT, DISSENT, COMMON or WRONG; why: for people; at: the variants
    that it goes by, by place in those of the observation."""

    kind: str
    why: str = ""
    at: tuple[int, ...] = ()

    @property
    def is_sick(self) -> bool:
        """Whether the device is not to be believed any more."""
        return self.kind == WRONG


def decide_devices(equals: Mapping[str, ObservedExercise]) -> dict[str, ScreenDecision]:
    """What follows for each of the devices, by name, that have run an exercise, from what all of them gave."""
    usual = Counter(one.usual.digest for one in equals.values())
    digest, votes = usual.most_common(1)[0] if usual else ("", 0)
    majority = digest if len(equals) >= EQUALS and votes > len(equals) / 2 else ""
    witness = next((one.usual for one in equals.values() if one.usual.digest == majority), None)
    return {name: _decide_one_device(one, witness, votes, len(equals)) for name, one in equals.items()}


def _decide_one_device(
    one: ObservedExercise, witness: OutputVariant | None, votes: int, devices: int
) -> ScreenDecision:
    wrong = [k for k, v in enumerate(one.variants) if v.wrong or _has_odd_lanes(v)]
    if wrong and _is_fault_arithmetic(one):
        return ScreenDecision(
            COMMON,
            f"{describe_screened_output(one.usual, one)}; alike wherever it is computed, as a coarser arithmetic gives it",
            (0,),
        )
    if wrong:
        shared = witness is not None and one.usual.digest == witness.digest
        own = [k for k in wrong if not shared or k > 0]
        if not own:
            return ScreenDecision(
                COMMON,
                f"{describe_screened_output(one.usual, one)}; {votes} of {devices} equal devices give the same bytes",
                (0,),
            )
        return ScreenDecision(WRONG, describe_screened_output(one.variants[own[0]], one), tuple(own))
    for k, variant in enumerate(one.variants[1:], 1):
        if _is_fault_spot(variant, one.usual):
            why = f"other bytes than in most passes in few places, and {_describe_times_usual(variant, one.usual)} as far from float64"
            return ScreenDecision(WRONG, why, (k,))
    if witness is not None and one.usual.digest != witness.digest:
        if _is_fault_spot(one.usual, witness):
            why = f"other bytes than {votes} of {devices} equal devices in few places, and {_describe_times_usual(one.usual, witness)} as far from float64"
            return ScreenDecision(WRONG, why, (0,))
        return ScreenDecision(
            DISSENT,
            f"other bytes than {votes} of {devices} equal devices, within the bound: float64 does not decide",
            (0,),
        )
    if len(one.variants) > 1:
        ways = len(one.variants) + bool(one.more)
        return ScreenDecision(
            DISSENT, f"{ways} different results of the same call, within the bound", tuple(range(1, len(one.variants)))
        )
    return ScreenDecision(RIGHT)


def _is_fault_arithmetic(one: ObservedExercise) -> bool:
    """Whether most elements are wrong in the same way wherever they are computed: then the device computes otherwise
    than it says, and does so soundly."""
    return len(one.variants) == 1 and one.passes > 1 and one.usual.wrong > one.elements / 2


def _has_odd_lanes(variant: OutputVariant) -> bool:
    """Whether copies of one number differ as a stuck lane has them: some of all, and the worse."""
    return LANES <= variant.odd <= LANES_MOST and variant.farther >= FARTHER


def _is_fault_spot(variant: OutputVariant, usual: OutputVariant) -> bool:
    """Whether an output differs from the usual one in few places, where it is far more wrong than the usual one
    anywhere."""
    if not variant.parts_units or len(variant.parts) != len(usual.parts):
        return False
    differ = [k for k, (one, other) in enumerate(zip(variant.parts, usual.parts)) if one != other]
    return len(differ) <= FEW * len(usual.parts) and variant.units >= TIMES * usual.units > 0


def _describe_times_usual(variant: OutputVariant, usual: OutputVariant) -> str:
    return f"{variant.units / usual.units:.3g} times"


def describe_screened_output(variant: OutputVariant, one: ObservedExercise) -> str:
    """In words how an output is wrong."""
    if _has_odd_lanes(variant) and not variant.wrong:
        return f"{variant.odd:.2%} of the copies of one number differ from the others, farther from float64"
    how = f"bits 0x{variant.bits} flipped" if one.exact else f"up to {variant.units:.3g} times the bound"
    passes = sum(v.count for v in one.variants if v.wrong) + (one.more if one.exact else 0)
    first = f"{variant.wrong} of {one.elements} elements wrong in pass {variant.first}, first {variant.where}: {how}"
    return f"{first}; wrong in {passes} of {one.passes} passes"
