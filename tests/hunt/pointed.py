"""The kernels of the reports with what points at their faults: a size, a value, a dtype that their declarations lack."""

from __future__ import annotations

from dataclasses import replace

from tests.hunt import kernels
from tests.hunt.reports import REPORTS

#: Stands behind the name of a kernel that is pointed at.
MARK = ".pointed"

_OPS = {op.name: op for op in kernels.THEME.__farm_ops__}


class _Pointed:
    """A module's ops, as `Theme` has them."""

    __module__ = __name__

    def __init__(self) -> None:
        self.__farm_ops__ = [
            replace(op, name=op.name + MARK, **report.pointed)
            for report in REPORTS
            if report.pointed
            for op in (_OPS[report.op.partition(":")[2]], _OPS[report.twin.partition(":")[2]])
        ]


THEME = _Pointed()
