"""The options of `farm run`."""

from __future__ import annotations

from farm.commandline import CommandParser, add_budget_option, add_list_option, add_results_option
from farm.work import executor_registry


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm run",
        description="Run a matrix of op × dtype × backend, judge the results, keep them in the lake and show them.",
        epilog="exit code: 0 all judged, nothing wrong beyond the known failures; 1 something wrong, nothing judged at all, or a "
        "kernel or model of your own that could not be judged; 2 bad config or command line, a --model that fails on all of its "
        "inputs, or no backend that can run here; 3 incomplete (resume it with --resume), or the farm itself failed",
    )
    parser.add_argument(
        "config",
        nargs="?",
        help="a YAML file, e.g. configs/quick.yaml; a Python file of kernels with @farm.op; or a folder of submissions with a "
        "task.yaml (a leaderboard)",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="your own model instead of a config's ops: an .onnx file, a SavedModel's folder, a Python file with one torch module, or "
        "module:function that returns one",
    )
    words = "its inputs by name in an .npz file, or several files for as many samples"
    add_list_option(parser, "--inputs", "FILE", words, commas=False)
    words = (
        "or inputs that are drawn: x=float32[4,8], ids=int64[2,16]<100 (from 0 on, below 100), sr=int64[] (a scalar); "
        "--samples draws several times. With neither, get_inputs() of the model's file is called"
    )
    add_list_option(parser, "--input", "NAME=DTYPE[SIZES]", words, commas=False)
    parser.add_argument("--dry-run", action="store_true", help="print the cells and where they can run; run nothing")
    add_list_option(parser, "--ops", "GLOB", "only these ops (a list: a,b or a b)")
    add_list_option(parser, "--dtypes", "NAME", "only these dtypes")
    add_list_option(parser, "--backends", "NAME", "only these backends")
    words = (
        "only these checks; of a model of your own, which has forward alone, these instead: levels, shapes, replay …"
    )
    add_list_option(parser, "--checks", "NAME", words)
    parser.add_argument("--samples", type=int, metavar="N", help="at most N samples per op and dtype, on every backend")
    add_budget_option(parser, "running the most informative cells first; --resume runs what was left out")
    add_results_option(parser)
    parser.add_argument("--resume", metavar="RUN_ID", help="resume a run ('last': the newest)")
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="an existing Ray cluster ('auto', host:port, ray://…); default: only this machine",
    )
    executor_registry.add_executor_option(parser)
    parser.add_argument(
        "--offline", action="store_true", help="download nothing: a backend runs with what is installed or built here"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="probe every backend again; forget what they answered before"
    )
    parser.add_argument(
        "--no-dashboard", action="store_true", help="start the local cluster without Ray's dashboard (2 s faster)"
    )
    parser.add_argument(
        "--cpus", type=int, metavar="N", help="run at most N jobs at once on this machine's CPUs (default: all)"
    )
    return parser
