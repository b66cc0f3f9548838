"""NVIDIA's GPUs."""

from __future__ import annotations

import contextlib
import re
from importlib import metadata
from pathlib import Path

from tasks.devices import cuda_driver
from tasks.devices.base import Device, DeviceDescription, DeviceDriver, TorchDevice, VendorCommand
from tasks.devices.sanitizer import READS_OUTSIDE, WRITES_OUTSIDE, Sanitizer
from tasks.packages import TORCH_CATALOG, pin_torch_build

#: As an administrator sets it, `nvidia-smi -c EXCLUSIVE_PROCESS`.
_EXCLUSIVE = VendorCommand(("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader"), r"^Exclusive_Process")
#: A card of `nvidia-smi -L`; in place of one that is cut into MIG slices, each slice.
_CARDS = (
    r"^(?:(?P<card>GPU \d+:)|[ \t]+(?P<part>MIG))[ \t]+(?P<model>\S.*?)(?:[ \t]+Device[ \t]+\d+:)?"
    r"[ \t]+\(UUID: (?P<id>[^)]*)\)[ \t]*$(?(card)(?!\n[ \t]+MIG))"
)
#: What libraries of CUDA and torch say of a case for which they have no kernel on this device.
_NO_KERNEL = (
    r"not supported on CUDA$|(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_(?:NOT_SUPPORTED|ARCH_MISMATCH)|CUFFT_(?:NOT_SUPPORTED|NOT_IMPLEMENTED|INVALID_TYPE)"
    r"|cuFFT only supports|no kernel image is available|invalid device function|[Uu]nable to find (?:an engine|a valid cuDNN)"
)
#: What torch's float8 and int8 products say of a GPU, a type or sizes that they are not for
#: (ATen/native/cuda/Blas.cpp).
NO_SMALL_PRODUCT = (
    r"_scaled_mm is only supported|is only supported (?:for|on) (?:gfx|ROCm|CUDA|SM)|Multiplication of two Float8_\w+ matrices is not supported"
    r"|(?:needs?|[Ee]xpected?) .{0,60}(?:greater than|multiple of|divisible by) \d+"
)
#: What is said without memory beside torch's own allocator: by the driver, and by libraries, which cannot make their
#: handles then.
_NO_MEMORY = (
    r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_\w+_ALLOCATION_FAILED"
    r"|CUBLAS_STATUS_NOT_INITIALIZED,? when calling `?cublas(?:Lt)?Create|CUSOLVER_STATUS_\w+,? when calling `?cusolverDnCreate"
)


