"""Searches that a child process can be asked for: parts of the hunt, which an installation may go without."""

from __future__ import annotations

import functools
import importlib.util

from tasks.plugins import PluginPart

#: By what is searched for (`tasks.wire.Search`): "module:class", which has `begin` and `go_on`.
SEARCHES = {"Localise": "tasks.hunt.localise.serving:Localiser", "Minimise": "tasks.hunt.minimise.serving:Minimiser"}
#: How many times as long as its seconds of CPU a search may take by the clock: what a busy machine leaves it.
PATIENCE = 4.0


@functools.cache
def find_hunt_search(what: str) -> PluginPart | None:
    """The search for something; None where its package is not installed."""
    return PluginPart("search", what, SEARCHES[what]) if importlib.util.find_spec("tasks.hunt") else None
