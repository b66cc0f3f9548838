"""torch eager on any device torch knows: see `torch_devices`, and PrivateUse1 devices of other plugins."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tasks import checks
from tasks.arrays import module_state, torch_tree
from tasks.arrays.tree import TensorSpec, decode_argument_tree, encode_tensor_spec, read_tensor_spec
from tasks.backends.base import FRACTION, TIMES_KERNELS, Backend, BaselineArm, smoke_test
from tasks.backends.shared import (
    caches,
    ceilings,
    flushing,
    torch_graphs,
    torch_placing,
    torch_run,
    torch_switches,
    torch_timing,
)
from tasks.backends.shared.recipe import ProgramRecipe
from tasks.backends.shared.torch_devices import (
    FAILED,
    FELL_BACK,
    count_torch_allocations,
    find_torch_device,
    measure_torch_memory,
    says_torch_unsupported,
    synchronize_torch_device,
)
from tasks.backends.shared.torch_modes import CONVOLUTION, SDPA, TorchModes
from tasks.backends.shared.torch_session import TorchSession
from tasks.catalogs.user import watched_accesses
from tasks.devices import BY_LABEL, CALLED, TORCH_DEVICES, find_driver_version
from tasks.gradients import autograd
from tasks.model import Chain, Form, Program, RuntimeInfo, TensorSession, TimedCalls, Unavailable
from tasks.model.row import INTERPRETED, UNVERIFIED
from tasks.variables import count_compute_threads

T = TypeVar("T")

#: The option that allows sums of 16-bit products in 16 bits.
REDUCED = "reduced_precision_reduction"
#: The option that makes a CPU flush subnormal numbers, as many devices do.
FLUSH = "flush_subnormals"
#: What torch says where its driver works and shows no device.
_NO_DEVICE = re.compile(r"No .*(?:GPU|device)s? (?:is|are) available|Device not found")
#: Ops whose tensors but the first say what is done and stay on the CPU: torch wants them there, whatever the device.
TOLD_ON_CPU = ("torch:tensor_split",)


class TorchEager(Backend):
    """Every run ends when the device has finished: an error of an asynchronous kernel is raised at its own case."""

    takes_threads = True
    forms = ("torch",)
    devices = tuple(TORCH_DEVICES)
    called = CALLED
    checks: tuple[str, ...] = tuple(checks.list_checks_where(prepared=True))
    #: Whether it can be told which kernels to take, and sees which it took.
    modal = True
    #: Dtypes whose subnormal results the device makes 0, once it is probed.
    flushes: tuple[str, ...] = ()

    def __init__(self, name: str, device_name: str, options: dict[str, object]) -> None:
        self.known = find_torch_device(device_name)
        own: tuple[str, ...] = (self.known.option, REDUCED if (self.known.target or device_name) == "cuda" else "")
        kind = "cuda" if device_name == "rocm" else device_name
        self.modal = self.modal and kind in CONVOLUTION
        if self.modal:
            own = (*own, "sdpa", "convolution", *([FLUSH] if device_name == "cpu" else []))
        self.takes = tuple(filter(None, (*(self.takes or ()), *own)))
        super().__init__(name, device_name, options)
        known = CONVOLUTION.get(kind, {}) if self.modal else {}
        sdpa, convolution = self.choice("sdpa", SDPA if self.modal else (), ""), self.choice("convolution", known, "")
        #: Kernels that it is told to take.
        self.modes = TorchModes(sdpa, convolution, kind) if sdpa or convolution else None
        self.vendor, self.device_vendor = TORCH_DEVICES.get(device_name, (device_name, device_name))
        self.alone = TIMES_KERNELS if convolution == "benchmark" else ""
        self.toolkit = self.device_vendor if self.known.toolkit else ""
        #: What torch calls the device: ROCm builds say cuda, Neuron's plugin xla.
        self.target = self.known.target or device_name
        self.torch_device = "" if self.target == "cpu" else device_name
        self.is_eager_cpu = type(self) is TorchEager and self.target == "cpu"
        self.captures = type(self) is TorchEager and self.target == "cuda"
        #: Whether CUDA may add 16-bit products in 16 bits, as torch does by default.
        self.reduced = self.switch(REDUCED)
        self.flush = self.switch(FLUSH)
        #: Whether float32 may be computed in `TorchDevice.coarse`.
        self.coarse = self.switch(self.known.option)
        #: On a device, variables that its driver reads at import are set first.
        self.imports = ("torch",) if self.target == "cpu" else ()
        if not _does_own_torch_fit(device_name, self.known.plugin):
            self.packages = self.known.packages

    def probe(self) -> RuntimeInfo:
        for variable, value in (*self.known.variables, *(self.known.coarser if self.coarse else ())):
            os.environ.setdefault(variable, value)
        if self.known.platform:
            os.environ["PJRT_DEVICE"] = self.known.platform  # any other would be another backend's device
        if self.device == "neuron":
            _append_compiler_flag("NEURON_CC_FLAGS", f"--auto-cast={'matmult' if self.coarse else 'none'}")
        try:
            import torch
        except ImportError as error:
            raise Unavailable(f"torch is not installed ({error})") from error
        torch.set_num_threads(count_compute_threads())
        precision, driver = "", ""
        if self.modes:
            self.modes.set()
        if self.flush:
            torch.set_flush_denormal(True)
        if self.target == "cpu":
            where = torch.backends.cpu.get_cpu_capability()
        else:
            where = self._accelerator()
            torch.set_warn_always(
                True
            )  # a fallback is said once per op otherwise, and the op's second sample would pass
            torch_switches.set_precision_switches(self.target, self.device, self.coarse, self.reduced)
            precision = self.known.coarse if self.coarse else ""
            self._try()
        if type(self) is TorchEager:  # whatever compiles is asked when a verdict hangs on it
            self.flushes = tuple(
                x for name in flushing.DTYPES for x in flushing.measure_backend_flushing(self, name).results
            )
        if self.target == "cuda":
            driver = find_driver_version(self.device_vendor)  # what torch was built with is no driver
            where = f"{where}, {torch_switches.name_torch_architecture()}"
            if torch.version.hip:
                self.identity = tuple(torch_switches.describe_torch_device_identity(self.target))
        elif self.target in ("xpu", "npu"):
            driver, self.identity = (
                torch_switches.read_torch_driver_version(self.target),
                tuple(torch_switches.describe_torch_device_identity(self.target)),
            )
        return RuntimeInfo(
            f"torch {torch.__version__}{torch_switches.read_torch_plugin_version(self.known)}{torch_switches.list_torch_gpu_libraries() if self.target == 'cuda' else ''}",
            where,
            driver,
            compute_precision=precision,
            of_products=bool(precision),
            flushes=self.flushes,
            accumulators=("float16", "bfloat16") if self.reduced and self.target == "cuda" else (),
            memory=0 if self.target == "cpu" else measure_torch_memory(self.target),
            build=torch_switches.read_torch_commit(),
        )

    def permits(self, precision: str) -> bool:
        return not self.known.obeys

    def _accelerator(self) -> str:
        """Name of the device. Raises Unavailable with torch's or the plugin's own reason."""
        import torch

        if self.device == "rocm" and not torch.version.hip:
            raise Unavailable(f"torch {torch.__version__} is not a ROCm build")
        if self.device == "cuda" and torch.version.hip:
            raise Unavailable(f"torch {torch.__version__} is a ROCm build: its devices are torch-rocm")
        if self.target == "cuda" and not torch.backends.cuda.is_built():
            raise Unavailable(f"torch {torch.__version__} was built without CUDA")
        if self.known.plugin:
            try:
                importlib.import_module(self.known.plugin)
            except Exception as error:  # a missing driver library is an ImportError, OSError or the plugin's own
                raise Unavailable(f"{self.known.plugin} cannot be imported: {_cut_first_line(error)}") from None
        if self.target == "xla":
            return find_xla_device(self.known.platform)
        if self.target == "mps":
            if not torch.backends.mps.is_available():
                raise Unavailable(f"torch {torch.__version__} has no MPS device here")
            return "mps"
        module: Any = getattr(torch, self.target, None)
        if module is None or not hasattr(module, "is_available"):
            raise Unavailable(
                f"torch {torch.__version__} knows no device type {self.target!r} (is its plugin installed?)"
            )
        if not module.is_available():
            hint = _describe_visible_devices(self.device_vendor)
            try:
                torch.empty(1, device=self.target)
            except Exception as error:
                said = _add_torch_advice(error)
                raise Unavailable(f"torch {torch.__version__}: {said}{hint * bool(_NO_DEVICE.search(said))}") from None
            raise Unavailable(f"torch {torch.__version__} finds no {self.target} device{hint}")
        if FRACTION in os.environ and hasattr(module, "set_per_process_memory_fraction"):
            module.set_per_process_memory_fraction(float(os.environ[FRACTION]))
        return str(module.get_device_name(0)) if hasattr(module, "get_device_name") else self.target

    def _try(self) -> None:
        """Add two numbers on the device. Raises Unavailable in its own words, or if it says anything but 2."""
        import torch

        def compute() -> Any:
            ones = torch.ones(2, device=self.target)
            return (ones + ones).cpu()

        smoke_test(self.device, compute, "1 + 1", words=_add_torch_advice)

    @property
    def tf32(self) -> bool:
        """Whether products of float32 may be made in TF32."""
        return self.coarse and self.known.option == "tf32"

    @property
    def flags(self) -> str:
        said = [f"{self.known.option}={'on' if self.coarse else 'off'}"] if self.known.option else []
        if self.target == "cuda":
            said.append(f"{REDUCED}={'on' if self.reduced else 'off'}")
        said += ["triton=interpreted"] if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") == "1" else []
        said += [self.modes.flags] if self.modes else []
        said += [f"flushes={','.join(self.flushes)}"] if self.flushes else []
        return " ".join(said)

    def arguments(
        self, form: Form, place: Callable[[int, np.ndarray], Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Fresh arguments on the device: an op that writes to them harms nobody. Those of a kernel that copies them to
        the device itself are in the CPU's memory. A module is put on the device, and holds what it held before a run
        that wrote to it. place: see `tasks.arrays.torch_tree.make_tensor_decoder`."""
        if form.renew is not None or self.target != "cpu":
            module_state.place_module_state(form, self.target)
        copies = torch_placing.does_form_copy_tensors(form)
        target = "cpu" if copies else self.target
        leaf = torch_tree.make_tensor_decoder(form.arrays.__getitem__, target, place)
        if copies and form.check == checks.FORWARD:  # autograd has tensors alone
            leaf = _with_negative_strides(form, leaf)
        args, kwargs = decode_argument_tree(form.args, leaf), decode_argument_tree(form.kwargs, leaf)
        if form.op in TOLD_ON_CPU:
            args = (
                args[0],
                *decode_argument_tree(form.args, torch_tree.make_tensor_decoder(form.arrays.__getitem__, "cpu"))[1:],
            )
        if target == "cpu":
            return args, kwargs
        return torch_tree.replace_device_in_tree(args, self.target), torch_tree.replace_device_in_tree(
            kwargs, self.target
        )

    def default_device(self, args: Any, kwargs: Any) -> contextlib.AbstractContextManager[Any]:
        """Around a call: one that is given no tensor and no device (``arange(3)``) makes its result where this says."""
        import torch

        told = self.target == "cpu" or any(
            isinstance(x, (torch.Tensor, torch.device, np.ndarray))
            for x in torch_tree.list_output_tensors([args, kwargs])
        )
        return contextlib.nullcontext() if told else torch.device(self.target)

    def cotangents(self, form: Form) -> list[Any]:
        """Fresh cotangents where the outputs are, None for outputs that have none."""
        leaf = torch_tree.make_tensor_decoder(
            form.arrays.__getitem__, "cpu" if torch_placing.does_form_copy_tensors(form) else self.target
        )
        return [
            None if i < 0 else decode_argument_tree(encode_tensor_spec(TensorSpec(i)), leaf) for i in form.cotangents
        ]

    def build(self, form: Form) -> Program:
        import torch

        call = form.call
        assert call is not None
        cotangents = self.cotangents(form) if form.cotangents else []
        program = Program(run=lambda: [], placement=self.target, flags=self.flags)

        def runner(form: Form) -> Callable[[], Sequence[Any]]:
            # A training has the arguments of its steps one at a time: all of them may be tens of GB.
            ready = [] if form.phases else [self.run_and_wait(lambda: self.arguments(form))]

            def compute() -> list[Any]:
                # A kernel that writes to its inputs must not spoil its next run.
                first = bool(ready)
                args, kwargs = ready.pop() if ready else self.arguments(form)
                if form.check != "forward":
                    return autograd.compute_gradients(form, call, args, kwargs, cotangents, watched=first)
                watch = self.modes.watch_fallbacks(program) if self.modes else contextlib.nullcontext()
                with torch.no_grad(), self.default_device(args, kwargs), watch:
                    return torch_tree.list_output_tensors(call(*args, **kwargs))

            watched = (
                self._watched_copies
                if torch_placing.does_form_copy_tensors(form) and self.target != "cpu"
                else self.run_watched
            )

            def run() -> list[Any]:
                before = watched_accesses.count_watched_launches()
                try:
                    return [torch_tree.make_output_array(torch_tree.dense(x)) for x in watched(compute, program)]
                finally:
                    if watched_accesses.count_watched_launches() != before:
                        program.execution = INTERPRETED

            return run

        program.run = runner(form)
        program.given = lambda arrays: runner(form.with_arrays(arrays))
        if form.check == checks.FORWARD and form.own is not None and form.own.session is None:
            program.timed = functools.partial(self._time_calls, form)
        if type(self) is TorchEager and form.check == checks.FORWARD and self.target in torch_placing.TARGETS:
            program.placed = torch_placing.TorchPlacer(self, form, program)
        program.threads = self.target == "cpu" and form.renew is None  # what it keeps, two threads would write at once
        if form.own is not None and form.own.session is not None:
            program.session = lambda: TorchSession(self, form, program, self.open_session(form))
        if self.captures and form.check == "forward" and not torch_placing.does_form_copy_tensors(form):
            program.capture = lambda: torch_graphs.capture_torch_call(
                call, lambda arrays: self.arguments(form.with_arrays(arrays)), form.arrays, self.target
            )
        return program

    def open_session(self, form: Form) -> TensorSession:
        """The session of a form that has one. A compiler gives it what compiles its function."""
        assert form.own is not None and form.own.session is not None
        return form.own.session()

    def _time_calls(self, form: Form, arrays: list[Any], chain: Chain) -> TimedCalls:
        """Timed calls of a kernel of the user's, or of its baseline, on inputs that lie on the device; where that is
        asked for in no cache."""
        assert form.own is not None
        call, target = form.own.bare or form.call, "cpu" if torch_placing.does_form_copy_tensors(form) else self.target
        assert call is not None

        def place(arrays: list[Any]) -> torch_timing.Arguments:
            return self.run_and_wait(lambda: self.arguments(form.with_arrays(arrays)))

        made = torch_timing.TorchCalls(call, self.target, chain, arrays, place)
        if chain.cold:
            self.run_and_wait(lambda: caches.flush_processor_caches(target))
        return made

    def recipe(self, form: Form) -> ProgramRecipe:
        return torch_run.recipe(form, self.target, variables=self.variables, setup=self.setup)

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment of a program that computes as this backend does."""
        known = self.known
        given = known.variables + ((("PJRT_DEVICE", known.platform),) if known.platform else ())
        return dict(given + (known.coarser if self.coarse else ()))

    @property
    def setup(self) -> tuple[str, ...]:
        """Lines of such a program before all calls: the import that registers the device, torch's switches."""
        switches = torch_switches.write_torch_switch_lines(self.target, self.device, self.coarse, self.reduced)
        plugins = [self.known.plugin, *["torch_xla.backends"] * any("torch_xla.backends" in x for x in switches)]
        lines = [*(f"import {name}" for name in plugins if name), *switches]
        return ("import torch", *lines) if lines else ()

    def eager(self, form: Form) -> BaselineArm:
        """Eager torch in this backend's modes: those of a second one would become this process's."""
        return BaselineArm(f"torch-{self.device}", TorchEager.build(self, form), form)

    def start_torch(self) -> Backend:
        return self  # modes of a second one would become this process's

    def measure_ceiling(self, what: str) -> float:
        return ceilings.measure_device_ceiling(self.target, what)

    def cache_bytes(self) -> int:
        return caches.last_level_bytes(self.target)

    # -- asynchronous devices ------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Return when the device has done all that was asked of it. Raises what went wrong there."""
        synchronize_torch_device(self.target)

    def run_and_wait(self, action: Callable[[], T]) -> T:
        """What ``action`` returns, once the device has finished.

        An asynchronous error is raised here, also in place of one that ``action`` raised on the host after it: left
        behind, it would be raised at the next case.
        """
        if self.target == "cpu":
            return action()
        try:
            made = action()
        except Exception:
            self.wait()
            raise
        self.wait()
        return made

    def run_watched(self, action: Callable[[], list[Any]], program: Program) -> list[Any]:
        """`run_and_wait`, noting in ``program`` what says that something ran elsewhere."""
        if self.target == "cpu":
            return action()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if self.target == "xla":
                importlib.import_module("torch_xla.debug.metrics").clear_counters()
            out = self.run_and_wait(action)
        words = [str(w.message).splitlines()[0] for w in said if FELL_BACK.search(str(w.message))] + (
            _read_xla_cpu_counters() if self.target == "xla" else []
        )
        if words:
            program.fallback = "; ".join(dict.fromkeys(words))
        self._describe_placement(out, program)
        return out

    def _watched_copies(self, action: Callable[[], list[Any]], program: Program) -> list[Any]:
        """`run_and_wait`, noting in ``program`` whether torch's allocator of the device says that the kernel, which
        makes its own copies, used it. Another library's memory it does not see, so nothing says that a kernel did
        not."""
        before = count_torch_allocations(self.target)
        out = self.run_and_wait(action)
        used = before is not None and count_torch_allocations(self.target) != before
        program.placement = f"{self.target}, by its own copies"
        program.execution = "" if used else UNVERIFIED
        return out

    def _describe_placement(self, out: Sequence[Any], program: Program) -> None:
        import torch

        where = {x.device.type for x in out if isinstance(x, torch.Tensor)}
        if where and self.target not in where:
            program.placement = ",".join(sorted(where))
            program.fallback = f"the result lives on {program.placement}, not on {self.target}"

    # -- what errors say -----------------------------------------------------------------------------------------

    def is_unsupported(self, error: BaseException) -> bool:
        bases = (x for x in (NotImplementedError, RuntimeError) if isinstance(error, x))
        kind = next(bases, type(error)).__name__
        return says_torch_unsupported(self.device, kind, str(error), attention=bool(self.modes and self.modes.sdpa))

    def refuses(self, error: BaseException) -> bool:
        return super().refuses(error) and not FAILED.search(str(error))

    def is_out_of_memory(self, error: BaseException) -> bool:
        text = str(error)
        return (
            isinstance(error, MemoryError)
            or type(error).__name__ == "OutOfMemoryError"
            or _says_torch_pattern(self.known.out_of_memory, text)
            or ("can't allocate memory" in text or "not enough memory" in text)
        )

    def is_sticky(self, error: BaseException) -> bool:
        if self.target == "cpu" or self.is_out_of_memory(error) or self.is_unsupported(error):
            return False
        return _says_torch_pattern(self.known.sticky, str(error)) or (
            type(error).__name__ == "AcceleratorError" and self._is_lost()
        )

    def _is_lost(self) -> bool:
        """Whether the device no longer adds two numbers: a launch that it refused (of too many threads) spoils
        nothing."""
        try:
            self._try()
        except Unavailable:
            return True
        return False


