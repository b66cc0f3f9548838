"""Executors by name: the farm's own, and those that packages bring through entry points of the group "farm.executors"."""

from __future__ import annotations

import argparse
import inspect
from typing import TYPE_CHECKING, Any

from farm.commandline import warn_in_a_line
from tasks.nearest import suggest_nearest_names

if TYPE_CHECKING:
    from farm.work.executor import Executor

#: Name → "module:class", imported only when it is asked for. `Request.how` is one of these names, or "auto".
BUILT_IN = {
    "inline": "farm.work.local:InlineExecutor",
    "processes": "farm.work.local:ChildProcesses",
    "ray": "farm.work.ray_cluster:RayCluster",
}
#: Names of earlier versions, by which executors are found for a release more.
FORMER = {"children": "processes"}
#: Options of earlier versions, each of which asked for one executor; they work for a release more.
FORMER_OPTIONS = {"--ray": "ray", "--no-ray": "processes", "--inline": "inline"}


class _FormerOption(argparse.Action):
    """An option that is now a value of ``--on``, and says so."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        warn_in_a_line(f"{option_string} is --on {self.const} now")
        setattr(namespace, self.dest, self.const)


def add_executor_option(parser: argparse._ActionsContainer, default: str = "auto") -> None:
    """``--on``: an executor by its name."""
    where = parser.add_mutually_exclusive_group()
    own = ", ".join(sorted(BUILT_IN.keys() - {"inline"}))
    words = f"run on this executor: {own}, inline (in this process, without isolation), or one that a package brings"
    where.add_argument("--on", metavar="NAME", default=default, help=words)
    for option, name in FORMER_OPTIONS.items():
        where.add_argument(
            option, action=_FormerOption, dest="on", const=name, nargs=0, default=default, help=argparse.SUPPRESS
        )


def get_executor(name: str) -> type[Executor]:
    """The executor called ``name``. Raises ConfigError for one that is unknown, cannot be imported or is not whole."""
    from farm.plan.config_schema import ConfigError  # a command's help needs neither
    from farm.work.executor import Executor
    from tasks.plugins import PluginError, list_plugin_parts

    if name in FORMER:
        warn_in_a_line(f"--on {name} is --on {FORMER[name]} now")
        name = FORMER[name]
    known = list_plugin_parts("executor", BUILT_IN)
    if name not in known:
        raise ConfigError(f"--on: no executor {name!r}{suggest_nearest_names(name, known)}")
    try:
        found = known[name].load()
    except PluginError as error:
        raise ConfigError(f"--on: {error}") from None
    if not issubclass(found, Executor):
        raise ConfigError(f"--on: {known[name].value} is no farm.work.executor.Executor: derive it from that class")
    if inspect.isabstract(found):
        lacking = ", ".join(sorted(found.__abstractmethods__))
        raise ConfigError(f"--on: {known[name].value} lacks the methods {lacking} of farm.work.executor.Executor")
    return found


def find_asked_executor(how: str, address: str | None) -> type[Executor] | None:
    """What a command asks for; None where its plan decides. Raises ConfigError."""
    if how == "auto":
        return get_executor("ray") if address else None
    from farm.plan.config_schema import ConfigError

    found = get_executor(how)
    if address and not found.takes_address:
        raise ConfigError(f"--address: the executor {how} runs on this machine; leave it out, or use --on ray")
    return found
