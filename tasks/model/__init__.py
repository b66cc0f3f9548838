"""The vocabulary of the farm: statuses, culprits, dtypes and numbers rounded to them, groups, cases, forms, programs and their sessions, decoders and requests, leaves and their floors, rows and their flags, traces, and the errors a backend may raise."""

from tasks.model.backend_info import UNASKED, BackendInfo
from tasks.model.case import (
    DISTRIBUTIONS,
    EXHAUSTIVE,
    FILES,
    FORWARD,
    FUZZ,
    RACE_S,
    STRUCTURED,
    Baseline,
    Chain,
    Elsewhere,
    Flushes,
    Form,
    Group,
    Oracle,
    OwnKernel,
    Placing,
    Program,
    RuntimeInfo,
    Timed,
    TimedCalls,
    build_one_by_one,
    label_op,
)
from tasks.model.dtypes import (
    DTYPES,
    EPS,
    LARGEST,
    PART,
    SMALLEST_NORMAL,
    get_numpy_dtype,
    get_wide_dtype,
    is_complex_dtype,
    is_inexact_dtype,
    round_to_dtype,
)
from tasks.model.errors import (
    Broken,
    Ended,
    Fallback,
    Hung,
    Invalid,
    Misbehaviour,
    Refusal,
    Unavailable,
    Unsupported,
    Vacuous,
)
from tasks.model.leaf import Leaf, compute_row_floor
from tasks.model.op_class import WITHOUT_NOISE, OpClass
from tasks.model.session import Replayed, Session, Stateless, TensorSession, run_session
from tasks.model.status import (
    BY_SEVERITY,
    DEADLY,
    FAILED,
    FINDINGS,
    JUDGED,
    MEASURED,
    NOT_VALID,
    PASSED,
    Status,
    name_statuses,
)

#: What others may build on (docs/stability.md), exported for type checkers as well.
__all__ = [
    "Fallback",
    "Form",
    "Group",
    "Invalid",
    "Leaf",
    "Misbehaviour",
    "OpClass",
    "Program",
    "Refusal",
    "RuntimeInfo",
    "Session",
    "Status",
    "Unavailable",
    "Unsupported",
    "Vacuous",
]