def _with_negative_strides(
    form: Form, leaf: Callable[[str, dict[str, Any]], Any]
) -> Callable[[str, dict[str, Any]], Any]:
    """A leaf of decoded arguments as ``leaf`` makes it, but an array of NumPy's where torch has no such tensor."""

    def restore_strides(kind: str, node: dict[str, Any]) -> Any:
        if kind == "tensor" and min(node.get("strides", ()), default=0) < 0:
            return read_tensor_spec(node).view(form.arrays[node["id"]].copy(), writeable=True)
        return leaf(kind, node)

    return restore_strides


def find_xla_device(platform: str) -> str:
    """PJRT's name of the device. Raises Unavailable where it is another one than asked for: XLA's CPU is no TPU."""
    try:
        runtime = importlib.import_module("torch_xla.runtime")
        found = str(runtime.device_type())
        count = int(runtime.addressable_device_count())
    except Exception as error:
        raise Unavailable(f"torch_xla finds no {platform}: {_cut_first_line(error)}") from None
    if found.upper() != platform or not count:
        raise Unavailable(f"torch_xla runs on {found} here ({count} devices), not on {platform}")
    return found


def _read_xla_cpu_counters() -> list[str]:
    """Ops that XLA has no lowering for: its counters name those that ATen computed on the CPU "aten::…"."""
    names = importlib.import_module("torch_xla.debug.metrics").counter_names()
    return [f"{x} ran on the CPU" for x in names if x.startswith("aten::") and x != "aten::_local_scalar_dense"]


