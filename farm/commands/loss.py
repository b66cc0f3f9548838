"""Say which difference of two losses is normal: how far rounding takes two right runs of a training apart, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from farm.commandline import refuse_in_a_line
from farm.exits import FOUND, OK
from farm.options.loss import make_parser
from tasks.model import Refusal
from tasks.nearest import suggest_nearest_names

if TYPE_CHECKING:
    from tasks.training.exact import ExactTraining
    from tasks.training.free_running import LossSpread

#: Floors that a difference may be, as of a step (`tasks/judge/policies/error_units.json`).
LIMIT = 16.0
#: Lines of the table.
LINES = 12


class LossError(Refusal):
    """A question that names what is not there; the text is one line."""


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if the losses are normal or none are given, 1 if they are not, 2 for a bad command line."""
    args = make_parser().parse_args(argv)
    if args.steps < 2:
        raise LossError(f"--steps: at least 2, not {args.steps}")
    own = _read_losses_file(args.losses) if args.losses else []
    return _print_loss_answer(
        _find_named_training(args.training, args.dtype), args.training, args.dtype, args.seed, args.steps, own
    )


def _find_named_training(name: str, dtype: str) -> ExactTraining:
    from tasks.catalogs.training.catalog import DTYPES
    from tasks.catalogs.training.own import OwnTraining
    from tasks.training import networks
    from tasks.training.exact import STORED, ExactTraining

    if dtype not in DTYPES:
        raise LossError(f"--dtype: no training in {dtype!r}; there are {', '.join(DTYPES)}")
    known = name.removeprefix("training:")
    if known in networks.BUILT_IN:
        network = networks.get_training_network(known)
    elif ":" in name:
        network = OwnTraining(name, name, str(Path.cwd())).network()
    else:
        raise LossError(f"no training is called {name!r}{suggest_nearest_names(known, list(networks.BUILT_IN))}")
    return ExactTraining(network, network.recipe, "" if dtype == STORED else dtype)


def _read_losses_file(file: Path) -> list[float]:
    try:
        lines = file.read_text().split()
    except OSError as error:
        raise LossError(f"--losses: {file}: {error.strerror}") from None
    found = []
    for number, word in enumerate(lines, 1):
        try:
            found.append(float(word))
        except ValueError:
            raise LossError(f"--losses: {file}:{number}: {word!r} is no number: give a loss a line") from None
    if not found:
        raise LossError(f"--losses: {file} is empty: give a loss a line")
    return found


def _print_loss_answer(exact: ExactTraining, name: str, dtype: str, seed: int, steps: int, own: Sequence[float]) -> int:
    from tasks.training.free_running import DRAWS, measure_loss_spread

    steps = max(2, len(own)) if own else steps
    try:
        spread = measure_loss_spread(exact, seed, steps)
    except (ValueError, FloatingPointError) as error:
        raise LossError(f"{name}: {error}") from None
    print(
        f"{name} in {dtype}: {1 + DRAWS} right runs from the same weights on the same data; they differ by rounding alone.\n"
    )
    horizon = min(spread.horizon, steps)
    if horizon < steps:
        print(
            f"From step {horizon} on a rounding makes the weights jump: behind it a difference of losses says nothing."
        )
    last = horizon - 1
    print(
        f"Normal at step {last}: a difference of up to {spread.apart[last]:.2g}; beyond {LIMIT:g} times that, {LIMIT * spread.apart[last]:.2g}, it is not rounding."
    )
    off = [k for k in range(min(len(own), horizon)) if not _count_loss_floors(spread, own, k) <= LIMIT]
    if off:
        print(
            f"Yours is off from step {off[0]} on: {_count_loss_floors(spread, own, off[0]):.3g} floors. `farm run` with the check train names the phase."
        )
    elif own:
        print(f"Yours is normal at all {min(len(own), horizon)} steps that can be compared.")
    print()
    print(
        f"{'step':>6}{'loss':>12}{'two runs differ by':>21}{'of it':>11}" + f"{'yours':>12}{'floors':>10}" * bool(own)
    )
    shown = range(0, steps, max(1, math.ceil(steps / LINES)))
    for k in sorted({*shown, steps - 1}):
        mine = f"{own[k]:12.6f}{_count_loss_floors(spread, own, k):10.3g}" if k < len(own) else ""
        loss, apart = spread.losses[k], spread.apart[k]
        print(f"{k:6}{loss:12.6f}{apart:21.2e}{apart / abs(loss) if loss else 0.0:11.1e}{mine}")
    return FOUND if off else OK


def _count_loss_floors(spread: LossSpread, own: Sequence[float], k: int) -> float:
    off = abs(own[k] - float(spread.losses[k]))
    return off / float(spread.apart[k]) if math.isfinite(off) else math.inf
