"""Groups of cases, the forms a sample takes, and what a backend says of itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tasks.model.dtypes import EPS
from tasks.model.session import Session, Stateless, TensorSession
from tasks.model.stored_at_once import store_at_once

#: Where a sample's values come from: the op's own list, or generated (see `tasks.arrays.inputs`); sizes and values of a
#: fuzzed sample are both drawn from its seed; an exhaustive one has every value of the dtype
#: (`tasks.arrays.every_value`); of a structured one every sample has a structure of one of its inputs
#: (`tasks.draw.structure`).
STRUCTURED, FUZZ, EXHAUSTIVE = "structured", "fuzz", "exhaustive"
DISTRIBUTIONS = ("own", "regular", "boundary", "adversarial", "nan", STRUCTURED, FUZZ, EXHAUSTIVE)

#: The outputs of a sample as another process of the backend computes them with so many threads; ``front``: a command
#: that stands before that process, ``env``: further variables of it (by name). Raises Unsupported where there can be
#: none, Ended where it dies.
Elsewhere = Callable[..., Sequence[Any]]

#: The check of an op's outputs. Every check without samples of its own takes this one's.
FORWARD = "forward"

#: Seconds that a race between two programs may take where nobody says otherwise.
RACE_S = 8.0


def label_op(op: str, variant: str) -> str:
    """Short name of an op with its variant: ``torch:std_mean.unbiased``."""
    return f"{op}.{variant}" if variant else op


@dataclass(frozen=True)
class Group:
    """All samples of one (check, op, variant, dtype, distribution) of a catalog: what is prepared in one go.

    ``samples`` is the number asked for; the catalog may have fewer. ``op`` carries its catalog
    ("torch:nn.functional.gelu"). ``check`` is the name of one of `tasks.checks`, ``distribution`` one of DISTRIBUTIONS.
    """

    op: str
    variant: str
    dtype: str
    samples: int
    seed: int = 0
    check: str = "forward"
    distribution: str = "own"

    @property
    def catalog(self) -> str:
        return self.op.partition(":")[0]

    @property
    def op_name(self) -> str:
        return self.op.partition(":")[2]

    @property
    def label(self) -> str:
        """Short name without the dtype."""
        return label_op(self.op, self.variant)

    @property
    def columns(self) -> dict[str, str | int]:
        """The columns of a row that say which group its sample is of."""
        names = ("check", "distribution", "catalog", "op", "variant", "dtype", "seed")
        return {name: getattr(self, name) for name in names}

    @property
    def unit(self) -> str:
        """What a joint backend may build together: samples of one op, check and seed. Generated cases of another seed
        are another program, and compiling them together would only make the first row late."""
        seed = f"@{self.seed}" if self.seed else ""
        return (self.label if self.check == "forward" else f"{self.check}/{self.label}") + seed

    def case_id(self, sample: int) -> str:
        """Stable name of one case: check/op[.variant]/dtype[/distribution]/sample[@seed]."""
        seed = f"@{self.seed}" if self.seed else ""
        source = "" if self.distribution == "own" else f"{self.distribution}/"
        return f"{self.check}/{self.label}/{self.dtype}/{source}{sample}{seed}"


@dataclass(frozen=True)
class Oracle:
    """A further computation of the expected outputs."""

    name: str
    #: One array per output, float64 where inexact.
    references: list[np.ndarray]
    #: Up to which share of the largest element of an output a difference to the first oracle is float64's own rounding,
    #: for ops that sum over elements.
    rounding: float = 0.0
    #: It was computed in the dtype under test itself, so that the classic tolerance says whether the two agree.
    rounded: bool = False


#: Kinds of forms that are a file of some framework, which few networks come as.
FILES = ("saved_model", "tflite")


@dataclass(frozen=True)
class Baseline:
    """What a kernel of the user's is timed against, by its declaration."""

    #: "eager", "compiled", "numpy", or "module:function".
    name: str
    #: A function of torch's tensors with the kernel's arguments, by name.
    call: Callable[..., Any]
    #: The same with results of the kernel's dtypes, where these are narrower: of a reference, which need not care; None
    #: of a function that the user names.
    rounded: Callable[..., Any] | None = None
    #: Whether torch.compile is to compile it.
    compiled: bool = False
    #: Whether it takes tensors of the CPU's memory alone.
    own_copies: bool = False
    #: The reference as a function of tensors, by which a call's products are counted; None where there is none.
    counted: Callable[..., Any] | None = None


