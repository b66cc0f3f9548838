"""Check the gradients of an op, or of your own function (my.py:f), against both oracles; --table for those of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from farm.commandline import refuse_in_a_line
from farm.options.gradcheck import make_parser
from farm.report.tables.gradient_oracles import AGREE, WORST_FIRST
from farm.reproduction.op_gradients import (
    GradcheckError,
    OpGradientQuestion,
    check_op_gradients,
    plot_difference_errors,
    table_run_gradients,
)
from tasks import user_sources


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if the oracles and the backend agree wherever they were compared, 1 if not, 2 for a bad command
    line."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.table:
        found = table_run_gradients(args.results, args.run)
        found.to_csv(sys.stdout, index=False, lineterminator="\n")
        return int(found[[name for name in WORST_FIRST if name not in AGREE]].to_numpy().any())
    if not args.op:
        parser.error("name an op, or ask for --table")
    if args.samples < 1:
        raise GradcheckError(f"--samples: at least 1, not {args.samples}")
    args.op = _name_function_in_file(args.op)
    question = OpGradientQuestion(
        args.op, args.dtype or "float64", args.samples, args.sample, args.double, args.backend
    )
    if not _is_users_function(args.op):
        if args.input:
            raise GradcheckError(f"--input: the samples of {args.op} are those of the torch catalog")
        return _print_gradcheck_answer(question, args.plot)
    from farm.client import named_function, process

    with named_function.lend_function(args.op, args.input, args.dtype) as own:
        question = replace(question, op=own.op, dtype=own.dtype)
        return _print_gradcheck_answer(question, args.plot, process.make_client_cache(), own.why)


def _name_function_in_file(name: str) -> str:
    """A function of the user's with its name, where only its file is named and that has one; any other op as it is."""
    if not name.endswith(".py"):
        return name
    try:
        found = user_sources.list_public_functions(Path(name))
    except SyntaxError as error:
        raise GradcheckError(f"{name}:{error.lineno}: {error.msg}") from None
    except OSError as error:
        raise GradcheckError(f"{name}: {error.strerror}") from None
    if len(found) == 1:
        return f"{name}:{found[0]}"
    several = f"{len(found)} functions; name one: {', '.join(f'{name}:{x}' for x in found)}"
    raise GradcheckError(f"{name} has {several if found else 'no function'}")


def _is_users_function(name: str) -> bool:
    """Whether an op is a function of the user's: of a file or module, or one that ./farm.yaml names."""
    if name.startswith("torch:"):
        return False
    if ":" in name:
        return True
    if not Path("farm.yaml").is_file():
        return False
    from farm.client.kernels import list_config_kernels

    return name in list_config_kernels()


def _print_gradcheck_answer(
    question: OpGradientQuestion, path: Path | None, cache: Path | None = None, why: str = ""
) -> int:
    """Print the answer and plot it. why: there is no gradient to judge."""
    answer = check_op_gradients(question, cache)
    if why and not path:
        raise GradcheckError(f"{question.op}: {why}; --plot draws the error of its differences")
    lines = [f"  no gradient to judge: {why}"] if why else [*answer.summary(), "error units, by sample:", *answer.lines]
    print("\n".join([answer.title, *lines]))
    if path:
        plot_difference_errors(answer.samples, path)
        print(f"error against ε: {path}")
    return 0 if answer.agrees else 1