def _says_torch_pattern(pattern: str, text: str) -> bool:
    return bool(pattern) and re.search(pattern, text) is not None


def _cut_first_line(error: BaseException) -> str:
    """The first line of what a driver or a plugin says: others say the same with advice."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _describe_visible_devices(vendor: str) -> str:
    """What the variables of a vendor's visible devices say, where they are set, as the end of a sentence."""
    names = BY_LABEL[vendor].find_heeded_variables(os.environ) if vendor in BY_LABEL else ()
    told = " and ".join(f"${name} is {os.environ[name]!r}" for name in names if name in os.environ)
    return f" ({told}: name what exists, or unset it)" if told else ""


def _add_torch_advice(error: BaseException) -> str:
    """What an error says, and what to do where the wheel is not for this driver or this device."""
    said = _cut_first_line(error)
    for words, what in (
        (r"too old|driver version is insufficient", "; or add a torch for this driver to its packages"),
        (
            r"no kernel image|NoBinaryForGpu|invalid device function|was built for \d+ devices?",
            "; this torch has no code for this device: add one that has to its packages",
        ),
    ):
        said = said.rstrip(".") + what if re.search(words, said) else said
    return said


def _append_compiler_flag(variable: str, flag: str) -> None:
    """Append a compiler flag that decides precision; one of the same name that the user gave stands."""
    given = os.environ.get(variable, "")
    if flag.partition("=")[0] not in given:
        os.environ[variable] = f"{given} {flag}".strip()