@dataclass(frozen=True)
class OwnKernel:
    """What a kernel of the user's declares, beside the function that calls it (`Form.call`)."""

    #: The inputs that it may write to, by name.
    mutates: tuple[str, ...] = ()
    #: Operations of a library that it may not call, as torch's dispatcher names them without leading underscores.
    forbids: tuple[str, ...] = ()
    #: It takes tensors of the CPU's memory alone and copies them to the device itself, as a kernel of NumPy arrays
    #: does.
    own_copies: bool = False
    #: Goes around its backward pass: errors say where in its file they come from, and races are Misbehaviour.
    watch: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    #: Makes a session of torch's tensors; None where each call is by itself.
    session: Callable[[], TensorSession] | None = None
    #: The kernel without what holds it to its promises, which takes time; None where the form's call is that already.
    bare: Callable[..., Any] | None = None
    #: Whether an output may share memory with an input.
    aliases: bool = False
    #: What it is timed against. Raises Unsupported where there is nothing. None where nobody declares it.
    baseline: Callable[[], Baseline] | None = None
    #: Bytes that a call on a form has to move, and operations that it has to do, as they are declared; None of what is
    #: to be counted.
    work: Callable[[Form], tuple[int | None, int | None]] | None = None


@store_at_once
@dataclass(frozen=True)
class Form:
    """One sample in a representation that some backend can run.

    Of torch's form the trees ``args`` and ``kwargs`` hold a `TensorSpec` over ``arrays`` wherever a tensor stands.
    Complex tensors enter and leave an exported model as real ones with a last axis of two (`paired`).
    """

    #: Name of the representation: "torch", "onnx", "jax", "tensorflow", "paddle", "mlx", "tflite", "saved_model".
    kind: str
    #: The op with its catalog's prefix.
    op: str
    #: The dtype under test.
    dtype: str
    #: The inputs: of torch and other frameworks the storage of the trees' tensors, of a model its inputs in the graph's
    #: order (of a file in the order of their names there).
    arrays: list[Any]
    #: The function: torch's, or a `tasks.counterparts.Counterpart` for torch's arguments and another framework's
    #: tensors.
    call: Callable[..., Any] | None = None
    #: Its positional arguments, an encoded tree (`tasks.arrays.tree`).
    args: Any = None
    #: Its keyword arguments, an encoded tree.
    kwargs: Any = None
    #: A serialised ModelProto, a .tflite file or a SavedModel's folder as a zip. Of a whole network in a framework that
    #: takes no ONNX it is the graph that the framework's functions walk.
    model: bytes | None = None
    #: Why ONNX's own rules forbid the model that the exporter made: a runtime that refuses it is not to blame.
    invalid: str = ""
    #: Outputs that come as pairs of real numbers in a last axis of two: complex ones, in ONNX.
    paired: tuple[int, ...] = ()
    #: Of a file, whose outputs are in the order of their names: at which place of them each output of the sample is.
    order: tuple[int, ...] = ()
    #: What is computed: the outputs ("forward") or gradients of the inputs in ``wrt``.
    check: str = "forward"
    #: The inputs that are differentiated by, by place among the tensors.
    wrt: tuple[int, ...] = ()
    #: Arrays of `arrays` that are gradients of the outputs, given for a check other than "forward".
    cotangents: tuple[int, ...] = ()
    #: Arrays of `arrays` whose first axis is a batch: each row of the outputs is of theirs alone.
    batched: tuple[int, ...] = ()
    #: Where the terms of elements of the first output lie (`tasks.passport.SumTerms`), where its catalog says; arrays are
    #: numbered as in `arrays`.
    terms: tuple[Any, ...] = ()
    #: The shape of that output, where there are any.
    summed_shape: tuple[int, ...] = ()
    #: Arrays of `arrays` whose first axis is the steps of a session: each step is given its own row of them.
    stepped: tuple[int, ...] = ()
    #: Names of the sets of inputs that `arrays` holds one after another, each of as many arrays; empty: it holds one.
    sets: tuple[str, ...] = ()
    #: Of which phase of a training step each output is (`tasks.training.phases`).
    phases: tuple[str, ...] = ()
    #: What each output is called, where its catalog says.
    names: tuple[str, ...] = ()
    #: How often its program is run as it is, one run after another.
    repeats: int = 1
    #: What the user declares of the call; None where it is a library's function.
    own: OwnKernel | None = field(default=None, repr=False, compare=False)
    #: Before a run: puts what the call keeps back to what it was made with, where a run writes to it.
    renew: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    #: The same sample in another form. Raises Unsupported where there is none.
    also: Callable[[str], Form] | None = field(default=None, repr=False, compare=False)
    #: The same sample in another process; None where it cannot be had.
    elsewhere: Elsewhere | None = field(default=None, repr=False, compare=False)
    #: Other values for its arrays, drawn by a seed as its catalog draws them; None where it cannot say.
    fresh: Callable[[int], list[Any] | None] | None = field(default=None, repr=False, compare=False)
    #: The judgement (`tasks.judging.Judgement`) of flat outputs, as those of other arrays in place of the form's where
    #: these are given; None of such that no reference can be computed for.
    judge: Callable[..., Any] | None = field(default=None, repr=False, compare=False)
    #: Seconds that a race between programs of it may take, beyond its fewest rounds.
    race_s: float = RACE_S

    def with_arrays(self, arrays: list[Any]) -> Form:
        """The same with other arrays. A program is given some at each call, for which `dataclasses.replace` takes
        longer than many kernels, and `copy.copy` as long as some."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), arrays=arrays)
        return other

    def steps(self) -> list[list[Any]]:
        """The arrays of each step of a session, which lie as they do in memory; none where there is nothing to take
        steps through."""
        count = self.arrays[self.stepped[0]].shape[0] if self.stepped else 0
        return [[x[k] if i in self.stepped else x for i, x in enumerate(self.arrays)] for k in range(count)]

    def inputs_of(self, number: int) -> list[Any]:
        """The arrays of one of its sets of inputs."""
        count = len(self.arrays) // max(len(self.sets), 1)
        return list(self.arrays[number * count : (number + 1) * count])


@dataclass(frozen=True)
class Placing:
    """Where the inputs of a call lie, and what is done around it (`Program.placed`). Plain data, as it may go to
    another process.

    same: the inputs overwrite those of the last call; else they have memory of their own, while that of the last call
    is held. fill: a byte (0 to 255) that is written before and behind the inputs and, as far as the runtime lets it,
    all over the memory that the kernel is given for outputs and scratch. What lies around must have it afterwards, else
    Misbehaviour is raised; None for nothing of that. spoil: after the call has returned and before its outputs are
    read, the inputs are overwritten. stream: the call is made on a stream of its own, and only that is waited for.
    pause: milliseconds after which the outputs are read again. counted: how much the call did is counted.
    """

    same: bool = False
    fill: int | None = None
    spoil: bool = False
    stream: bool = False
    pause: float = 0.0
    counted: bool = False


@dataclass(frozen=True)
class Timed:
    """What a timed call returned and took, in seconds; of a chain of them (`Chain`), what one takes on average. Plain
    data: a process that nobody trusts may say it."""

    #: The outputs of a run that is timed with its outputs read back; of calls that are timed by themselves, see
    #: `TimedCalls.results`.
    outputs: Sequence[Any]
    #: From the call until the device had finished all that was asked of it.
    wall_s: float
    #: Of that process's CPU time; None on a device.
    cpu_s: float | None = None
    #: Between two events on the stream that the call was made on; None where the device has none.
    device_s: float | None = None
    #: Of `wall_s`, for how long the calling thread was ready to run and others had the processors; None where the
    #: system does not say.
    waited_s: float | None = None
    #: CPU time of all processes of that side while it was called, by the clock of whoever judges; None where nobody has
    #: looked.
    spent_s: float | None = None
    #: How many calls were made, as whoever judges has asked for.
    calls: int = 1
    #: Of each call the digest of its outputs, which the inputs of the next one hang on (`tasks.arrays.varied`).
    digests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chain:
    """Calls that are timed together, each on inputs that nobody has before the one before it is over. Plain data."""

    calls: int = 1
    #: Whether its inputs lie in no cache; of a single call.
    cold: bool = False
    #: Whether its outputs are read twice, of a single call.
    probe: bool = False
    #: Whether elements of its inputs may stand elsewhere.
    moved: bool = False
    #: What the first digest begins with: nobody foresees it.
    begin: str = ""
    #: The digests that the calls go by, where they are made on the inputs of another program's: then they have none of
    #: their own.
    digests: tuple[str, ...] = ()


class TimedCalls(Protocol):
    """A chain that is ready to be made."""

    def __call__(self) -> Timed:
        """Make the calls, once."""

    def results(self) -> Sequence[Sequence[Any]]:
        """What each call returned, as it was read when that call was over; of one that is probed, also what was read a
        moment later: other bytes mean that it was not over."""


@dataclass
class Program:
    """A built case: ``run()`` returns the flat list of outputs as numpy arrays."""

    run: Callable[[], Sequence[Any]]
    #: Where it really runs, in the runtime's own words.
    placement: str = ""
    #: Why that is not where it was asked to run; None where it is.
    fallback: str | None = None
    #: Modes in force (`tasks.model.flags`).
    flags: str = ""
    #: A ``run`` for other arrays in place of the form's (same dtypes, and same shapes where the program was not built
    #: for any), which are handed over at once; None where the runtime takes a program's inputs only once.
    given: Callable[[list[Any]], Callable[[], Sequence[Any]]] | None = None
    #: Whether the runtime promises that `again` may be called from several threads at a time.
    threads: bool = False
    #: Records a run; what it returns replays that for other arrays of the same shapes, which it copies to where the
    #: first ones lay.
    capture: Callable[[], Callable[[list[Any]], Sequence[Any]]] | None = None
    #: What its check has read of its arithmetic (`tasks.passport.SumReading`).
    readings: tuple[Any, ...] = ()
    #: Columns of the row that were measured while it was run.
    columns: dict[str, Any] = field(default_factory=dict)
    #: Reads on the device why the outputs are off: columns of the row. It may take thousands of calls, and is asked
    #: once the case has run.
    explain: Callable[[], Mapping[str, Any]] | None = None
    #: Whether `fallback` is true of a part alone, and the whole is what the backend's user gets.
    pieces: bool = False
    #: What the same program gave that was built in another way which its user may choose, by name.
    ways: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    #: The way of this program then.
    way: str = ""
    #: How it ran, if not on the backend's device: a value of the column `execution` (`tasks.model.row`).
    execution: str = ""
    #: Makes the session of a program that keeps something from call to call; None where each call is by itself.
    session: Callable[[], Session] | None = None
    #: As ``given``, of calls that are timed by themselves, the first on the arrays as they are. None where only a whole
    #: run can be timed, with its outputs read back.
    timed: Callable[[list[Any], Chain], TimedCalls] | None = None
    #: As `again`, with the inputs where a `Placing` says and the outputs read as plain memory, whatever object the
    #: kernel returned; None where the runtime decides where inputs lie. After the outputs come those of a second
    #: reading (`Placing.pause`) and, last, an int64 array of the operations and the lines that were run, and the
    #: nanoseconds of CPU time that took (`Placing.counted`). Raises Unsupported for what the device has not.
    placed: Callable[[list[Any], Placing], Sequence[Any]] | None = None
    #: Begins such a call behind those that were begun before it, and returns what waits for its outputs, which is
    #: called once, and in the order of the calls; None while it could not be begun without waiting. None where a call
    #: is over when it has been made.
    begin_placed: Callable[[list[Any], Placing], Callable[[], Sequence[Any]] | None] | None = None
    #: As `again`, by a program that is built for these arrays as for another case: what runs it cannot tell it from
    #: one. None where nobody asks for that.
    anew: Callable[[list[Any]], Sequence[Any]] | None = None
    #: Ends the process that it runs in, whatever that is at, so that the next case has another one; None where it runs
    #: in this process.
    abandon: Callable[[], None] | None = None
    #: Calls of the same kernel that its process had made before this was built, as far as they were counted
    #: (`Backend.count_calls`).
    called: int = 0
    #: CPU seconds of the process that it runs in. Raises OSError where that has ended.
    cpu_clock: Callable[[], float] = time.process_time

    def open(self) -> Session:
        """Its session, which is not started yet: its own, or one whose steps are calls."""
        return self.session() if self.session is not None else Stateless(self)

    @property
    def again(self) -> Callable[[list[Any]], Sequence[Any]] | None:
        """As ``run``, for other arrays; None where the runtime takes none."""
        given = self.given
        return None if given is None else lambda arrays: given(arrays)()

    def release(self) -> None:
        """Forget how it is run. What its calls hold often holds the program too, and the arrays of a case would wait
        for the garbage collector, on a device as well."""
        self.run = _refuse_released
        self.given = self.capture = self.session = self.timed = self.placed = self.begin_placed = None
        self.anew = self.abandon = self.explain = None


def _refuse_released() -> Sequence[Any]:
    raise RuntimeError("the program of a case that is over was run")


@dataclass(frozen=True)
class Flushes:
    """Dtypes whose subnormal numbers a device takes for zero, as measured: as results, and as inputs."""

    results: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()

    def __or__(self, other: Flushes) -> Flushes:
        both = (dict.fromkeys(a + b) for a, b in ((self.results, other.results), (self.inputs, other.inputs)))
        return Flushes(*map(tuple, both))

    def __str__(self) -> str:
        """As it is written in a row's flags."""
        parts = (("flushes", self.results), ("flushes_inputs", self.inputs))
        return " ".join(f"{name}={','.join(found)}" for name, found in parts if found)


