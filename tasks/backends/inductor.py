"""torch.compile with inductor on a torch device; a case counts only if inductor generated a kernel for it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.varied import vary_input_arrays
from tasks.backends.base import Backend, importing, smoke_test
from tasks.backends.needs import ANY_C_COMPILER, CXX_COMPILER, PYTHON_HEADERS
from tasks.backends.shared import inductor_settings, torch_run
from tasks.backends.shared.recipe import ProgramRecipe
from tasks.backends.torch import TorchEager
from tasks.catalogs.user import load_kernels
from tasks.gradients import autograd
from tasks.model import Fallback, Form, Program, RuntimeInfo, TensorSession, Unavailable, Unsupported, errors
from tasks.nearest import suggest_nearest_names
from tasks.training.recipe import FLOAT8

#: Devices whose plugin brings a compiler of its own for torch.compile.
WITHOUT = {"xla": "its compiler is XLA, which torch-xla runs eagerly", "hpu": "its compiler is hpu_backend"}

#: What of inductor can be turned off by itself: names of its config (torch/_inductor/config.py), all true or false.
PASSES = (
    "pattern_matcher",
    "joint_graph_constant_folding",
    "constant_and_index_propagation",
    "split_cat_fx_passes",
    "batch_fusion",
    "reorder_for_locality",
    "layout_optimization",
    "loop_ordering_after_fusion",
    "epilogue_fusion",
    "split_reductions",
    "shape_padding",
    "inplace_buffers",
    "allow_buffer_reuse",
)


#: A seed that no module gives.
_SEED = 0x5EEDF0124A11
#: The two ways to compile a module whose graph torch.compile breaks by itself, and takes whole where it is told to.
PIECES, WHOLE = "the graph in pieces, as torch.compile breaks it,", "one graph (fullgraph=True)"

T = TypeVar("T")

#: What the loader says of a program that a compiler was killed over; inductor takes what is there for whole.
_HALF = re.compile(r"(/\S+\.so): (?:file too short|invalid ELF header|cannot read file data)")


def retry_without_half_kept(compile_: Callable[[], Any]) -> Any:
    """What compiling gives; half a program that an earlier process left among the kept ones is deleted, and made
    again."""
    met = set[str]()
    while True:
        try:
            return compile_()
        except Exception as error:
            found = _HALF.search(str(error))
            if found is None or found[1] in met or not os.path.isfile(found[1]):
                raise
            met.add(found[1])
            os.unlink(found[1])
            _reset_torch_dynamo()


def _reset_torch_dynamo() -> None:
    import torch

    torch._dynamo.reset()


def import_inductor() -> None:
    """Import the compiler, which takes three seconds of a process. Its settings are read from variables meanwhile."""
    # One compiler process per child: the farm's slots are the parallelism.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    importlib.import_module("torch._inductor.compile_fx")
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    # Compiled headers lie where the process that imported torch had its temporary files, which a fork of it may not
    # write to.
    if (folder := os.environ.get("TORCHINDUCTOR_CACHE_DIR")) and hasattr(codecache, "_HEADER_DIR"):
        codecache._HEADER_DIR = os.path.join(folder, "precompiled_headers")
        codecache._HEADER_LOCK_DIR = os.path.join(codecache._HEADER_DIR, "locks")


def import_inductor_for_cpu() -> None:
    """`import_inductor`, with the processor's widest vectors tried and no others.

    torch tries all that a processor has, one after another, and takes the first, the widest: four builds of C++ in a
    cold cache, and four processes of Python in a warm one.
    """
    import_inductor()
    import torch._inductor.config
    from torch._inductor import cpu_vec_isa

    with contextlib.suppress(AttributeError):  # another torch, which tries them as it does
        flags = cpu_vec_isa.x86_isa_checker()
        known = (isa for isa in cpu_vec_isa.supported_vec_isa_list if all(x in flags for x in str(isa).split()))
        if torch._inductor.config.cpp.vec_isa_ok is None and (widest := next(known, None)) and bool(widest):
            torch._inductor.config.cpp.vec_isa_ok = True


class Inductor(TorchEager):
    """torch.compile with the backend ``compiler``; a subclass says by `_fallback` and `_where` what counts as its own.

    option settings: what of inductor's config is set otherwise, by name, or "drawn": of each case one to four of those
    that change nothing of what is computed (`tasks.backends.shared.inductor_settings`).
    """

    joint = True
    takes = ("settings",)
    devices: tuple[str, ...] = ("cpu", "cuda", "rocm", "xpu")
    compiler = "inductor"
    modal = False
    #: Those of PASSES that are turned off.
    off: tuple[str, ...] = ()
    dynamic = False
    checks: tuple[str, ...] = ("forward", "backward", "amp", "train")  # AOT autograd has no double backward

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.given = inductor_settings.check_inductor_settings(options.get("settings"))
        if self.given == inductor_settings.DRAWN:
            self.joint = False  # each case has its own
        self.imports += (f"{__name__}:{self._load.__name__}",) * bool(self.imports)
        if self.target in ("cpu", "xpu"):
            self.needs = (CXX_COMPILER, PYTHON_HEADERS)
        elif self.target == "cuda":  # ROCm's as well
            self.needs = (ANY_C_COMPILER, PYTHON_HEADERS)

    def probe(self) -> RuntimeInfo:
        with importing("torch"):
            self._load()
        info = super().probe()
        if self.target in WITHOUT:
            raise Unavailable(f"inductor does not compile for {self.target}: {WITHOUT[self.target]}")
        if self.target not in ("cpu", "mps"):  # C++ and Metal
            import importlib.util

            if importlib.util.find_spec("triton") is None:
                own = " ".join(self.known.packages)
                how = f"; a torch for this device includes it: add {own} to its packages" if own else ""
                raise Unavailable(f"inductor needs triton on this device: it is not installed{how}")
        if self.target != "mps":
            self._try_compiled()
        return info

    @property
    def _load(self) -> Callable[[], None]:
        return import_inductor_for_cpu if self.target == "cpu" else import_inductor

    def _try_compiled(self) -> None:
        """Compile a sum for the device. Raises Unavailable: without a C compiler, Python's headers or a setting that is
        known every case would fail.

        What is done once, loading the compiler (5 s) and, with an empty cache, trying the processor's vectors and
        compiling headers (15 s of C++), is then no case's time.
        """
        import torch
        import torch._inductor.config

        given = {} if isinstance(self.given, str) else self.given
        known = torch._inductor.config.get_config_copy()
        if unknown := [name for name in given if name.replace("-", "_") not in known]:  # as torch.compile reads them
            raise Unavailable(f"inductor has no setting {unknown[0]!r}{suggest_nearest_names(unknown[0], list(known))}")

        def compute() -> Any:
            return torch.compile(lambda x: x + x, options=given)(torch.ones(2, device=self.target)).cpu()

        smoke_test(f"inductor on {self.target}", lambda: retry_without_half_kept(compute), "1 + 1, compiled")

    def canary(self, form: Form) -> Program:
        """Of the device, not of the compiler."""
        return TorchEager.build(self, form)

    def any_size(self) -> Backend:
        return self.but(dynamic=True)

    def levels(self) -> Mapping[str, Backend]:
        """What torch.compile is made of, one part more at a time: its graph run eagerly, that with ahead-of-time
        autograd, with decompositions, and compiled."""
        if self.compiler != "inductor":
            return {}
        less = ("eager", "aot_eager", "aot_eager_decomp_partition")
        return {x: self.but(compiler=x) for x in less} | {self.compiler: self}

    def passes(self) -> tuple[str, ...]:
        return PASSES if self.compiler == "inductor" else ()

    def without(self, passes: Collection[str]) -> Backend:
        return self.but(off=tuple(passes))

    def recipe(self, form: Form) -> ProgramRecipe:
        import torch

        compiled: dict[str, Any] = {"backend": self.compiler}
        if not isinstance(form.call, torch.nn.Module) or self.dynamic:
            compiled |= {"fullgraph": True, "dynamic": self.dynamic}
        if settings := self._settings(form):
            compiled["options"] = settings
        return torch_run.recipe(form, self.target, compiled, variables=self.variables, setup=self.setup)

    def _settings(self, form: Form) -> dict[str, Any]:
        """Of inductor's config, what is not the default."""
        if self.compiler in ("eager", "aot_eager", "aot_eager_decomp_partition"):
            return {}
        given = inductor_settings.draw_inductor_settings(form) if isinstance(self.given, str) else self.given
        return given | dict.fromkeys(self.off, False)

    def open_session(self, form: Form) -> TensorSession:
        """A training loop computes its loss, and the gradients of that, as torch.compile makes them of its function."""
        import torch

        if form.phases and form.dtype == FLOAT8:
            raise Unsupported(f"{self.name} does not train in FP8: torch-{self.device} does")
        session, settings = super().open_session(form), self._settings(form)
        torch._dynamo.reset()

        session.compile = lambda function: torch.compile(function, backend=self.compiler, options=settings or None)  # type: ignore[attr-defined]
        step = session.step
        # Compiled at the first step, the backward pass in the backward pass; a step that is given its state can be
        # taken again.
        session.step = lambda args, own: retry_without_half_kept(lambda: step(args, own))  # type: ignore[method-assign, assignment]
        return session

    def build(self, form: Form) -> Program:
        if form.phases:
            return TorchEager.build(self, form)
        built = self._compile([form])
        return built[0]

    def build_all(self, forms: Sequence[Form]) -> list[Program | Exception]:
        """One graph of all samples: one compiler call instead of one each.

        Sample by sample if that fails, or if it cannot be told which of them the kernels belong to.
        """
        import torch

        # A module is compiled as its user compiles it; one that writes to what it holds is put back before each of its
        # calls. A training loop compiles its own loss.
        apart = any(isinstance(form.call, torch.nn.Module) or form.phases for form in forms)
        if len(forms) > 1 and not apart and all(form.check == "forward" for form in forms):
            try:
                return list(self._compile(forms))
            except Exception as error:  # which sample it was, the single builds tell
                if self.is_sticky(error):
                    raise
        return super().build_all(forms)

    def _compile(self, forms: Sequence[Form]) -> list[Program]:
        import torch
        from torch._dynamo.utils import counters
        from torch._inductor import metrics
        from torch._inductor.decomposition import fast_random_decomps

        calls = [form.call for form in forms]
        if any(map(_seeds_generator, calls)):
            raise Fallback("graph break: the op seeds the random generator", broken=True)
        torch._dynamo.reset()
        metrics.reset()
        counters.clear()
        # Read at the first compilation, which was the probe's; the module's file may have registered others since.
        fast_random_decomps.cache_clear()

        def joint(bundle: list[Any]) -> list[Any]:
            return [call(*args, **kwargs) for call, (args, kwargs) in zip(calls, bundle)]  # type: ignore[misc]

        settings = self._settings(forms[0])
        options: Any = settings or None
        watched: list[bool] = []
        alone = isinstance(calls[0], torch.nn.Module)
        # As its user calls torch.compile: what changes from call to call within a module (a size, a number) becomes a
        # variable.
        how = {"dynamic": self.dynamic or (None if alone else False), "backend": self.compiler, "options": options}

        def run(compiled: Any, bundle: list[Any]) -> list[Any]:
            if forms[0].check != "forward":  # alone: the gradient's kernels are compiled when it is asked for
                form, (args, kwargs) = forms[0], bundle[0]
                call = functools.partial(_unwrap_single_output, compiled)
                given = self.cotangents(form)
                found = [autograd.compute_gradients(form, call, args, kwargs, given, watched=not watched)]
                watched.append(True)
                return found
            with torch.no_grad():
                return list(compiled(bundle))

        def first(compiled: Any, forms: Sequence[Form]) -> None:
            retry_without_half_kept(lambda: self.run_and_wait(lambda: run(compiled, self._bundle(forms))))

        def compiles(**more: Any) -> Callable[[list[Any]], list[Any]]:
            compiled = torch.compile(joint, **how, **more)
            # What inductor keeps is told by the program, not by the decompositions and lowerings that a file of the
            # user's registers.
            with torch.compiler.config.patch(cache_key_tag=load_kernels.digest_loaded_kernels()):
                # Compiled on other values than those it is judged on: a number of theirs that became a constant would
                # be right. Twice where the second compilation of a piece takes a number that has changed as a variable.
                for turn in range(1 + alone):
                    others = [replace(form, arrays=vary_input_arrays(form.arrays, turn, moved=False)) for form in forms]
                    with contextlib.suppress(Exception):
                        first(compiled, others)
                first(compiled, forms)
            return lambda bundle: list(self.run_and_wait(lambda: run(compiled, bundle)))

        broken, ways = "", dict[str, list[Any]]()
        unsupported = (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)  # the latter: control flow by data
        try:
            compute = self._unbroken(compiles) if alone else compiles(fullgraph=True)
        except unsupported as error:
            broken = f"graph break: {errors.find_error_text(error)}"
            if not alone or self._reseeds(forms[0]):
                raises = isinstance(error.__cause__, torch._dynamo.exc.ObservedException)
                raise Fallback(broken, raises, broken=True) from None
        if broken:
            # fullgraph takes numbers that are read from tensors (.item()) into the graph, where torch.compile by itself
            # breaks it. What it does not make one graph of, whatever it says, is no failure of the way that the user
            # takes.
            torch._dynamo.reset()
            with contextlib.suppress(Exception):
                (result,) = compiles(fullgraph=True)(self._bundle(forms))
                ways[WHOLE] = [
                    np.array(torch_tree.make_output_array(torch_tree.dense(x)))
                    for x in torch_tree.list_output_tensors(result)
                ]
            # As a user of torch.compile has it, in pieces: what it raises then, eager torch does not.
            torch._dynamo.reset()
            compute = compiles()
        kernels, graphs = metrics.generated_kernel_count, counters["stats"].get("unique_graphs", 0)
        if 0 < kernels < len(forms):
            raise RuntimeError(f"{kernels} kernels for {len(forms)} samples")
        fallback = broken * (not ways) or (self._fallback(kernels) if graphs else "no graph was compiled")
        words = ["graph=whole,pieces" * bool(ways), self.flags, *inductor_settings.word_inductor_settings(settings)]
        flags = " ".join([f"kernels={kernels}/{len(forms)}", *filter(None, words)])
        made = Program(
            lambda: [], self._where(kernels), fallback, flags, pieces=bool(broken), ways=ways, way=PIECES * bool(ways)
        )
        return self._programs(forms, made, compute)

    def _reseeds(self, form: Form) -> bool:
        """Whether a module seeds the random generator itself: what inductor draws then is another stream than eager
        torch's."""
        import torch

        args, kwargs = self.arguments(form)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), contextlib.suppress(Exception):
            torch.manual_seed(_SEED)
            form.call(*args, **kwargs)  # type: ignore[misc]
            return torch.initial_seed() != _SEED
        return False

    @staticmethod
    def _unbroken(compiles: Callable[..., T]) -> T:
        """What compiling gives as torch.compile is called by itself, where that breaks no graph. Raises Unsupported
        where it does."""
        import torch

        strict = getattr(torch._dynamo, "error_on_graph_break", None)  # since torch 2.9
        if strict is None:
            return compiles(fullgraph=True)
        with strict(True):
            return compiles()

    def _bundle(self, forms: Sequence[Form]) -> list[Any]:
        """Fresh arguments of every sample of a graph."""
        return [self.arguments(form) for form in forms]

    def _programs(
        self, forms: Sequence[Form], like: Program, compute: Callable[[list[Any]], list[Any]]
    ) -> list[Program]:
        """One program per sample of a graph that ``compute`` runs; it runs once for all of them."""
        results: list[Any] = []
        taken: set[int] = set()

        def program(i: int) -> Program:
            made = replace(like)

            def run() -> Sequence[Any]:
                if i in taken:  # a further run of the sample: the results are computed again, not handed out again
                    results.clear()
                    taken.clear()
                taken.add(i)
                if not results:
                    results.extend(compute(self._bundle(forms)))
                return read_result(results[i])

            def read_result(result: Any) -> Sequence[Any]:
                out = torch_tree.list_output_tensors(result)
                if self.target != "cpu" and made.fallback is None:
                    self._describe_placement(out, made)
                return [torch_tree.make_output_array(torch_tree.dense(x)) for x in out]

            def bind_inputs(arrays: list[Any]) -> Callable[[], Sequence[Any]]:
                others = [form.with_arrays(arrays) if k == i else form for k, form in enumerate(forms)]
                ready = [self.run_and_wait(lambda: self._bundle(others))]
                return lambda: read_result(compute(ready.pop() if ready else self._bundle(others))[i])

            made.run, made.given = run, bind_inputs
            return made

        return [program(i) for i in range(len(forms))]

    def _fallback(self, kernels: int) -> str | None:
        """Why what was just compiled, with ``kernels`` generated ones, is not this compiler's own work."""
        return None if kernels else "no kernel was generated: the graph calls ATen"

    def _where(self, kernels: int) -> str:
        return f"inductor {self.target}"


def _unwrap_single_output(compiled: Any, *args: Any, **kwargs: Any) -> Any:
    """The output of a joint function of a single call."""
    return compiled([(args, kwargs)])[0]


def _seeds_generator(call: Any) -> bool:
    """Whether the op seeds the random generator: OpInfo wraps every op that draws numbers."""
    code = getattr(getattr(call, "__wrapped__", call), "__code__", None)
    return code is not None and "wrapper_set_seed" in code.co_names