def _does_own_torch_fit(device_name: str, plugin: str) -> bool:
    """Whether the torch installed here is built for a device, as its own file of versions says; whatever a build is
    called, it has one.

    torch is not imported: what is asked is asked of every backend, in every process."""
    if device_name in ("cpu", "mps"):
        return True
    if plugin:
        with contextlib.suppress(ImportError, ValueError):
            return importlib.util.find_spec(plugin.partition(".")[0]) is not None
        return False
    return device_name not in ("cuda", "rocm", "xpu") or bool(
        _list_torch_toolkits().get(_VERSION_OF.get(device_name, device_name))
    )


#: What torch's file of versions calls the toolkit that it is built with, where that is not the device's name.
_VERSION_OF = {"rocm": "hip"}


def _list_torch_toolkits() -> dict[str, str]:
    """Of the torch installed here: toolkit → its version, of those that it is built with."""
    told: dict[str, str] = {}
    with contextlib.suppress(metadata.PackageNotFoundError, OSError):
        file = Path(str(metadata.distribution("torch").locate_file("torch/version.py")))
        if not file.exists():  # of a build that lies where it was compiled
            spec = importlib.util.find_spec("torch")
            file = Path(spec.origin if spec and spec.origin else "").with_name("version.py")
        told = dict(re.findall(r"""^(cuda|hip|xpu)\b[^=]*= *["']([^"']+)["']""", file.read_text(), re.MULTILINE))
    return told
