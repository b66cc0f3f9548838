"""Strategies for Hypothesis: cases of a kernel whose every choice Hypothesis makes, and makes smaller itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farm.client.cases import Case, Cases
from farm.client.kernels import ClientError
from tasks.fuzz.choices import Choices


def cases(function: Callable[..., Any] | str | None = None, **given: Any) -> Any:
    """A strategy of `farm.client.cases.Case`s: ``inputs`` by name and ``check(output)``. The arguments are those of
    `farm.fuzz`, but for cases and seed, which are Hypothesis's. Raises ClientError, also where Hypothesis is not installed."""
    try:
        from hypothesis import strategies
    except ImportError:
        raise ClientError("Hypothesis is not installed: pip install hypothesis") from None
    for name in ("cases", "seed"):
        if name in given:
            raise ClientError(f"{name}: Hypothesis decides it (@settings(max_examples=…), @seed(…))")
    if function is None and "reference" not in given:
        raise ClientError("which kernel? Hand over one with @tasks.op, or give reference= and inputs=")
    known = Cases.of(function, **given)

    @strategies.composite
    def made(draw: Any) -> Case:
        dtype = draw(strategies.sampled_from(list(known.kernel.op.dtypes)))

        return Case(known, dtype, 0, Choices.from_hypothesis(draw))

    return made()
