"""torch's devices without having one: fake device modules, plugins and errors stand in for them."""

from __future__ import annotations

import gc
import os
import sys
import types
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.arrays import torch_tree
from tasks.arrays.tree import TensorSpec, encode_argument_tree, encode_tensor_spec
from tasks.backends.inductor import Inductor
from tasks.backends.shared import torch_devices, torch_switches
from tasks.backends.shared.torch_devices import says_torch_unsupported
from tasks.backends.torch import TorchEager, _add_torch_advice
from tasks.devices import TORCH, TORCH_DEVICES
from tasks.model import Flushes, Form, Program, Unavailable

torch: Any = pytest.importorskip("torch")


def eager(device: str, **options: object) -> TorchEager:
    return TorchEager(f"torch-{device}", device, options)


def fake_npu(monkeypatch: pytest.MonkeyPatch, synchronize: Callable[[], None] = lambda: None) -> Any:
    """``torch.npu`` with hf32 switches as the plugin has them by default; tensors for it stay on the CPU."""
    npu = types.SimpleNamespace(
        is_available=lambda: True,
        get_device_name=lambda i: "Ascend910B3",
        synchronize=synchronize,
        matmul=types.SimpleNamespace(allow_hf32=False),
        conv=types.SimpleNamespace(allow_hf32=True),
    )
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    real = torch_tree.make_tensor_decoder
    monkeypatch.setattr(
        torch_tree, "make_tensor_decoder", lambda arrays, device, place=None: real(arrays, "cpu", place)
    )
    monkeypatch.setattr(TorchEager, "_try", lambda self: None)
    return npu


def doubled(call: Callable[..., Any]) -> Form:
    return Form(
        "torch",
        "torch:x",
        "float32",
        [np.ones(2, np.float32)],
        call=call,
        args={"$": "tuple", "v": [encode_tensor_spec(TensorSpec(0))]},
        kwargs={"$": "dict", "v": []},
    )


def test_every_device_type_of_the_vendor_table_is_known() -> None:
    assert set(TORCH) == set(TORCH_DEVICES)


@pytest.mark.skipif(bool(torch.version.cuda or torch.version.hip), reason="this torch has devices")
@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("cuda", "built without CUDA"),
        ("rocm", "is not a ROCm build"),
        ("npu", "torch_npu cannot be imported: No module named 'torch_npu'"),
        ("hpu", "habana_frameworks.torch.core cannot be imported: No module named 'habana_frameworks'"),
        ("xla", "torch_xla cannot be imported: No module named 'torch_xla'"),
        ("neuron", "torch_neuronx cannot be imported: No module named 'torch_neuronx'"),
        ("gcu", "knows no device type 'gcu'"),
    ],
)
def test_a_missing_device_says_why(device: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "TORCH_DEVICE_BACKEND_AUTOLOAD",
        "PJRT_DEVICE",
        "NEURON_CC_FLAGS",
        "PT_HPU_LAZY_MODE",
        "PT_ENABLE_INT64_SUPPORT",
        "TORCH_NPU_FALLBACK_CPU_DISABLE",
    ):
        monkeypatch.setenv(name, "0")  # and taken back after the test
    with pytest.raises(Unavailable, match=reason):
        eager(device).probe()


@pytest.mark.parametrize(("name", "meant"), [("gaudi", "hpu"), ("tpu", "xla"), ("intel", "xpu"), ("ascend", "npu")])
def test_a_device_that_is_called_by_its_vendor_or_product_is_named_as_torch_names_it(name: str, meant: str) -> None:
    with pytest.raises(Unavailable, match=rf"knows no device type '{name}' .*; did you mean torch-{meant}\?"):
        eager(name).start()


