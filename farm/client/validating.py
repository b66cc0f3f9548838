"""One call that somebody makes himself, judged: `with farm.validate(…) as v: v.output = kernel(…)`."""

from __future__ import annotations

import atexit
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from farm import lake as lakes
from farm.client import process
from farm.client.judging import build_given_kernel
from farm.client.keeping import RowKeeper
from farm.client.kernels import ClientError, Kernel, copy_to_array, is_tensor_or_array
from farm.client.one_sample import TriedSample, judge_prepared_sample, row_passes, start_computed_backend
from farm.client.running import KernelRunOptions
from farm.fleet import scratch_folders
from farm.fleet.child_process import Limits
from farm.plan import kernels
from farm.work.child_pool import POOL
from farm.work.job import Job
from farm.work.supervisor import run_supervised_job_items
from tasks import wire
from tasks.arrays import torch_tree
from tasks.arrays.tree import list_tensor_specs, make_contiguous_tensor
from tasks.backends import BackendSpec
from tasks.catalogs.user import interpreted, load_kernels, watched_accesses
from tasks.gradients import autograd
from tasks.judge import policy_files
from tasks.model import FORWARD, Form, Group, Misbehaviour
from tasks.model.row import Row
from tasks.prepare.cases import PreparedGroup, prepare_group


@dataclass(frozen=True)
class ValidationOutcome:
    """What an output, or the gradients, are worth. row: as in the lake."""

    status: str
    kind: str
    error_units: float | None
    max_diff: float | None
    message: str
    row: Row = field(repr=False)

    @classmethod
    def of(cls, row: Row) -> ValidationOutcome:
        return cls(row.status, row.kind, row.error_units, row.max_diff, process.describe_client_row(row.values()), row)

    @property
    def passed(self) -> bool:
        return row_passes(self.row)


class Validation:
    """A call under judgement. output: what it returned, to be set; outcomes: of the output and, if asked for, of the
    gradients; outcome: the first of them that did not pass, else the first."""

    def __init__(self) -> None:
        self.output: Any = None
        self.outcomes: tuple[ValidationOutcome, ...] = ()
        self.run_id = ""

    @property
    def outcome(self) -> ValidationOutcome:
        if not self.outcomes:
            raise ClientError("there is no outcome until the with block ends")
        return next((o for o in self.outcomes if not o.passed), self.outcomes[0])

    def check(self, imprecise: bool = True) -> None:
        """Raise AssertionError unless all passed. imprecise: whether they may be."""
        __tracebackhide__ = True  # pytest shows the test's line
        if bad := [f"{o.row.check}: {o.message}" for o in self.outcomes if not row_passes(o.row, imprecise)]:
            raise AssertionError("\n".join(bad))


@contextlib.contextmanager
def validate(
    function: Callable[..., Any] | str,
    inputs: Mapping[str, Any] | Sequence[Any],
    reference: Callable[..., Any] | str | None = None,
    backward: bool | Callable[..., Any] = False,
    double: bool = False,
    *,
    op_class: str | None = None,
    policy: str = "error_units",
    results: str | Path | None = None,
    deadline_s: float = 60.0,
    **settings: Any,
) -> Iterator[Validation]:
    """Judge what the block sets as ``v.output``: what ``function`` returned for ``inputs``, tensors on any device.

    function: the kernel, or the name of one that is declared ("module:function", an op of ./farm.yaml). The reference
    runs in a child process that has ``deadline_s`` seconds; in this one, where another cannot import it. backward: the
    gradients of those inputs that require one, through the output's graph; of NumPy arrays those that the kernel's own
    backward computes of all floating inputs, or this function; double: their gradients as well. results: a lake for the
    rows. settings: as in `farm.fuzz`; atol and rtol alone decide of the output, not of gradients. Raises ClientError,
    and what the block raises.
    """
    named = inputs if isinstance(inputs, Mapping) else None
    wrt = [k for k, x in (named or {}).items() if getattr(x, "requires_grad", False)]
    if lost := {"dtypes", "repeats"} & set(settings):
        raise ClientError(f"{min(lost)}: the block computes once, in the dtypes of its inputs: leave it out")
    asked = wrt or backward if backward or double else False
    given = {**settings, "op_class": op_class, "double": double, "repeats": 1}
    kernel = build_given_kernel(function, inputs, reference, backward=asked, **given)
    if (backward or double) and not wrt and kernel.op.framework != "numpy":
        raise ClientError("backward: no input requires a gradient: give inputs as a mapping, with requires_grad=True")
    found = Validation()
    with interpreted.prepare_triton_interpreter() as watch:
        try:
            yield found
        except Exception as error:  # an interpreter's, of an access that it was kept from
            watch.broken = watched_accesses.unwrap_kernel_misbehaviour(error)
            if watch.broken is None:
                raise
    if found.output is None and watch.broken is None:
        raise ClientError("v.output was not set in the with block: v.output = kernel(…)")
    plain = named.values() if named is not None else inputs if isinstance(inputs, tuple | list) else [inputs]
    options = KernelRunOptions(process.name_backend_of_tensors(plain), policy, results, deadline_s)
    rows = []
    with process.isolate_client_settings(), load_kernels.lend_op(kernel.op, kernel.root):
        kernels.announce_config_kernels(options.config(kernel, samples=1))
        for check in kernel.checks:
            group = Group(f"user:{kernel.op.name}", "", kernel.op.dtypes[0], 1, 0, check)
            rows.append(_judge_validated_group(kernel, group, named or {}, found.output, options, watch).row)
    if results is not None:
        try:
            keeper = RowKeeper(options, start_computed_backend(lambda form: []).info)
            keeper.add(kernel, {"samples": 1}, *rows)
            found.run_id = keeper.write()
        except (lakes.LakeError, OSError) as error:
            raise ClientError(str(error)) from None
    found.outcomes = tuple(map(ValidationOutcome.of, rows))


