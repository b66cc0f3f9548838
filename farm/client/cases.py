"""Single cases for tests: inputs that are drawn, and what a test computed of them judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from farm.client.judging import refuse_less_than_one
from farm.client.keeping import RowKeeper
from farm.client.kernels import ClientError, Kernel, find_kernel
from farm.client.one_sample import judge_kernel_sample, row_passes, start_computed_backend
from farm.client.process import describe_client_row, isolate_client_settings, move_to_client_device, name_backend_here
from farm.client.running import KernelRunOptions
from farm.client.validating import collect_validated_outputs
from farm.program import write_results_option
from tasks.arrays import layouts, torch_tree
from tasks.arrays.noise import DRAWS
from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Sample
from tasks.catalogs.user import catalog, fuzzed_samples, input_layouts, load_kernels
from tasks.catalogs.user.load_kernels import DeclaredKernel
from tasks.draw.choices import DrawnChoices
from tasks.judge import policy_files
from tasks.model import FUZZ, Group, Status
from tasks.model.row import Row

#: Told of the rows of a case that was checked: kernel, settings of the config that plans them, rows.
Keep = Callable[[Kernel, dict[str, Any], Row], None]


@dataclass(repr=False)
class Case:
    """Inputs of one case, and what is to be computed of them. choices: what decided sizes and values; checked: whether
    `check` was called; keep: told of its rows; seeded: its choices are those of `seed`."""

    cases: Cases
    dtype: str
    index: int
    choices: DrawnChoices = field(repr=False)
    checked: bool = False
    keep: Keep | None = field(default=None, repr=False)
    seeded: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        op = self.cases.kernel.op
        one, group = (
            DeclaredKernel(op, (), self.cases.kernel.root),
            self._group("backward" if op.gradient else "forward"),
        )
        made = catalog.draw_kernel_case(one, group, self.choices)
        structured = made.structured
        if structured is not None and not catalog.takes_structure(one, group, made.dims, structured):
            structured = None
        self.structure = "" if structured is None else structured.label
        self.dims, self.arrays = made.dims, made.plain if structured is None else structured.arrays
        self.places = made.lay(structured=made.structured is not None)(self.arrays)
        self.places = {**self.places, **input_layouts.build_declared_places(op, self.arrays, self.dims)}
        _, _, self.arrays = input_layouts.build_kernel_storages(self.arrays, self.places)
        self._inputs: dict[str, Any] | None = None

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in self.arrays.items())
        return f"Case({self.cases.kernel.op.name}, {self.dtype}, {shapes}, choices {self.choices.taken})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # Hypothesis would print every field

    @property
    def name(self) -> str:
        return f"{self.dtype}-{self.index}"

    @property
    def seed(self) -> int:
        """The seed of this case alone."""
        return fuzzed_samples.derive_kernel_case_seed(self.cases.seed, self.index)

    @property
    def inputs(self) -> dict[str, Any]:
        """The kernel's arguments by name: tensors on the device that this process has, those to be differentiated with
        requires_grad; the op's kwargs."""
        op = self.cases.kernel.op
        if self._inputs is None:
            from tasks.catalogs.user.dims import evaluate_keyword_sizes

            made = {name: _lay_argument(x, self.places.get(name), op.framework) for name, x in self.arrays.items()}
            for name in op.gradient if op.framework != "numpy" else ():
                made[name].requires_grad_()
            self._inputs = made | evaluate_keyword_sizes(op.kwargs, self.dims)
        return self._inputs

    def check(self, output: Any) -> None:
        """Judge what the kernel returned for `inputs`, and, where the marker says backward or double, the gradients
        through its graph.

        Raises AssertionError with what is wrong, or merely imprecise where the marker says imprecise=False."""
        __tracebackhide__ = True  # pytest shows the test's line
        self.checked = True
        bad = []
        for check in self.cases.kernel.checks:
            row = self._judge_output(check, output)
            if self.keep is not None:
                self.keep(self.cases.kernel, self.cases.settings, row)
            if not row_passes(row, self.cases.imprecise) and row.status != Status.VACUOUS:
                bad.append(
                    f"{row.case_id} [{row.shapes}] {describe_client_row(row.values())}"
                    + f"; seed {self.seed}" * self.seeded
                )
        if bad:
            raise AssertionError("\n".join(bad))

    def _group(self, check: str) -> Group:
        cases = self.cases
        return Group(f"user:{cases.kernel.op.name}", "", self.dtype, cases.cases, cases.seed, check, FUZZ)

    def _judge_output(self, check: str, output: Any) -> Row:
        kernel, cases, group = self.cases.kernel, self.cases, self._group(check)
        with isolate_client_settings(), load_kernels.lend_op(kernel.op, kernel.root) as one:
            made: Sample = catalog.make_sample_of_inputs(
                one, self.dims, lambda: dict(self.arrays), group, self.index, DRAWS, lambda _: self.places
            )
            made.columns["choices"] = self.choices.taken
            if self.structure:
                made.columns["structure"] = self.structure
            given = start_computed_backend(lambda form: collect_validated_outputs(form, kernel, self.inputs, output))
            return judge_kernel_sample(group, replace(made, repeats=1), given, cases.policy).row