@pytest.mark.parametrize(
    ("name", "meant", "variable"),
    [
        ("rocm.1", "rocm", r"\$HIP_VISIBLE_DEVICES"),
        ("amd:1", "rocm", r"\$HIP_VISIBLE_DEVICES"),
        ("npu.0", "npu", r"\$ASCEND_RT_VISIBLE_DEVICES"),
    ],
)
def test_who_chooses_one_of_several_devices_is_told_the_variable(name: str, meant: str, variable: str) -> None:
    how = rf"to choose among several devices, set {variable} when starting the farm"
    with pytest.raises(Unavailable, match=rf"did you mean torch-{meant}\? \({how}\)$"):
        eager(name).start()
    for option in ("device", "index"):
        with pytest.raises(ValueError, match=f"unknown option '{option}'; it takes .*; {how}$"):
            TorchEager(f"torch-{meant}", meant, {option: 3})
    with pytest.raises(ValueError, match="unknown option 'tf3'; it takes [^;]*$"):
        eager("rocm", tf3=True)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("hipErrorInsufficientDriver: driver version is insufficient for runtime version", "for this driver"),
        ("HIP error: invalid device function", "has no code for this device"),
        ("The program was built for 1 devices\nBuild program log: unsupported target", "has no code for this device"),
        ("HIP error: unspecified launch failure", ""),
    ],
)
def test_what_a_device_says_that_this_torch_is_not_for_comes_with_what_to_do(words: str, advice: str) -> None:
    said = _add_torch_advice(RuntimeError(words))
    assert said.startswith(words.splitlines()[0]) and (advice in said if advice else said == words)


def test_a_device_that_computes_nothing_is_called_as_its_backend_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def ones(*size: int, device: str) -> Any:
        raise RuntimeError("HIP error: invalid device function\nHIP kernel errors might be reported later")

    monkeypatch.setattr(torch, "ones", ones)
    with pytest.raises(
        Unavailable, match=r"^rocm: smoke test failed \(1 \+ 1\): HIP error: invalid device function; this torch"
    ):
        eager("rocm")._try()  # torch calls it cuda


def test_what_rocm_torch_was_built_with_is_no_version_of_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = eager("rocm")
    for name in ("_accelerator", "_try"):
        monkeypatch.setattr(backend, name, lambda: "AMD Instinct MI300X")
    monkeypatch.setattr(torch_switches, "set_precision_switches", lambda *how: None)
    monkeypatch.setattr(torch_switches, "name_torch_architecture", lambda: "gfx942")
    monkeypatch.setattr(torch_switches, "describe_torch_device_identity", lambda target: [])
    monkeypatch.setattr("tasks.backends.torch.find_driver_version", lambda label: "")
    monkeypatch.setattr(torch.version, "hip", "7.2.26015")
    monkeypatch.setattr("tasks.backends.torch.flushing.DTYPES", ())
    before = torch.is_warn_always_enabled()
    info = backend.start()
    torch.set_warn_always(before)
    assert info.driver_version == "" and "ROCm 7.2.26015" in info.runtime_version


