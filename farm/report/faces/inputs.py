"""The picture of an exhaustive case: how far each of all its inputs is off, one line per backend."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

#: Errors in ulps are drawn between these; what is misplaced NaN or Inf is drawn at the upper end.
LEAST, MOST = 2.0**-3, 2.0**20
#: Inputs per point of a line: the worst of them is drawn.
_TOGETHER = 64
#: Columns of the legend, which stands below: above the lines it would hide some.
_SIDE_BY_SIDE = 2
#: Lines that fall on one another, as those of two kernels of one formula do, are told apart.
_DASHES = ("-", "--", ":", "-.")


def draw_inputs_picture(
    title: str, inputs: np.ndarray, errors: Mapping[str, np.ndarray], limit: float, out: Path
) -> Path:
    """Draw |error| in ulps against the input, in ascending order and evenly spaced: every exponent has the same width.

    inputs: (n,) float64; errors: by backend (n,) in ulps, infinite for a misplaced NaN or Inf. Raises OSError, and
    ValueError for a suffix of ``out`` that is no kind of picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    known = np.flatnonzero(np.isfinite(inputs))
    order = known[np.argsort(inputs[known], kind="stable")]
    order = order[: len(order) // _TOGETHER * _TOGETHER]
    rows = -(-len(errors) // _SIDE_BY_SIDE)
    figure = Figure(figsize=(11, 5 + 0.16 * rows), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = np.arange(len(order)).reshape(-1, _TOGETHER).mean(1)
    drawn = {backend: np.nan_to_num(error[order], nan=MOST, posinf=MOST) for backend, error in errors.items()}
    over = {backend: int((error > limit).sum()) for backend, error in drawn.items()}
    most = sorted(drawn, key=lambda backend: (-over[backend], backend))
    for backend, dashes in zip(most, itertools.cycle(_DASHES)):
        worst = drawn[backend].reshape(-1, _TOGETHER).max(1)
        top = float(worst.max(initial=0.0))
        said = "misplaced NaN or Inf" if top >= MOST else f"{top:.3g} ulps"
        axes.plot(
            places,
            worst.clip(LEAST, MOST),
            lw=1.1,
            ls=dashes,
            label=f"{backend}: {said} at worst, {over[backend]:,} inputs beyond the limit",
        )
    axes.axhline(limit, lw=0.6, ls="--", color="#6b7280")
    axes.annotate(f"limit, {limit:g} ulps", (0, limit), fontsize=7, va="bottom", color="#6b7280")
    axes.set_yscale("log", base=2)
    axes.set_ylim(LEAST / 2, MOST * 2)
    at = _choose_input_ticks(inputs[order])
    axes.set_xticks(at, [f"{inputs[order][k]:.3g}" for k in at], fontsize=7, rotation=30)
    axes.set_xlabel(f"input, {len(order)} finite ones, all exponents equally wide")
    axes.set_ylabel("error in ulps")
    axes.set_title(title, fontsize=10)
    axes.grid(lw=0.3)
    figure.legend(loc="outside lower center", ncols=_SIDE_BY_SIDE, fontsize=7, frameon=False)
    figure.savefig(out)
    return out


def _choose_input_ticks(ascending: np.ndarray) -> Sequence[int]:
    """Places of a dozen inputs, spread evenly."""
    return [int(k) for k in np.linspace(0, len(ascending) - 1, 13)] if len(ascending) else []
