"""The passports that a run holds its sums against, as its config asks for them."""

from __future__ import annotations

from farm.lake import find_passports
from farm.plan.config_schema import NEWEST_PASSPORTS, NO_PASSPORTS, ConfigError
from farm.plan.matrix import Matrix
from farm.plan.request import RunRequest
from tasks.passport.known_passports import Passport


def choose_planned_passports(request: RunRequest, matrix: Matrix) -> dict[str, tuple[Passport, ...]]:
    """Those of the planned backends and dtypes, by backend; none where the config asks for none.

    Raises ConfigError where it asks for some and the lake has none of any of them, LakeError where the lake cannot be
    read.
    """
    asked = request.config.passports
    if asked == NO_PASSPORTS:
        return {}
    names = [x.name for x in matrix.backends]
    # All of a dtype: what an op adds that was not read is held against the widest that was, and an operator of ONNX against what it is exported to.
    dtypes = {group.dtype for group in matrix.groups}
    found = find_passports(request.lake, names, dtypes, None if asked == NEWEST_PASSPORTS else asked)
    if not found:
        whose = ", ".join(names)
        where = request.lake.uri if asked == NEWEST_PASSPORTS else f"run {asked} of {request.lake.uri}"
        raise ConfigError(
            f"passports: {where} has none of {whose} for these dtypes; make one: farm fingerprint {names[0]}"
        )
    return found
