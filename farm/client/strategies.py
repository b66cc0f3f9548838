"""Strategies for Hypothesis: cases of a kernel, and pairs of shapes, whose every choice Hypothesis makes and makes smaller itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farm.client.cases import Case, Cases
from farm.client.kernels import ClientError
from tasks.draw.choices import DrawnChoices


def cases(function: Callable[..., Any] | str | None = None, **given: Any) -> Any:
    """A strategy of `farm.client.cases.Case`s: ``inputs`` by name and ``check(output)``. The arguments are those of
    `farm.fuzz`, but for cases and seed, which are Hypothesis's. Raises ClientError, also where Hypothesis is not
    installed."""
    strategies = _import_hypothesis_strategies()
    for name in ("cases", "seed"):
        if name in given:
            raise ClientError(f"{name}: Hypothesis decides it (@settings(max_examples=…), @seed(…))")
    if function is None and "reference" not in given:
        raise ClientError("which kernel? Pass one with @farm.op, or give reference= and inputs=")
    known = Cases.of(function, **given)

    @strategies.composite
    def draw_case(draw: Any) -> Case:
        dtype = draw(strategies.sampled_from(list(known.kernel.op.dtypes)))

        return Case(known, dtype, 0, DrawnChoices.from_hypothesis(draw), seeded=False)

    return draw_case()


def broadcastable(most_axes: int = 3, largest: int = 4) -> Any:
    """A strategy of pairs (shape, partner): each length of the partner is the shape's or 1, and leading axes may be
    left out. Where the gradient of one of them is summed along a wrong axis, few pairs are enough to see it. Raises
    ClientError."""
    strategies = _import_hypothesis_strategies()

    @strategies.composite
    def pair(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        choose = DrawnChoices.from_hypothesis(draw)
        shape = tuple(choose.int(1, largest) for _ in range(choose.int(1, most_axes)))
        partner = tuple(choose.of((1, n)) for n in shape)
        return shape, partner[choose.int(0, len(shape)) :]

    return pair()


def _import_hypothesis_strategies() -> Any:
    try:
        from hypothesis import strategies
    except ImportError:
        raise ClientError("Hypothesis is not installed: pip install hypothesis") from None
    return strategies
