"""What a backend is: one short class per runtime that takes forms, builds programs and says where they ran."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.backends.needs import Need, secure_backend_needs
from tasks.backends.shared import baselines
from tasks.backends.shared.recipe import NoProgram, ProgramRecipe
from tasks.devices import (
    BY_LABEL,
    Device,
    find_choosing_variable,
    find_driver_version,
    find_toolkit_version,
    suggest_library_package,
)
from tasks.interpreter import IMAGE
from tasks.model import FORWARD, Broken, Flushes, Form, Program, RuntimeInfo, Unavailable, Unsupported, build_one_by_one
from tasks.nearest import find_near_names
from tasks.run_queue import RunQueueClock

if TYPE_CHECKING:
    from typing import Self

    from tasks.backends import BackendSpec

#: Why a backend that chooses kernels by stopwatch has its device alone.
TIMES_KERNELS = "it chooses kernels by timing them, which a neighbour would disturb"
#: Torch's names of devices that other runtimes call otherwise.
CALLED_BY_TORCH = {"gpu": "xpu", "tensorrt": "cuda", "tensorrt-rtx": "cuda", "migraphx": "rocm"}
#: Options by which other programs are told the number of a device.
_ONE_OF_SEVERAL = ("device", "device_id", "device_index", "gpu", "index", "ordinal")
#: Variable of a child that shares its device with others: how much of it is its own.
FRACTION = "FARM_DEVICE_FRACTION"


@dataclass(frozen=True)
class BaselineArm:
    """A program that another one is timed against, with its name and the form that it was built of. products:
    operations of the products in a call; None where nobody counts them.

    Of a kernel of the user's: declared: it is the one that the kernel's declaration names; work: bytes that a call has
    to move and operations that it has to do, as they are declared, None of what is not; views: whether an output may
    share memory with an input. Beside program and form all of it is plain data."""

    name: str
    program: Program
    form: Form
    products: int | None = None
    declared: bool = False
    work: tuple[int | None, int | None] = (None, None)
    views: bool = False


class Backend:
    """Base of all backends. A subclass imports its runtime inside its methods only.

    name: as in configs, "<runtime>-<device>"; vendor: who ships the runtime; device_vendor: whose device it
    runs on (a node label; "" for the CPU); forms: representations it takes, best first; joint: whether all
    samples of an op are built together (`build_all`); inputs_once: whether its programs are built with their inputs and
    take no others (they have no `Program.given`); alone: why a job of it must have the device to itself ("": it
    need not); devices: those it knows by name, for lists (closed: there are no others); called: other names that people
    give them → theirs; takes: names of its options, another one is a ValueError (None: not checked here).

    oldest: the oldest release of its runtime that was tried and computes here, in an environment of its own; "" where
    none was tried. packages, python: its environment, as pip requirements and a Python version ("3.10"; "" = the farm's
    own). Without packages it runs in the farm's environment. emulated: the device is an emulator's or a simulator's;
    its rows say so. needs: what the machine must have beside packages (`tasks.backends.needs`); found: where each is,
    once it is started. toolkit: the vendor (a node label) whose installed toolkit computes for it, and stands in its
    version. imports: what `probe` imports before all else (`tasks.importing.import_by_name`), where it does not matter when: it
    may be there already. takes_threads: whether it computes with `tasks.variables.count_compute_threads` threads; captures: whether
    its programs have `capture`. by_name: whether its forms have their functions' names alone (`tasks.model.named`): it
    builds them in another process. is_eager_cpu: whether it is eager torch itself on the CPU, which says what a torch
    module of the user's may raise. torch_device: whose kernels of torch compute, by torch's name of the device ("cuda",
    "rocm", "xpu"); "" for the CPU's, and for a runtime that has kernels of its own. What is expected of them there is
    not always what the CPU gives (`PreparedSample.on`). numbered: whether its devices are called with a number
    ("gpu.1"). ranks: how many devices a job of it takes, all at the same time, with a rank on each (where they are:
    `tasks.backends.shared.rank_hosts`). ordinals: which of the devices that the process sees are its own; identity:
    which devices those are, once it is started. A subclass may set any of these per object, by device or options.
    """

    vendor: str = ""
    device_vendor: str = ""
    forms: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    joint: bool = False
    inputs_once: bool = False
    devices: tuple[str, ...] = ("cpu",)
    closed: bool = False
    called: Mapping[str, str] = {}
    takes: tuple[str, ...] | None = None
    #: Checks (`tasks.checks`) that it can run; ("build",) of a compiler without its device, whose programs are made by
    #: `build` and never run.
    checks: tuple[str, ...] = (FORWARD,)
    ranks: int = 1
    alone: str = ""
    oldest: str = ""
    packages: tuple[str, ...] = ()
    python: str = ""
    emulated: bool = False
    needs: tuple[Need, ...] = ()
    toolkit: str = ""
    found: Mapping[str, str] = {}
    takes_threads: bool = False
    captures: bool = False
    is_eager_cpu: bool = False
    by_name: bool = False
    torch_device: str = ""
    numbered: bool = False
    ordinals: tuple[int, ...] = (0,)
    identity: tuple[str, ...] = ()
    _resource: str = ""
    #: What it was made of; None of one that no config names.
    spec: BackendSpec | None = None

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        self.name, self.device, self.options = name, device, options
        if unknown := sorted(set(options) - set(options if self.takes is None else self.takes)):
            how = f"; {find_choosing_variable(device)}" if unknown[0] in _ONE_OF_SEVERAL else ""
            raise ValueError(
                f"backend {name}: unknown option {unknown[0]!r}; it takes {', '.join(self.takes or ['none'])}{how}"
            )
        others = [x for x in self.devices if x not in ("cpu", "aot")]
        if device == "gpu" and others and "gpu" not in others:
            meant = ", ".join(f"{name.partition('-')[0]}-{x}" for x in others)
            raise ValueError(f"backend {name}: no device is called gpu; did you mean {meant}?")
        if self.closed and device not in self.devices:
            raise ValueError(f"backend {name}: its device is one of {', '.join(self.devices)}, not {device!r}")

    @property
    def hardware(self) -> Device | None:
        """What is known of the kind of device it computes on; None for the CPU, and for a vendor that no file
        describes."""
        return BY_LABEL.get(self.device_vendor)

    @property
    def resource(self) -> str:
        """The Ray resource that counts its devices: what its hardware says, unless the backend knows better."""
        return self._resource or (self.hardware.resource if self.hardware else "GPU" if self.device_vendor else "CPU")

    @resource.setter
    def resource(self, name: str) -> None:
        self._resource = name

    def choice(self, option: str, valid: Iterable[Any], default: Any) -> Any:
        """The value of an option, one of ``valid`` or ``default``. Raises ValueError."""
        known = {str(value): value for value in valid}
        given = str(self.options.get(option, default))
        if given not in known and given != str(default):
            raise ValueError(f"backend {self.name}: {option} is one of {', '.join(known)}, not {given!r}")
        return known.get(given, default)

    def many(self, option: str, kind: type) -> Any:
        """The value of an option that is a list or a dict, empty where it is not given. Raises ValueError."""
        given = self.options.get(option) or kind()
        if not isinstance(given, kind):
            what = "list" if kind is list else "mapping"
            raise ValueError(f"backend {self.name}: {option} is a {what}, not {type(given).__name__}")
        return given

    def switch(self, option: str, default: bool = False) -> bool:
        """The value of an option that is true or false. Raises ValueError: any word would count as true."""
        given = self.options.get(option, default)
        if given not in (True, False):
            raise ValueError(f"backend {self.name}: {option} is true or false, not {given!r}")
        return bool(given)

    def number(self, option: str, default: int) -> int:
        """The value of an option that is a whole number. Raises ValueError."""
        given = str(self.options.get(option, default))
        if not given.isdecimal():
            raise ValueError(f"backend {self.name}: {option} is a whole number, not {given!r}")
        return int(given)

    def start(self) -> RuntimeInfo:
        """Secure its needs, then `probe`: how every process begins with a backend. Raises what `probe` does."""
        try:
            self.found = secure_backend_needs(self.needs)
            info: Any = self.probe()
        except Unavailable as error:
            raise self._explain_unavailable(error) from None
        if not isinstance(info, RuntimeInfo):
            raise Unavailable(f"{type(self).__name__}.probe() returns a RuntimeInfo; it returned {info!r:.80}")
        if self.resource != "CPU":
            info = self._describe_device(info)
        return replace(
            info,
            device=join_words_once(info.device),
            runtime_version=join_words_once(info.runtime_version, self.toolkit and find_toolkit_version(self.toolkit)),
            driver_version=info.driver_version or find_driver_version(self.device_vendor),
            build=", ".join(filter(None, [info.build, f"image {image}" if (image := os.environ.get(IMAGE)) else ""])),
            permission=info.permission or (bool(info.compute_precision) and self.permits(info.compute_precision)),
        )

    def _explain_unavailable(self, error: Unavailable) -> Unavailable:
        """Why it cannot run, and what to do: another name of the device, or what brings a library or a package that is
        missing. A plugin may bring any device, so an unknown one is no mistake before it is asked for."""
        if isinstance(error, Broken):
            return error
        kind = None if self.numbered else re.fullmatch(r"(.+)[.:]\d+", self.device)
        name = kind[1] if kind else self.device
        meant = self.called.get(name) or (name if kind and name in self.devices else "")
        like = [] if self.device in self.devices else [meant] if meant else find_near_names(self.device, self.devices)
        if like:
            others = " or ".join(f"{self.name.partition('-')[0]}-{x}" for x in like)
            return Unavailable(
                f"{error}; did you mean {others}?" + (f" ({find_choosing_variable(like[0])})" if kind else "")
            )
        how = suggest_library_package(str(error)) if type(error) is Unavailable else ""
        if self.spec and self.spec.has_interpreter_as_it_is and isinstance(error.__cause__, ModuleNotFoundError):
            how = f"install it into {sys.executable}, into which the farm puts nothing, or name another interpreter"
        return Unavailable(f"{error}; {how}") if how else error

    def _describe_device(self, info: RuntimeInfo) -> RuntimeInfo:
        """With what the driver says of the device, for few runtimes do: which one a row is of, and of which model,
        since what one model gets wrong is asked about on its like alone."""
        known = self.hardware.describe if self.hardware else None
        found = [known(at) for at in self.ordinals] if known else []
        described = [x for x in found if x]
        if not described or len(described) < len(found):
            return info
        first = described[0]
        said = info.device.removesuffix(f", {first.architecture}")
        if first.name not in said:
            said = first.name if said in ("", self.device, "cuda", "gpu", "gpu:0") else f"{first.name}, {said}"
        unnamed = (f"{name} {version}" for name, version in first.libraries.items() if name not in info.runtime_version)
        self.identity = tuple(word for one in described for word in one.identity)
        return replace(
            info,
            runtime_version=join_words_once(info.runtime_version, *unnamed, *first.loaded),
            device=f"{said}, {first.architecture}",
            driver_version=first.driver_version or info.driver_version,
            accumulators=(*info.accumulators, *first.accumulators),
            memory=first.memory,
        )

    def probe(self) -> RuntimeInfo:
        """Import the runtime and find the device. Raises Unavailable (or anything: its text is the reason)."""
        raise NotImplementedError

    def permits(self, precision: str) -> bool:
        """Whether a coarser precision that it declares is one that its runtime may compute in (TF32 is allowed), and
        not one that it must. A command unless a runtime's documentation says otherwise."""
        return False

    def build(self, form: Form) -> Program:
        """Make one sample runnable.

        Raises Unsupported (the runtime says it does not implement this), Fallback (only elsewhere than
        asked), Vacuous; anything else is an `error` of stage "build".
        """
        raise NotImplementedError

    def build_to_run(self, form: Form) -> Program:
        """As `build`, of a program that is run next as it is, `Form.repeats` times: where it is built in another
        process, that need not wait to be asked."""
        return self.build(form)

    def count_calls(self, form: Form) -> int:
        """How often the kernel of a form was called in the process that has it, in the form's dtype; 0 where nobody
        counts."""
        return 0

    def build_all(self, forms: Sequence[Form]) -> list[Program | Exception]:
        """Build several samples of one op; the default builds one after another."""
        return build_one_by_one(self.build, forms)

    def canary(self, form: Form) -> Program:
        """A program of a known answer (`tasks.canary`), which is run between cases to see whether the device still
        computes."""
        return self.build(form)

    def recipe(self, form: Form) -> ProgramRecipe:
        """How a program of its own calls the runtime with a form; it is run before anybody sees it. Raises
        NoProgram."""
        raise NoProgram(f"no folder: the class of {self.name} does not say how a script calls it (`recipe`)")

    def levels(self) -> Mapping[str, Backend]:
        """The same backend at each of its levels of optimisation, by name, the least first and itself last.

        Empty where the runtime lets nobody choose.
        """
        return {}

    def passes(self) -> tuple[str, ...]:
        """Names of the passes of its optimiser that `without` can leave out; none where the runtime lets nobody
        choose."""
        return ()

    def without(self, passes: Collection[str]) -> Backend:
        """The same backend without some of its `passes`."""
        raise NotImplementedError

    def precise(self) -> Backend | None:
        """The same backend told to compute in the dtype itself; None where it is told so already, or cannot be."""
        return None

    def at(self, setting: str) -> Backend:
        """The same backend with a setting of it: "level NAME", "without NAME,NAME", "precise", "" for none."""
        kind, _, names = setting.partition(" ")
        if kind == "level":
            return self.levels()[names]
        if kind == "without":
            return self.without(names.split(","))
        return (self.precise() or self) if kind == "precise" else self

    def measure_flushing(self, dtype: str) -> Flushes:
        """What it takes for zero in a dtype."""
        from tasks.backends.shared.flushing import measure_backend_flushing

        return measure_backend_flushing(self, dtype)

    def cpu_s(self) -> float:
        """CPU seconds of the process in which its programs run."""
        return time.process_time()

    def cpu_apart_s(self) -> tuple[dict[int, float], dict[int, float]]:
        """CPU seconds of each process of a kernel, and of what it is timed against, by its number, where these are
        apart; else none of either."""
        return {}, {}

    def open_queues(self) -> list[RunQueueClock]:
        """The clocks of the threads that work while one of its programs is called, one after another, this one among
        them."""
        return [RunQueueClock()]

    def close(self) -> None:
        """Give back what it holds beside this process."""

    def any_size(self) -> Backend:
        """The same backend, whose programs take the form's arrays in any size that the form leaves open."""
        return self

    def fixed(self, form: Form) -> Form:
        """The form with a model for the sizes of its arrays alone."""
        from tasks.backends.shared.onnx_form import fix_onnx_sizes

        return form if form.model is None else fix_onnx_sizes(form)

    def rows_open(self, form: Form) -> Form:
        """The form with a model that leaves the number of rows of its ``batched`` arrays open."""
        from tasks.backends.shared.onnx_form import open_onnx_rows

        return open_onnx_rows(form)

    def eager(self, form: Form) -> BaselineArm:
        """What a program is timed against, in the same process: this backend at its lowest level.

        Raises Unsupported where it has but one, and what building raises.
        """
        levels = self.levels()
        if len(levels) < 2:
            raise Unsupported(f"{self.name} has no lower optimisation level to time against")
        name, level = next(iter(levels.items()))
        return BaselineArm(f"{self.name}:{name}", level.build(form), form)

    def baseline(self, form: Form) -> BaselineArm:
        """What the check speedup times a program against: of a kernel of the user's what its declaration names, of any
        other `eager`. A proxy of another process may build it in a process of its own, which the kernel cannot touch.
        Raises as `eager` does."""
        if form.own is None or form.own.baseline is None:
            return self.eager(form)
        return baselines.build_declared_baseline(self, form, form.own.baseline())

    def eager_torch(self, form: Form) -> BaselineArm:
        """Torch on this backend's device, on the sample's form for torch; this backend's lowest level where there is no
        such form or no torch in its environment. Raises Unsupported where there is neither."""
        try:
            return self.start_torch().eager(form.also("torch") if form.also else form)
        except (Unsupported, Unavailable) as error:
            try:
                return Backend.eager(self, form)
            except Unsupported as lacks:
                raise Unsupported(f"{lacks}; no eager torch either: {error}") from None

    def start_torch(self) -> Backend:
        """Torch on this backend's device, in this process: what its `eager` builds is eager torch. Raises Unavailable,
        Unsupported."""
        if self.spec is None:
            raise Unsupported(f"{self.name} was made without its spec, which finds torch beside it")
        device = CALLED_BY_TORCH.get(self.device, self.device) if self.device_vendor else "cpu"
        torch = self.spec.find_beside("torch", device).create()
        torch.start()
        return torch

    def ceiling(self, what: str, again: bool = False) -> float | None:
        """What the device does at most, as measured on it: bytes a second ("memory"), or operations a second of
        products in a dtype; None where nobody can measure it. It is measured once and kept; again: it is measured once
        more."""
        from tasks.backends.shared.ceilings import find_device_ceiling

        return find_device_ceiling(" ".join([self.device_vendor, *self.identity]), what, self.measure_ceiling, again)

    def measure_ceiling(self, what: str) -> float:
        """`ceiling` as it is now, 0 where nobody can measure it."""
        from tasks.backends.shared.ceilings import measure_device_ceiling

        return 0.0 if self.device_vendor else measure_device_ceiling("cpu", what)

    def cache_bytes(self) -> int:
        """Size of the device's last cache."""
        from tasks.backends.shared.caches import last_level_bytes

        return last_level_bytes()

    def but(self, **attributes: Any) -> Self:
        """A copy with other values of some attributes."""
        other = copy.copy(self)
        vars(other).update(attributes)
        return other

    #: What the texts of a runtime's errors look like: see the methods of these names; None for never.
    sticky: re.Pattern[str] | None = None
    unsupported: re.Pattern[str] | None = None
    out_of_memory: re.Pattern[str] | None = None

    def is_sticky(self, error: BaseException) -> bool:
        """True if the device is unusable in this process after ``error`` (it is then replaced)."""
        return _says_pattern(error, self.sticky)

    def is_unsupported(self, error: BaseException) -> bool:
        """True if ``error`` is the runtime's way to say that it does not implement a case."""
        return isinstance(error, NotImplementedError) or _says_pattern(error, self.unsupported)

    def refuses(self, error: BaseException) -> bool:
        """Whether ``error`` may be the runtime's refusal of a call, and not its failure at one that it took on."""
        return isinstance(error, (NotImplementedError, RuntimeError, ValueError, TypeError))

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError) or _says_pattern(error, self.out_of_memory)


