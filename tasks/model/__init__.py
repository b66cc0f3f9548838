"""The vocabulary of the farm: statuses, dtypes, groups, cases, forms, leaves, rows and their flags, and the errors a backend may raise."""

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
    Begun,
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
    label_of,
    one_by_one,
)
from tasks.model.dtypes import (
    DTYPES,
    EPS,
    LARGEST,
    PART,
    SMALLEST_NORMAL,
    is_complex,
    is_inexact,
    np_dtype,
    round_to_dtype,
    wide,
)
from tasks.model.errors import Ended, Fallback, Hung, Invalid, Misbehaviour, Refusal, Unavailable, Unsupported, Vacuous
from tasks.model.leaf import Leaf, row_floor
from tasks.model.op_class import WITHOUT_NOISE, OpClass
from tasks.model.session import Replayed, Session, Stateless, TensorSession, run_session
from tasks.model.status import BY_SEVERITY, DEADLY, FAILED, FINDINGS, JUDGED, MEASURED, NOT_VALID, PASSED, Status, names