@dataclass(frozen=True)
class RuntimeInfo:
    """What a backend says of itself once it has been imported."""

    runtime_version: str
    device: str
    driver_version: str = ""
    #: What it computes in, coarser than the dtype; "" is the dtype itself.
    compute_precision: str = ""
    #: Whether that holds for the factors of products alone (matrix units: TF32), or for all that is computed.
    of_products: bool = False
    #: `Flushes.results`, where it is measured at the start.
    flushes: tuple[str, ...] = ()
    #: The runtime chose that precision, and nobody asked for less than the dtype's own.
    unasked: bool = False
    #: It may compute in that precision, as a switch that allows TF32 does. False: it must, and to be as precise as the
    #: dtype is to disobey.
    permission: bool = False
    #: Names of `tasks.matrix_units.accumulators` that the device's matrix units have, and dtypes of 16 bits that it says it
    #: may add in.
    accumulators: tuple[str, ...] = ()
    #: Of the device in bytes, where its driver or runtime tells.
    memory: int = 0
    #: What tells two builds of one version apart, as "name commit" ("torch 5d2c0f1…"); "" where the runtime does not
    #: tell.
    build: str = ""

    def __post_init__(self) -> None:
        for name in ("flushes", "accumulators"):  # a backend may give lists
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(
            self, "memory", int(self.memory)
        )  # a runtime may count in NumPy's integers, which JSON has not
        if self.compute_precision and self.compute_precision not in EPS:
            raise ValueError(f"compute precision {self.compute_precision!r} is none of {', '.join(EPS)}")

    def precision_for(self, products: bool) -> str:
        """The declared compute precision of a case; "" where it is that of the dtype. products: whether there are any
        in it."""
        return self.compute_precision if products or not self.of_products else ""


def build_one_by_one(build: Callable[[Form], Program], forms: Sequence[Form]) -> list[Program | Exception]:
    """For each form what ``build`` returns, or the error that it raised."""
    built: list[Program | Exception] = []
    for form in forms:
        try:
            built.append(build(form))
        except Exception as error:
            built.append(error)
    return built