#: Libraries that compute for runtimes on a GPU, and the packages that bring each.
_LIBRARIES = {"cuDNN": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"), "cuBLAS": ("nvidia-cublas", "nvidia-cublas-cu12")}
#: Libraries that LD_LIBRARY_PATH may put in place of an environment's: the loader looks there before a wheel's own
#: RUNPATH.
_REPLACEABLE = re.compile(r"lib(?:cudnn|cublas|cublasLt|cudart|nvrtc|nvinfer)\.so[.\d]*")
#: Adders that keep less than float32 (`tasks.matrix_units.accumulators`), by architecture. Blackwell's matrix units keep 25
#: bits of float8's products.
_ACCUMULATORS = {"sm_90": ("hopper-float8",), "sm_89": ("ada-float8",)}


def list_installed_cuda_libraries() -> dict[str, str]:
    """Versions of the libraries that this environment's packages bring ("cuDNN": "9.20.0.48")."""
    found: dict[str, str] = {}
    for name, packages in _LIBRARIES.items():
        for package in packages:
            with contextlib.suppress(metadata.PackageNotFoundError):
                found.setdefault(name, metadata.version(package))
    return found


def list_system_cuda_libraries(maps: Path = Path("/proc/self/maps")) -> tuple[str, ...]:
    """Libraries that this process has loaded and no package brought, by folder ("libcublas.so.13 and libcudnn.so.9 of
    /usr/local/cuda/lib64"); none on systems that do not list them."""
    found: dict[str, set[str]] = {}
    with contextlib.suppress(OSError):
        for line in maps.read_text(errors="replace").splitlines():
            path = Path(line.partition("/")[1] + line.partition("/")[2])
            if _REPLACEABLE.fullmatch(path.name) and not {"site-packages", "dist-packages"} & set(path.parts):
                found.setdefault(str(path.parent), set()).add(path.name)
    return tuple(f"{' and '.join(sorted(names))} of {folder}" for folder, names in sorted(found.items()))


def list_nvidia_accumulators(architecture: str) -> tuple[str, ...]:
    """Names of the adders of a GPU ("sm_90") that keep less than float32."""
    return _ACCUMULATORS.get(architecture, ())


def find_nvidia_architecture() -> str:
    """Of the first GPU that this process sees, as LLVM and ptxas call it: "sm_90"; "" where no driver says."""
    with contextlib.suppress(OSError, cuda_driver.CudaError):
        return cuda_driver.describe_gpu(cuda_driver.load_cuda_driver())[1]
    return ""


def describe_nvidia_gpu(ordinal: int) -> DeviceDescription | None:
    """What the driver says of a GPU that this process sees; None without a driver that answers."""
    with contextlib.suppress(OSError, AttributeError, cuda_driver.CudaError):
        library = cuda_driver.load_cuda_driver()
        name, code = cuda_driver.describe_gpu(library, ordinal)
        return DeviceDescription(
            name,
            code,
            GPU.driver_version(),
            cuda_driver.measure_gpu_memory(library, ordinal),
            identity=tuple(cuda_driver.describe_gpu_identity(library, ordinal)),
            libraries=list_installed_cuda_libraries(),
            loaded=list_system_cuda_libraries(),
            accumulators=list_nvidia_accumulators(code),
        )
    return None


#: https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer: the words of its errors, and its options.
_SANITIZER = Sanitizer(
    "compute-sanitizer",
    "it comes with the CUDA toolkit (package cuda-sanitizer); put it on the PATH",
    tools={
        "memcheck": ("--report-api-errors", "no", "--padding", "64"),
        "racecheck": ("--racecheck-report", "analysis"),
        "initcheck": (),
    },
    options=("--tool", "{tool}", "--target-processes", "all", "--log-file", "{log}"),
    errors=(
        (r"Invalid __\w+__ \w+ of size .*(?:\n.*){1,3}is misaligned", "misaligned"),
        (r"Invalid __\w+__ (?:write|atomic) of size .*", WRITES_OUTSIDE),
        (r"Invalid __\w+__ read of size .*", READS_OUTSIDE),
        (r"Uninitialized __\w+__ memory \w+ of size .*", "uninitialised"),
        (r"(?i:error): (?:Race reported|Potential \w+ hazard) .*", "race"),
    ),
    line=r"={9} ?",
    whole=r"(?:ERROR|RACECHECK) SUMMARY:",
    folders=("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/bin"),
    # Its allocator hands out parts of large pieces of memory: beside one part lies another.
    variables={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
)

GPU = Device(
    "nvidia",
    "NVIDIA",
    "GPU",
    ("CUDA_VISIBLE_DEVICES",),
    ("/dev/nvidia[0-9]*", "/dev/nvhost-gpu"),
    (("10de", "03"),),
    (("/proc/driver/nvidia/gpus/*/information", r"^Model:\s*(?P<model>.+)$"),),
    (VendorCommand(("nvidia-smi", "-L"), _CARDS),),
    config="configs/cuda.yaml",
    before="a driver for CUDA 13 (580 or newer) and a GPU that it supports (Turing or newer), else "
    "[another torch](environments.md); in a container, NVIDIA's container toolkit",
    container="--gpus all",
    numbered=True,
    exclusive=_EXCLUSIVE,
    shares="nvidia-smi -c DEFAULT",
    hidden="",
    driver=DeviceDriver("/proc/driver/nvidia/version", r"Kernel Module.*?\s(\d+\.[\d.]+)"),
    architecture=find_nvidia_architecture,
    describe=describe_nvidia_gpu,
    sanitizer=_SANITIZER,
    condition=VendorCommand(
        ("nvidia-smi", "--query-gpu=temperature.gpu,clocks.sm", "--format=csv,noheader,nounits", "-i"),
        r"^(?P<celsius>\d+), (?P<mhz>\d+)$",
    ),
    torch={
        "cuda": TorchDevice(
            option="tf32",
            coarse="tfloat32",
            packages=(*pin_torch_build("cu130"), *TORCH_CATALOG),
            unsupported=f"{_NO_KERNEL}|{NO_SMALL_PRODUCT}",
            sticky=cuda_driver.STICKY.pattern
            + r"|(?:CUBLAS|CUDNN|CUSOLVER)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)",
            out_of_memory=f"{cuda_driver.OUT_OF_MEMORY.pattern}|{_NO_MEMORY}",
        )
    },
)
DEVICES = (GPU,)