def _judge_validated_group(
    kernel: Kernel,
    group: Group,
    inputs: Mapping[str, Any],
    output: Any,
    options: KernelRunOptions,
    watch: watched_accesses.LaunchWatch,
) -> TriedSample:
    """watch: of the block; what it did to memory is told of whatever it computed."""

    def outputs(form: Form) -> list[Any]:
        made = [] if output is None else collect_validated_outputs(form, kernel, inputs, output)
        if (broken := watch.broken) is None:
            return made
        broken.outputs = made if form.check == FORWARD and made else None
        raise broken

    with tempfile.TemporaryDirectory(dir=scratch_folders.make_scratch_folder()) as folder:
        prepared = _prepare_validated_reference(kernel, group, Path(folder), options.deadline_s)
        given = start_computed_backend(outputs, watch.execution)
        return judge_prepared_sample(prepared, 0, given, policy_files.load_policy(options.policy), Path(folder))


def _prepare_validated_reference(kernel: Kernel, group: Group, cache: Path, deadline_s: float) -> PreparedGroup:
    """The reference of a group's one sample, from a child process if that can import it. Raises ClientError."""
    if kernel.hindrance():
        return prepare_group(group, cache)[1]
    atexit.register(POOL.close)
    job = Job(name="validate", cache=str(cache), limits=Limits(deadline_s), prepare=(wire.ToPrepare(group),))
    prepared = None
    for message in run_supervised_job_items(
        job
    ):  # to its end: a child that has not ended its answer is not asked again
        if isinstance(message, wire.Failed):
            raise ClientError(f"the reference of {kernel.op.name} failed: {message.failure.error}")
        if isinstance(message, wire.Prepared):
            prepared = PreparedGroup(message.path)
        if isinstance(message, wire.Stopped):
            raise ClientError(f"the reference of {kernel.op.name} failed: {message.why}")
    if prepared is not None:
        return prepared
    raise ClientError(f"the reference of {kernel.op.name} gave no answer")


def collect_validated_outputs(form: Form, kernel: Kernel, inputs: Mapping[str, Any], output: Any) -> list[Any]:
    """What was computed, flat: the outputs, or the gradients of the inputs through their graph; NumPy arrays have none,
    and the kernel's own backward computes them. Raises Misbehaviour."""

    specs = list_tensor_specs([form.args, form.kwargs])
    for (name, x), spec in zip(((n, inputs.get(n)) for n in kernel.op.inputs), specs):
        before = make_contiguous_tensor(form.arrays[spec.id], spec)
        if is_tensor_or_array(x) and name not in kernel.op.mutates and copy_to_array(x).tobytes() != before.tobytes():
            raise Misbehaviour("mutation", f"the input {name} was changed (declare mutates: [{name}] if intended)")
    leaves = list(torch_tree.list_output_tensors(output))
    for x in leaves:
        if isinstance(x, (str, bytes)) or not (hasattr(x, "dtype") or isinstance(x, (bool, int, float, complex))):
            raise Misbehaviour("structure", f"v.output has a {type(x).__name__} instead of a tensor or array")
    if form.check == "forward":
        arrays = (np.ndarray, np.generic)
        return [
            np.array(x) if isinstance(x, arrays) else torch_tree.make_output_array(torch_tree.dense(x)) for x in leaves
        ]
    if kernel.op.framework == "numpy":
        return list(BackendSpec.parse("torch-cpu").create().build(form).run())
    if not any(y.requires_grad for y, i in zip(leaves, form.cotangents) if i >= 0):
        raise ClientError("backward: the output has no graph: compute it from the inputs that require a gradient")
    wrt = [inputs[name] for name in kernel.op.inputs if name in kernel.op.gradient]
    given = [
        None if i < 0 else torch_tree.tensor_from_numpy(form.arrays[i].copy()).to(x.device)
        for x, i in zip([*leaves, *wrt], form.cotangents)
    ]
    may = kernel.op.mutates
    kept, writable = (
        [x for k, x in inputs.items() if is_tensor_or_array(x) and (k in may) is told] for told in (False, True)
    )
    left = autograd.UntouchedInputs(kept, given, writable)
    left.note_outputs(leaves)
    own = form.own
    with own.watch() if own else contextlib.nullcontext():  # says what is not the fault of a backward pass of one's own
        made = autograd.differentiate_outputs(form.check, leaves, wrt, given, keep=True)
    left.check(made)
    return [torch_tree.make_output_array(torch_tree.dense(g)) for g in made]