def test_a_driver_that_is_too_old_for_the_wheel_is_said_in_torchs_words(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver"

    def empty(*size: int, device: str) -> Any:
        raise RuntimeError(f"{words}\nby downloading a new one")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(Unavailable) as caught:
        eager("cuda").probe()
    assert str(caught.value) == f"torch {torch.__version__}: {words}; or add a torch for this driver to its packages"


def test_xla_on_its_own_cpu_is_no_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch_xla", "torch_xla.runtime"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["torch_xla.runtime"].__dict__.update(device_type=lambda: "CPU", addressable_device_count=lambda: 1)
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    with pytest.raises(Unavailable, match="runs on CPU here .* not on TPU"):
        eager("xla").probe()


@pytest.mark.parametrize(("options", "declared"), [({}, ""), ({"hf32": True}, "tfloat32")])
def test_the_npu_is_asked_for_float32_in_float32(
    options: dict[str, object], declared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    npu = fake_npu(monkeypatch)
    info = eager("npu", **options).probe()
    assert (info.device, info.compute_precision) == ("Ascend910B3", declared)
    assert (npu.matmul.allow_hf32, npu.conv.allow_hf32) == (bool(options), bool(options))


def test_rocm_is_told_by_a_variable_that_tf32_may_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does on ROCm: TF32 stays off while the variable does not allow it."""
    allowed = "HIPBLASLT_ALLOW_TF32"
    monkeypatch.setenv(allowed, "")
    monkeypatch.delenv(allowed)
    told: list[str | None] = []
    monkeypatch.setattr(TorchEager, "_accelerator", lambda self: told.append(os.environ.get(allowed)) or "MI300X")
    monkeypatch.setattr(TorchEager, "_try", lambda self: None)
    monkeypatch.setattr(torch_switches, "set_precision_switches", lambda *asked: None)
    monkeypatch.setattr(torch_switches, "name_torch_architecture", lambda: "gfx942")
    monkeypatch.setattr(torch_switches, "list_torch_gpu_libraries", lambda: "")
    monkeypatch.setattr("tasks.backends.shared.flushing.measure_backend_flushing", lambda *asked: Flushes())
    for options in ({}, {"tf32": True}):
        eager("rocm", **options).probe()
    assert told == [None, "1"]
    assert ("HIPBLASLT_ALLOW_TF32", "1") in eager("rocm", tf32=True).variables.items()


@pytest.mark.parametrize("device", ["cuda", "rocm"])
def test_products_and_sums_on_a_gpu_are_as_coarse_as_its_options_say(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's switches themselves, which a build for CPUs has too: its own defaults allow some of it."""
    sums = [f"allow_{x}_reduced_precision_reduction" for x in ("fp16", "bf16")]
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    switches = [(products, "allow_tf32"), (cudnn, "allow_tf32"), *((products, x) for x in sums)]
    before = [getattr(*switch) for switch in switches]
    monkeypatch.setenv("HIPBLASLT_ALLOW_TF32", "1")
    for name, answer in (("_accelerator", "GPU"), ("_try", None)):
        monkeypatch.setattr(TorchEager, name, lambda self, answer=answer: answer)
    monkeypatch.setattr(torch_switches, "name_torch_architecture", lambda: "sm_90")
    monkeypatch.setattr("tasks.backends.shared.flushing.measure_backend_flushing", lambda *asked: Flushes())
    try:
        for tf32, reduced in ((True, True), (False, False), (False, True), (True, False)):
            eager(device, tf32=tf32, reduced_precision_reduction=reduced).probe()
            assert [getattr(*switch) for switch in switches] == [tf32, tf32, reduced, reduced]
    finally:
        with torch_switches.allow_setting_flags():
            for switch, value in zip(switches, before, strict=True):
                setattr(*switch, value)


@pytest.mark.parametrize(("tf32", "declared"), [(False, ""), (True, "tfloat32")])
def test_products_on_an_intel_gpu_are_as_coarse_as_its_option_says(
    tf32: bool, declared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    switches = torch.backends.mkldnn
    monkeypatch.setattr(type(switches), "allow_tf32", not tf32)  # a build for CPUs keeps no such switch
    for name, answer in (("_accelerator", "GPU"), ("_try", None)):
        monkeypatch.setattr(TorchEager, name, lambda self, answer=answer: answer)
    monkeypatch.setattr("tasks.backends.shared.flushing.measure_backend_flushing", lambda *asked: Flushes())
    properties = types.SimpleNamespace(driver_version="1.6.33578+15")
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: properties)
    info = eager("xpu", tf32=tf32).probe()
    assert (info.compute_precision, info.driver_version) == (declared, "1.6.33578+15")
    assert switches.allow_tf32 is tf32


def test_a_setting_that_is_not_taken_makes_the_device_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    npu = fake_npu(monkeypatch)

    class Stubborn:
        allow_hf32 = property(lambda self: True, lambda self, value: None)

    npu.conv = Stubborn()
    with pytest.raises(Unavailable, match="allow_hf32"):
        eager("npu").probe()


def test_an_asynchronous_error_is_raised_at_its_own_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel returns, the device fails later: not before, and not after, the run that launched it."""
    launched: list[str] = []

    def synchronize() -> None:
        if launched:
            raise RuntimeError(f"AclrtSynchronizeStreamWithTimeout, error code is 507015: {launched.pop()}")

    fake_npu(monkeypatch, synchronize)
    backend = eager("npu")

    def bad(x: Any) -> Any:
        launched.append("bad")
        return x * 2

    good, faulty = backend.build(doubled(lambda x: x * 2)), backend.build(doubled(bad))
    with pytest.raises(RuntimeError, match="507015: bad") as caught:
        faulty.run()
    assert backend.is_sticky(caught.value)
    assert good.run()[0].tolist() == [2.0, 2.0]


def test_a_device_error_is_not_left_behind_an_error_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []

    def synchronize() -> None:
        if launched:
            raise RuntimeError(f"aicore exception in {launched.pop()}")

    fake_npu(monkeypatch, synchronize)

    def both(x: Any) -> Any:
        launched.append("kernel")
        raise ValueError("on the host")

    with pytest.raises(RuntimeError, match="aicore exception in kernel"):
        eager("npu").build(doubled(both)).run()
    with pytest.raises(ValueError, match="on the host"):

        def host_only(x: Any) -> Any:
            raise ValueError("on the host")

        eager("npu").build(doubled(host_only)).run()


@pytest.mark.parametrize(
    "words",
    [
        "The operator 'aten::erfinv' is not currently supported on the NPU backend and will fall back to run on the CPU.",
        "Aten Op fallback from XPU to CPU happens. This may have performance implications.",
    ],
)
def test_an_op_that_says_it_ran_on_the_cpu_is_a_fallback(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npu(monkeypatch)
    monkeypatch.setattr(TorchEager, "_describe_placement", lambda self, out, program: None)

    def call(x: Any) -> Any:
        warnings.warn(words, stacklevel=2)
        return x

    program = eager("npu").build(doubled(call))
    program.run()
    assert program.fallback == words
    silent = eager("npu").build(doubled(lambda x: warnings.warn("deprecated", stacklevel=2) or x))
    silent.run()
    assert silent.fallback is None


def test_what_a_case_held_is_freed_with_its_program() -> None:
    """Not when the garbage collector comes round: on a device it is memory that the next case lacks."""
    form = doubled(lambda x: x + x)
    program, held = eager("cpu").build(form), weakref.ref(form.arrays[0])
    assert program.run()[0].tolist() == [2.0, 2.0]
    gc.disable()
    try:
        program.release()
        del form
        assert held() is None
    finally:
        gc.enable()
    with pytest.raises(RuntimeError, match="over"):
        program.run()


def test_a_result_on_another_device_is_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npu(monkeypatch)
    program = eager("npu").build(doubled(lambda x: x))
    program.run()
    assert program.fallback == "the result lives on cpu, not on npu"


def test_xla_computes_when_it_is_told_to_and_counts_what_the_cpu_did(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("torch_xla", "torch_xla.debug", "torch_xla.debug.metrics"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["torch_xla"].__dict__["sync"] = lambda wait: calls.append(f"sync wait={wait}")
    sys.modules["torch_xla.debug.metrics"].__dict__.update(
        clear_counters=calls.clear, counter_names=lambda: ["CachedCompile", "aten::erfinv"]
    )
    program = Program(run=lambda: [])
    eager("xla").run_watched(lambda: [], program)
    assert calls == ["sync wait=True"]
    assert program.fallback == "aten::erfinv ran on the CPU"


def test_what_torch_says_without_a_kernel_of_attention_counts_where_one_was_asked_for() -> None:
    for text in (
        "Invalid backend",
        "No available kernel. Aborting execution.",
        "No viable backend for scaled_dot_product_attention was found.",
    ):
        assert eager("cuda", sdpa="flash").is_unsupported(RuntimeError(text))
        assert not eager("cuda").is_unsupported(RuntimeError(text))
    assert not eager("cuda", sdpa="flash").is_unsupported(RuntimeError("Invalid backend: 7"))


def test_what_python_raises_is_told_by_its_class_and_not_by_words() -> None:
    assert says_torch_unsupported("cuda", "NotImplementedError", "whatever")
    assert not says_torch_unsupported("cuda", "ValueError", "reduce is not implemented")
    assert says_torch_unsupported("cuda", "ValueError", "Multiplication of two Float8_e5m2 matrices is not supported")


@pytest.mark.parametrize(
    ("device", "text", "meant"),
    [
        ("cuda", "CUDA error: an illegal memory access was encountered", "sticky"),
        ("cuda", "CUDA out of memory. Tried to allocate 20 GiB", "out_of_memory"),
        ("cuda", "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'", "out_of_memory"),
        ("cuda", "CUDA driver error: out of memory", "out_of_memory"),
        ("cuda", "Triton Error [CUDA]: out of memory", "out_of_memory"),
        ("cuda", "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "out_of_memory"),
        ("cuda", "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasSgemm(...)`", ""),
        (
            "cuda",
            "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
            "out_of_memory",
        ),
        ("cuda", "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnSgetrf(...)`", "sticky"),
        ("cuda", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "out_of_memory"),
        ("cuda", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "sticky"),
        ("cuda", "cuFFT error: CUFFT_ALLOC_FAILED", "out_of_memory"),
        ("rocm", "HIP error: out of memory", "out_of_memory"),
        ("rocm", "CUDA error: HIPBLAS_STATUS_NOT_INITIALIZED when calling `hipblasCreate(handle)`", "out_of_memory"),
        ("cuda", "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(...)`", "unsupported"),
        ("cuda", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`", "sticky"),
        ("cuda", "CUDA error: no kernel image is available for execution on the device", "unsupported"),
        ("cuda", "CUDA error: invalid configuration argument", ""),
        ("cuda", "cuFFT error: CUFFT_NOT_SUPPORTED", "unsupported"),
        ("cuda", "CUDA error: device-side assert triggered", "sticky"),
        ("cuda", "self.size(0) needs to be greater than 16, but got 15", "unsupported"),
        (
            "cuda",
            "Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: (17x17).",
            "unsupported",
        ),
        (
            "cuda",
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9",
            "unsupported",
        ),
        ("cuda", "Multiplication of two Float8_e5m2 matrices is not supported", "unsupported"),
        ("cuda", "Expected size 3 but got size 4", ""),
        ("cuda", "HalfTensor is not supported", "unsupported"),
        ("cuda", "\"igamma_cuda\" not implemented for 'Half'", "unsupported"),
        ("cuda", "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA", "unsupported"),
        ("cuda", "Invalid backend", ""),  # nobody asked for one kernel of attention: then it is a defect
        ("cuda", "the value is not supported", ""),
        ("cpu", "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA", ""),
        ("rocm", "Float8_e4m3fn is only supported for gfx950", "unsupported"),
        ("rocm", "CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling `hipblasLtMatmul`", "unsupported"),
        ("rocm", "HIP error: unspecified launch failure", "sticky"),
        ("xpu", "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", "sticky"),
        ("xpu", "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "out_of_memory"),
        ("npu", "ACL stream synchronize failed, error code:507015", "sticky"),
        ("npu", "NPU out of memory. Tried to allocate 2.00 GiB", "out_of_memory"),
        ("npu", "EZ1001: Tensor self not implemented for DT_BFLOAT16, should be in dtype support list", "unsupported"),
        ("hpu", "synStatus=26 [Generic failure] Device acquire failed.", "sticky"),
        ("hpu", "Graph compile failed. synStatus=synStatus 26 [Generic failure].", ""),
        ("mps", "MPS backend out of memory (MPS allocated: 8 GB)", "out_of_memory"),
        (
            "mps",
            "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.",
            "unsupported",
        ),
        ("xla", "RESOURCE_EXHAUSTED: Attempting to allocate 20G", "out_of_memory"),
        ("neuron", "NRT_EXEC_UNIT_UNRECOVERABLE status_code=101", "sticky"),
        ("cuda", "expected scalar type Float but found Half", ""),
    ],
)
def test_what_the_errors_of_each_vendor_mean(device: str, text: str, meant: str) -> None:
    backend, error = eager(device), RuntimeError(text)
    said = {
        "sticky": backend.is_sticky(error),
        "out_of_memory": backend.is_out_of_memory(error),
        "unsupported": backend.is_unsupported(error),
    }
    assert [name for name, is_so in said.items() if is_so] == ([meant] if meant else [])


def test_an_error_of_the_accelerator_loses_the_device_only_if_it_no_longer_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class AcceleratorError(RuntimeError):
        """As torch calls every error of a device's runtime."""

    error, backend = AcceleratorError("CUDA error: invalid configuration argument"), eager("cuda")
    monkeypatch.setattr(TorchEager, "_try", lambda self: None)
    assert not backend.is_sticky(error)

    def fails(self: TorchEager) -> None:
        raise Unavailable("it computed 0")

    monkeypatch.setattr(TorchEager, "_try", fails)
    assert backend.is_sticky(error)


def test_sums_in_16_bits_are_an_option_that_the_row_says() -> None:
    assert eager("cuda").flags == "tf32=off reduced_precision_reduction=off"
    assert eager("rocm", reduced_precision_reduction=True).flags == "tf32=off reduced_precision_reduction=on"
    with pytest.raises(ValueError, match="unknown option 'reduced_precision_reduction'"):
        eager("npu", reduced_precision_reduction=True)


def test_a_call_without_a_tensor_makes_its_result_on_the_device() -> None:
    backend = TorchEager("torch-meta", "meta", {})
    for call, where in (
        (lambda: torch.arange(3), "meta"),
        (lambda: torch.arange(3, device=torch.device("cpu")), "cpu"),
    ):
        with backend.default_device((), {}):
            assert call().device.type == where


@pytest.mark.parametrize(("device", "takes"), [("cuda", "tf32"), ("npu", "hf32"), ("mps", "none")])
def test_an_unknown_option_is_refused(device: str, takes: str) -> None:
    with pytest.raises(ValueError, match=f"unknown option 'speed'; it takes {takes}"):
        eager(device, speed=1)


#: What a build of torch is called, and what its file of versions says → the device that it is for: a wheel's, one
#: compiled in place, a container's, PyPI's on Linux, and one for the CPU that somebody has called otherwise.
BUILDS = [
    ("2.13.0+cu130", "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None", "cuda"),
    ("2.9.0a0+git1a2b3c", "cuda = '12.8'\nhip = None\nxpu = None", "cuda"),
    ("2.10.0a0+b4e4ee81d3.nv25.9", 'cuda: Optional[str] = "13.0"', "cuda"),
    ("2.13.0", "cuda: Optional[str] = '13.0'", "cuda"),
    (
        "2.13.0+rocm7.2",
        "cuda: Optional[str] = None\nhip: Optional[str] = '7.2.26015'\nrocm: Optional[str] = '7.2.0'",
        "rocm",
    ),
    ("2.13.0+gitabc", "hip = '7.2'", "rocm"),
    ("2.13.0+xpu", "xpu: Optional[str] = '20250302'", "xpu"),
    ("2.13.0+cu_nothing", "cuda = None\nhip = None\nxpu = None", ""),
]


@pytest.mark.parametrize(("label", "says", "built_for"), BUILDS)
def test_an_environment_is_asked_for_where_the_torch_installed_here_is_not_built_for_the_device(
    label: str, says: str, built_for: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / f"torch-{label}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {label}\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '{label}'\ndebug = False\n{says}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {name for name in ("cuda", "rocm", "xpu") if not eager(name).packages}
    assert own == ({built_for} if built_for else set()) and not eager("cpu").packages


def test_inductor_says_which_devices_have_another_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchEager, "probe", lambda self: None)
    with pytest.raises(Unavailable, match="hpu_backend"):
        Inductor("inductor-hpu", "hpu", {}).probe()


def test_inductor_without_triton_says_which_torch_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchEager, "probe", lambda self: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"add .*whl/rocm7\.2 torch==2\.13\.0\+rocm7\.2 .*to its packages"):
        Inductor("inductor-rocm", "rocm", {}).probe()


def test_a_compiler_that_does_not_work_is_one_line_and_no_thousand_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Any, **how: Any) -> Any:
        def call(*args: Any) -> Any:
            raise RuntimeError("fatal error: Python.h: No such file or directory")

        return call

    made = Inductor("inductor-cuda", "cuda", {})
    made.target = "cpu"
    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(TorchEager, "probe", lambda self: None)
    with pytest.raises(Unavailable, match=r"smoke test failed \(1 \+ 1, compiled\): fatal error: Python.h"):
        made.probe()
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    made._try_compiled()


