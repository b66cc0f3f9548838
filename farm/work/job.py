"""Work for one supervisor: what to do, with which backend, within which limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farm.fleet.child_process import Limits
from tasks.backends import BackendSpec
from tasks.catalogs.user_definitions import find_home_backend, get_announced_definitions
from tasks.judge.policy_files import Policy
from tasks.model import UNASKED, BackendInfo
from tasks.passport.known_passports import Passport
from tasks.wire import Place, Screen, ToExport, ToPrepare, ToRun

#: What a backend has said before of a case that it does not implement: columns of its row, and "run", where it said so.
Words = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work for one supervisor, of one of four kinds: groups to prepare, groups to export, a batch of cases, or a device
    to screen.

    info: what the backend answered when it was probed; attempts: earlier losses of cases, and known: words of those
    that the backend is known not to implement, by number of the case in the batch. env: further variables of the child;
    imports: what the child may be forked with, beside what the items tell (`tasks.importing.import_by_name`); kernels:
    definitions of the user's own (`tasks.catalogs.user_definitions`). chunk_s: seconds between two messages with what
    is done (0: a supervisor's own). deadline_s: of a case, instead of that of the limits (which are the child's for as
    long as it lives), where it is not 0. host, device: where it runs, as the supervisor knows it: the node's own name
    if it has one, the numbers of the devices it was given. avoid: places that must not do it. ship: the nodes share no
    cache, so files travel: parcels are those that the items need (path → Ray reference).
    """

    name: str
    cache: str
    limits: Limits
    prepare: tuple[ToPrepare, ...] = ()
    export: tuple[ToExport, ...] = ()
    run: tuple[ToRun, ...] = ()
    screen: Screen | None = None
    backend: BackendSpec | None = None
    policy: Policy | None = None
    passports: tuple[Passport, ...] = ()
    run_id: str = ""
    info: BackendInfo = UNASKED
    attempts: Mapping[int, int] = field(default_factory=dict)
    known: Mapping[int, Words] = field(default_factory=dict)
    deadline_s: float = 0.0
    chunk_s: float = 0.0
    ship: bool = False
    parcels: Mapping[str, Any] = field(default_factory=dict)
    host: str = ""
    device: str = ""
    avoid: tuple[Place, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    kernels: str = field(default_factory=get_announced_definitions)

    @property
    def home(self) -> BackendSpec | None:
        """The backend in whose environment the job prepares or exports (`tasks.catalogs.user_definitions.find_home_backend`), which
        all of its groups have in common; None for the farm's own."""
        items = self.prepare or self.export
        found = find_home_backend(items[0].group.catalog, self.kernels) if items else None
        return BackendSpec(**found) if found else None

    @property
    def kind(self) -> str:
        """ "prepare", "export", "screen" or "batch"."""
        return "prepare" if self.prepare else "export" if self.export else "screen" if self.screen else "batch"
