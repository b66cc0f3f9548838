"""What a catalog is: a list of ops, and the making of their samples with reference and noise floor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks import importing
from tasks.arrays.tree import TensorSpec, encode_argument_tree
from tasks.draw.choices import DrawnChoices
from tasks.model import Group, Leaf, OpClass, Oracle, OwnKernel, Refusal, errors, label_op
from tasks.passport import SumTerms


@dataclass(frozen=True)
class Entry:
    """One line of a catalog's list: an op (with its catalog's prefix), a variant and the dtypes it declares.

    checks, distributions: of `tasks.checks` and `DISTRIBUTIONS`, those the catalog can prepare for it. on_devices:
    further dtypes that a CPU has no kernel for, as (torch's name of a device, dtype); "" is any device that torch has
    no name for.
    """

    op: str
    variant: str
    dtypes: tuple[str, ...]
    checks: tuple[str, ...] = ("forward",)
    distributions: tuple[str, ...] = ("own",)
    on_devices: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """The op with its variant."""
        return label_op(self.op, self.variant)


@dataclass(frozen=True)
class Failure:
    """Why a sample has no expected output; becomes the row of every backend."""

    status: str  # a Status value: "invalid", "vacuous" or "unsupported"
    stage: str  # "sample", "reference", "store"
    error_type: str
    error: str
    culprit: str = ""  # the row's
    kind: str = ""  # the row's
    raised: bool = False  # the reference itself raised: a backend is to raise as well, and is asked

    @classmethod
    def of(cls, error: BaseException, stage: str, raised: bool = False) -> Failure:
        """The case is bad: making it raised."""
        if type(error).__module__.partition(".")[0] == "tasks":  # the farm's own word, which says all
            kind = "" if isinstance(error, Refusal) else type(error).__name__
            return cls("invalid", stage, kind, str(error), raised=raised)
        kind, text = errors.find_error_essence(error)
        where = errors.find_error_place(error)
        return cls("invalid", stage, kind, text + (f" ({where})" if where else ""), raised=raised)

    @classmethod
    def vacuous(cls, why: str, stage: str = "sample") -> Failure:
        """There is nothing to compute or to compare."""
        return cls("vacuous", stage, "", why)

    @classmethod
    def unsupported(cls, why: str, stage: str = "reference") -> Failure:
        """The case is sound, and nothing of it can be in the dtype that it is asked in."""
        return cls("unsupported", stage, "", why)


#: Of an output: dtype and shape.
Metadata = tuple[str, tuple[int, ...]]
#: What float64 rounding may do to an output that sums over others, as a share of the largest: 64 spacings.
ROUNDING = 64 * 2.0**-52


@dataclass
class Sample:
    """One sample as a catalog makes it, step by step. What a pack keeps of it is
    `tasks.prepare.record.SampleRecord`."""

    #: Its place in the op's full list.
    index: int
    #: Positional arguments, with a `TensorSpec` where a tensor stood; or an encoded tree (`encoded`).
    args: tuple[Any, ...] = ()
    #: Keyword arguments, in the same way.
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: The tensors' storage, in the dtype under test.
    arrays: list[np.ndarray] = field(default_factory=list)
    #: One leaf per output, flat. Of a sample with a `definition` they give shapes and dtypes alone.
    expected: list[Leaf] = field(default_factory=list)
    #: How a result of it can be right.
    op_class: OpClass = OpClass.COMPOSITE
    #: Of a result that is defined up to a choice: what turns outputs into `derived`, by name in
    #: `tasks.judge.definitions`.
    definition: str = ""
    #: What the definition is to make of the outputs: these are compared.
    derived: list[Leaf] = field(default_factory=list)
    #: Dtype and shape of each output of torch's kernels for a device other than the CPU; empty where they are those of
    #: `expected`.
    on_device: Sequence[Metadata] = ()
    #: Who computed the expected outputs.
    oracle: str = "float64"
    #: Further oracles of the same outputs.
    others: list[Oracle] = field(default_factory=list)
    #: Whether outputs are what the check makes of a program's own (how far its tokens are from a distribution): 0 of
    #: every right one, which says nothing of what a constant would pass.
    measured: bool = False
    #: How often a backend runs it; results that differ are a finding.
    repeats: int = 1
    #: How many of the last outputs are those before them, computed otherwise.
    twins: int = 0
    #: See `Form.wrt`.
    wrt: tuple[int, ...] = ()
    #: See `Form.cotangents`: arrays of `arrays`.
    cotangents: tuple[int, ...] = ()
    #: Of a model, by precision: the outputs with its products' weights rounded to it (`tasks.graphs.coarse_products`).
    coarse: dict[str, list[np.ndarray]] = field(default_factory=dict)
    #: Of a model that is no graph: the outputs without its casts to narrower dtypes, if it has any.
    uncast: list[np.ndarray] = field(default_factory=list)
    #: Of a training step: what its outputs are called (`tasks.judge.training_step`).
    names: tuple[str, ...] = ()
    #: Of the steps of a training run: of which phase each output is (`tasks.training.phases`), and the slope that
    #: rounding gives a gradient.
    phases: tuple[str, ...] = ()
    slopes: tuple[float | None, ...] = ()
    #: Places of the arrays whose first axis is a batch, in a sample of the check batch_invariance.
    batched: tuple[int, ...] = ()
    #: Where the terms of elements of its first output lie, in a sample of the check arithmetic; arrays are numbered as
    #: in `arrays`.
    terms: Sequence[SumTerms] = ()
    #: Places of the arrays whose first axis is the steps of a session.
    stepped: tuple[int, ...] = ()
    #: See `Form.sets`; the expected outputs of the sets follow one another as well.
    sets: tuple[str, ...] = ()
    #: Whether sums of products are computed in it, of a dtype that matrix units may take coarser
    #: (`tasks.prepare.products` tells).
    products: bool = False
    #: The tensors that the module holds which is its torch form, by name (`tasks.arrays.module_state`): it is made anew
    #: in every process.
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    #: Digest of what else that module holds.
    alike: str = ""
    #: Whether a call changes what the module holds.
    writes: bool = False
    #: Tensors that a call writes to and that are judged after it, as outputs after those that it returns.
    written: tuple[str, ...] = ()
    #: Whether the layouts of its inputs, which are not contiguous, are declared to be taken: to refuse them is an error
    #: then.
    takes: bool = True
    #: ONNX bytes, where the catalog itself has them.
    model: bytes | None = None
    #: Of a sample of no catalog: its torch form (`tasks.graphs.traced_program.encode_program`).
    program: Mapping[str, Any] | None = None
    #: Forms that are a file of some framework, by kind: "tflite", "saved_model" (its folder as a zip).
    files: Mapping[str, bytes] = field(default_factory=dict)
    #: Ranks of the model's inputs and of its outputs among their sorted names, which are the order of those of a file.
    ranks: tuple[Sequence[int], Sequence[int]] = ((), ())
    #: Columns of every row of it that the sample alone decides.
    columns: dict[str, Any] = field(default_factory=dict)
    #: Why there is no expected output; None where there is one.
    failure: Failure | None = None

    @classmethod
    def of(cls, index: int, arrays: list[np.ndarray], **fields: Any) -> Sample:
        """A sample whose positional arguments are its arrays, each a tensor. fields: its others."""
        return cls(index, tuple(TensorSpec(id=k) for k in range(len(arrays))), arrays=arrays, **fields)

    def encoded(self) -> tuple[Any, Any]:
        """Its args and kwargs as encoded trees (`tasks.arrays.tree`). Raises NotEncodable."""
        if not isinstance(self.args, tuple):
            return self.args, self.kwargs
        return encode_argument_tree(self.args), encode_argument_tree(self.kwargs)


class CatalogError(Exception):
    """A catalog that cannot be listed as it is configured. key: the path of the mistake in the config; lacks: the
    package that a module of the user's imports and that this environment does not have, "" where it is something
    else."""

    def __init__(self, text: str, key: tuple[Any, ...] = (), lacks: str = "") -> None:
        super().__init__(text)
        self.key, self.lacks = key, lacks


class Catalog:
    """Base of all catalogs; a subclass is a stateless object, its runtimes imported inside methods.

    forms: the representations the catalog has by itself; exports: those made from them (slow, cached). imports: what
    samples are made with (`tasks.importing.import_by_name`), torch first.
    """

    name: str = ""
    forms: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    #: How long its work takes, in ordinary groups to prepare and in ordinary cases to run (`farm.work.durations` has
    #: what these take): the time of a run is guessed by it until the run has done some.
    group_worth: float = 1.0
    case_worth: float = 1.0
    #: By check, what an op of it does not have that is not asked, where that is not what the check says itself
    #: (`Check.lacking`).
    lacking: Mapping[str, str] = {}

    def forms_of(self, group: Group) -> tuple[str, ...]:
        """Those of ``forms`` that a group's samples have by themselves."""
        return self.forms

    def needs_export(self, forms: Collection[str], group: Group) -> bool:
        """Whether a backend that takes ``forms`` is given an exported one of a group: it takes none of its own."""
        return not set(forms) & set(self.forms_of(group)) and bool(set(forms) & set(self.exports))

    def version(self) -> str:
        """Versions of everything that decides the bytes of a sample; must not import a runtime."""
        raise NotImplementedError

    def list_version(self) -> str:
        """What decides the catalog's list: its version, and what else it is made from."""
        return self.version()

    def load(self) -> None:
        """Import what samples are made with: of these seconds, and of a SIGKILL in them, no sample is the cause."""
        for what in self.imports:
            importing.import_by_name(what)

    def entries(self) -> list[Entry]:
        """Every (op, variant) with its declared dtypes, sorted by op."""
        raise NotImplementedError

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        """Make up to ``group.samples`` samples, stratified over the op's list, with ``draws`` noise draws.

        Further ones may follow, up to CANDIDATES times as many in all: they are asked for, one by one, as long as weak
        samples are among those before. A sample that failed counts if it is among the first ``group.samples``.

        A sample that cannot be made or widened is yielded with its `failure`, never dropped. For the places in
        ``skip`` (counted from 0 in the order of yielding) a bare ``Sample(index)`` is yielded: making them is deadly.
        """
        raise NotImplementedError

    @property
    def remakes(self) -> bool:
        """Whether it has `remade`."""
        return type(self).remade is not Catalog.remade

    def remade(self, group: Group, given: Sample, draws: int) -> Sample:
        """A sample with the arguments (encoded trees, arrays) of ``given`` instead of the catalog's own, its reference
        and noise floor as `samples` makes them. What the reference does not take comes with its `failure`."""
        raise NotImplementedError(f"the catalog {self.name} makes no references for other arguments than its own")

    def ordinary(self, group: Group, given: Sample, labels: str, seed: int) -> dict[int, np.ndarray]:
        """Ordinary values, by place among the arrays of ``given``, for the inputs whose structure ``labels`` name
        (`tasks.draw.structure.write_structure_label`; "": for all); none where the catalog cannot say."""
        return {}

    def resized(self, group: Group, given: Sample, beyond: bool, seed: int, draws: int) -> tuple[Sample, bool] | None:
        """As `remade`, with ordinary values at sizes that the op does not list, and whether it promises to be right
        there. beyond: larger than all that it lists; else between them. None where there are none, or the catalog
        cannot say which the op would take."""
        return None

    def chosen(self, group: Group, choose: DrawnChoices, draws: int) -> Sample:
        """The sample that some choices make, its `failure` set where they make none."""
        raise NotImplementedError(f"the catalog {self.name} makes no cases of choices")

    def undeclared(self, group: Group, args: Any, kwargs: Any, device: str) -> str:
        """Why torch's kernels for a device (`Backend.torch_device`) need not compute a call (encoded trees) of a group:
        the dtype or the call is declared not to exist there. "" where it is declared, or nothing is said. Decides what
        an error means, and nothing else."""
        return ""

    def any_size(self, group: Group) -> bytes | None:
        """The ONNX model of a group with dimensions open that its samples' model fixes; None where there is no
        other."""
        return None

    def at_opset(self, group: Group, made: Sample, opset: int) -> Iterator[tuple[str, bytes | Exception]]:
        """The ONNX model of a group exported at an operator set, by one way after the other, the best first: (the
        exporter's name, the model or what it raised). Nothing where there is nothing to export: the samples' own model
        can only be converted."""
        return iter(())

    def as_onnx(self, group: Group, made: Sample) -> bytes | None:
        """The ONNX model of a group whose samples (``made``) have none, for checks that are about ONNX models; None
        where nothing makes one. Raises what the exporter does."""
        return None

    def bare(self, group: Group) -> Sample | None:
        """A group's first sample without what is expected of it, where that takes long to make; None where it does
        not."""
        return None

    def group_version(self, group: Group) -> str:
        """What beyond `version` decides the bytes of a group's samples; part of the content key."""
        return ""

    def call(self, group: Group) -> Callable[..., Any]:
        """The op as a callable on tensors of the "torch" form (args and kwargs of a sample)."""
        raise NotImplementedError

    def own_kernel(self, group: Group) -> OwnKernel | None:
        """What the user declares of `call`; None where it is a library's function."""
        return None

    def invariants(self, group: Group) -> list[tuple[str, Any]]:
        """What the user promises of every result of an op, as (name, argument) (`tasks.judge.invariants`)."""
        return []

    def traced(self, group: Group) -> tuple[str, Callable[..., Any]] | None:
        """What is run to see which products a sample is made of: ("torch", a function of tensors) or ("numpy", one of
        arrays), called with the sample's args and kwargs; None where nobody can look inside."""
        return "torch", self.call(group)

    def is_public(self, group: Group) -> bool:
        """Whether `public` finds what `call` returns. Asked when the group is prepared."""
        return False

    def public(self, group: Group) -> Callable[..., Any]:
        """As `call`, where `is_public`: by its name alone, without the import of a list of all ops."""
        return self.call(group)


#: Samples that may be made for every one that is wanted, in search of strong ones.
CANDIDATES = 3


def spread_candidate_samples(count: int, wanted: int) -> list[int]:
    """``wanted`` places spread over range(count), then further ones between them: CANDIDATES times as many in all."""
    first = spread_sample_indices(count, wanted)
    return list(dict.fromkeys(first + spread_sample_indices(count, CANDIDATES * wanted)))


def spread_sample_indices(count: int, wanted: int) -> list[int]:
    """``wanted`` places spread evenly over range(count), first and last included; all of them if fewer."""
    if count <= wanted:
        return list(range(count))
    if wanted < 1:
        return []
    if wanted == 1:
        return [count // 2]
    return sorted({round(i * (count - 1) / (wanted - 1)) for i in range(wanted)})


class GeneratingCatalog(Catalog):
    """Base of catalogs whose cases are generated: the variant of an op is its generator's version. A failure is made
    smaller, not localised, and a vote decides whether anyone is blamed."""

    def generator(self, op: str) -> str:
        """The version of today's generator of an op."""
        raise NotImplementedError

    def variant_of(self, choices: Sequence[int]) -> str:
        """The variant whose only sample is made of these choices."""
        raise NotImplementedError

    def seed_of(self, group: Group, index: int) -> int:
        """The seed that alone makes a sample of a group."""
        raise NotImplementedError