def join_words_once(*words: str) -> str:
    """Comma-separated words of several sources as one list, each word once and where it first stands."""
    return ", ".join(dict.fromkeys(word for text in words for word in text.split(", ") if word))


@contextlib.contextmanager
def importing(package: str) -> Iterator[None]:
    """Around the imports of a runtime. Raises Unavailable if one of them, or a library of its, cannot be loaded."""
    try:
        yield
    except (ImportError, OSError) as error:
        raise Unavailable(f"{package} cannot be imported: {error}") from error


def smoke_test(
    who: str,
    compute: Callable[[], Any],
    what: str = "one-Add model",
    expected: float = 2.0,
    within: float = 0.0,
    words: Callable[[Exception], str] = str,
) -> None:
    """Run the smallest program there is, ``what`` (1 + 1, unless said otherwise), on a runtime or device.

    compute returns its output, all of whose elements are ``expected`` within an absolute error. words: of the runtime's
    error, those that people read. Raises Unavailable in the runtime's words, or with the number that it computed.
    """
    try:
        result = np.asarray(compute(), np.float64).ravel()
    except Unavailable:
        raise
    except Exception as error:
        raise Unavailable(f"{who}: smoke test failed ({what}): {words(error)}") from error
    if not (result.size and (np.abs(result - expected) <= within).all()):
        raise Unavailable(f"{who}: smoke test failed ({what}): computed {result[:4].tolist()}, expected {expected:g}")


def _says_pattern(error: BaseException, pattern: re.Pattern[str] | None) -> bool:
    return pattern is not None and bool(pattern.search(str(error)))