def _lay_argument(x: np.ndarray, place: TensorSpec | None, framework: str) -> Any:
    """A tensor or array of some values, which lies in memory as a view does."""
    storage, spec = (
        (x.copy(), TensorSpec(0))
        if place is None
        else layouts.store_strided_array(x, place.strides or (), place.offset)
    )
    if framework == "numpy":
        return spec.view(storage, writeable=True)
    made = move_to_client_device(torch_tree.tensor_from_numpy(storage))
    return made if place is None else made.as_strided(spec.shape, spec.strides, spec.offset)


@dataclass(frozen=True)
class Cases:
    """The cases of one kernel: ``cases`` in each of its dtypes, drawn from ``seed``. named: whether the kernel is
    known; where it is not, rows say nothing that could be run again, and are not kept; imprecise: whether results may
    be."""

    kernel: Kernel
    cases: int = 20
    seed: int = 0
    policy: policy_files.Policy = field(default_factory=lambda: policy_files.load_policy("error_units"), repr=False)
    named: bool = True
    imprecise: bool = True

    @classmethod
    def of(
        cls,
        function: Callable[..., Any] | str | None,
        reference: Callable[..., Any] | str | None = None,
        *shapes: Any,
        cases: int = 20,
        seed: int = 0,
        policy: str = "error_units",
        imprecise: bool = True,
        **settings: Any,
    ) -> Cases:
        """As `farm.fuzz`; without a function, a test computes what it likes, and the reference says what is right.
        shapes, settings: as of `find_kernel`.

        Raises ClientError."""
        refuse_less_than_one("cases", cases)
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise ClientError(f"seed: a whole number from 0 to {2**63 - 1}, not {seed!r}")
        called = function if function is not None else reference
        assert called is not None
        kernel = find_kernel(called, reference, *shapes, **settings)
        try:
            return cls(kernel, cases, seed, policy_files.load_policy(policy), function is not None, imprecise)
        except policy_files.PolicyError as error:
            raise ClientError(str(error)) from None

    @property
    def settings(self) -> dict[str, Any]:
        """Those of the config that plans the rows."""
        return {"samples": self.cases, "distributions": [FUZZ], "seed": self.seed}

    def __iter__(self) -> Iterator[Case]:
        for dtype in self.kernel.op.dtypes:
            for index in range(self.cases):
                yield self.case(dtype, index)

    def case(self, dtype: str, index: int) -> Case:
        return Case(
            self, dtype, index, DrawnChoices.from_seed(fuzzed_samples.derive_kernel_case_seed(self.seed, index))
        )


class Kept:
    """The rows of all cases of a test session, for a run of the lake."""

    def __init__(self, results: str) -> None:
        self.results = results
        self._keeper: RowKeeper | None = None

    def add(self, kernel: Kernel, settings: dict[str, Any], row: Row) -> None:
        if self._keeper is None:
            self._keeper = RowKeeper(
                KernelRunOptions(name_backend_here(), results=self.results),
                start_computed_backend(lambda form: []).info,
            )
        self._keeper.add(kernel, settings, row)

    def write(self) -> str:
        """Write them; what is to be said of it, "" if there are none."""
        if self._keeper is None:
            return ""
        return f"farm: run {self._keeper.write()} of {self.results}: farm report{write_results_option(self.results)}"