def test_what_inductor_does_once_is_done_before_the_first_case(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda function, **how: compiled.append(function) or function)
    Inductor("inductor-cpu", "cpu", {}).probe()
    assert len(compiled) == 1


def test_the_version_of_what_computes_is_in_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91000)
    assert torch_switches.list_torch_gpu_libraries() == ", CUDA 13.0, cuDNN 91000"


def test_a_row_says_which_driver_and_which_gpu_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = eager("cuda")
    for name in ("_accelerator", "_try"):
        monkeypatch.setattr(backend, name, lambda: "NVIDIA H200")
    monkeypatch.setattr(torch_switches, "set_precision_switches", lambda *how: None)
    monkeypatch.setattr("tasks.backends.torch.find_driver_version", lambda label: {"nvidia": "580.95"}[label])
    monkeypatch.setattr(torch_switches, "name_torch_architecture", lambda: "sm_90")
    monkeypatch.setattr(torch_switches, "list_torch_gpu_libraries", lambda: ", CUDA 13.0, cuDNN 91000")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr("tasks.backends.torch.flushing.DTYPES", ())
    monkeypatch.setattr("tasks.devices.nvidia.metadata.version", lambda name: "13.1.0")
    monkeypatch.setattr(
        "tasks.devices.nvidia.list_system_cuda_libraries", tuple
    )  # a test before this one loads a library
    monkeypatch.setattr("tasks.devices.cuda_driver.load_cuda_driver", lambda: None)
    monkeypatch.setattr("tasks.devices.cuda_driver.describe_gpu", lambda library, at: ("NVIDIA H200", "sm_90"))
    monkeypatch.setattr("tasks.devices.cuda_driver.describe_gpu_identity", lambda library, at: ["uuid=GPU-1", "ecc=on"])
    monkeypatch.setattr("tasks.devices.cuda_driver.measure_gpu_memory", lambda library, at: 141 << 30)
    before = torch.is_warn_always_enabled()
    info = backend.start()
    torch.set_warn_always(before)
    assert (info.driver_version, info.device, info.memory) == ("580.95", "NVIDIA H200, sm_90", 141 << 30)
    assert info.runtime_version == f"torch {torch.__version__}, CUDA 13.0, cuDNN 91000, cuBLAS 13.1.0"
    assert backend.identity == ("uuid=GPU-1", "ecc=on")
    assert info.accumulators == ("hopper-float8",)  # of the GPU, whatever runtime computes on it


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        (
            {"uuid": "66613739-3331-3639-6465-303862636632"},
            ["uuid=GPU-fa793169de08bcf2"],
        ),  # HIP's: the letters themselves
        ({"uuid": "8680bd0b-2f00-0000-4d00-000000000000"}, ["uuid=8680bd0b-2f00-0000-4d00-000000000000"]),
        ({}, []),
    ],
)
def test_a_row_says_which_of_the_cards_it_is_of(
    properties: dict[str, str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: types.SimpleNamespace(**properties))
    assert torch_switches.describe_torch_device_identity("xpu") == words


def test_the_version_of_a_plug_in_is_that_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Habana's is a module of a namespace, which has none; Huawei's says less of itself than its package."""
    monkeypatch.setitem(sys.modules, "habana_frameworks", types.ModuleType("habana_frameworks"))
    monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace(__version__="2.13.0"))
    assert [torch_switches.read_torch_plugin_version(eager(x).known) for x in ("hpu", "npu", "cpu")] == [
        ", habana_torch_plugin",
        ", torch_npu 2.13.0",
        "",
    ]
    versions = {"habana_torch_plugin": "1.23.0.695", "torch_npu": "2.13.0.post1"}
    monkeypatch.setattr("tasks.backends.torch.metadata.version", versions.__getitem__)
    assert [torch_switches.read_torch_plugin_version(eager(x).known) for x in ("hpu", "npu")] == [
        ", habana_torch_plugin 1.23.0.695",
        ", torch_npu 2.13.0.post1",
    ]


def test_a_row_says_that_triton_interpreted_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    for value, said in (("1", True), ("0", False)):
        monkeypatch.setenv("TRITON_INTERPRET", value)
        assert ("triton=interpreted" in eager("cpu").flags) is said


def test_what_torch_wants_on_the_cpu_stays_there() -> None:
    arrays = [np.zeros(4, np.float32), np.array([1, 2])]
    args, kwargs = encode_argument_tree((TensorSpec(0), TensorSpec(1))), encode_argument_tree({})
    made = {
        op: TorchEager("torch-meta", "meta", {}).arguments(
            Form("torch", op, "float32", arrays, args=args, kwargs=kwargs)
        )[0]
        for op in ("torch:tensor_split", "torch:gather")
    }
    where = {op: [x.device.type for x in given] for op, given in made.items()}
    assert where == {"torch:tensor_split": ["meta", "cpu"], "torch:gather": ["meta", "meta"]}


#: Ops that are told where to make their result as a string.
TOLD = (
    "arange linspace logspace to empty_like zeros_like ones_like randn randint full_like new_zeros new_ones zeros full "
    "new_empty empty_strided eye empty_permuted scalar_tensor new_full normal signal.windows.kaiser"
).split()


def test_every_sample_of_an_op_that_is_told_its_device_runs_on_that_of_the_backend() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    backend = TorchEager("torch-meta", "meta", {})
    asked = 0
    for op in op_db:
        if op.name not in TOLD:
            continue
        for sample in list(op.sample_inputs("cpu", torch.float32))[:6]:
            args, kwargs, arrays = torch_tree.encode_torch_args((sample.input, *sample.args), sample.kwargs)
            form = Form("torch", f"torch:{op.name}", "float32", arrays, call=op.op, args=args, kwargs=kwargs)
            args, kwargs = backend.arguments(form)
            out = list(torch_tree.list_output_tensors(op.op(*args, **kwargs)))
            assert {x.device.type for x in out} == {"meta"}, (op.name, sample)
            asked += "cpu" in str(form.args) + str(form.kwargs)
    assert asked > 80


@pytest.mark.parametrize(
    ("module", "device", "hip"),
    [
        ("cuda", "cuda", None),
        ("cuda", "rocm", "7.2"),
        ("xpu", "xpu", None),
        ("mps", "mps", None),
        ("npu", "npu", None),
        ("hpu", "hpu", None),
    ],
)
def test_the_device_of_a_process_is_what_torch_has_there(
    module: str, device: str, hip: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    assert torch_devices.name_torch_device_here() == "cpu"
    there = types.SimpleNamespace(is_available=lambda: True)
    monkeypatch.setattr(torch, module, there, raising=False)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert torch_devices.name_torch_device_here() == device


@pytest.mark.parametrize(("said", "device"), [("TPU", "xla"), ("NEURON", "neuron"), ("CPU", "cpu")])
def test_the_device_of_a_process_is_that_of_its_pjrt(said: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = types.SimpleNamespace(device_type=lambda: said)
    monkeypatch.setitem(sys.modules, "torch_xla.runtime", runtime)  # type: ignore[arg-type]
    assert torch_devices.name_torch_device_here() == device


def test_a_device_of_another_plugin_is_the_accelerator_that_torch_names(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("maia"))
    assert torch_devices.name_torch_device_here() == "maia"


def test_what_nobody_counts_is_no_count_of_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert (
        torch_devices.count_torch_allocations("cuda") is None
        and torch_devices.count_torch_allocations("nowhere") is None
    )
    for name in ("allocation.all.allocated", "NumAllocs"):
        monkeypatch.setattr(torch.xpu, "memory_stats", lambda name=name: {name: 3})
        assert torch_devices.count_torch_allocations("xpu") == 3
