"""python -m tests.bench [weak|overhead|torch|onnx|quick|full|vendors|million …]: every figure is a ratio or a rate of one run."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.catalogs.models.architectures import ARCHITECTURES
from tasks.training import networks, spreading
from tests.bench import (
    auditing,
    cell_way,
    device,
    devices,
    engine,
    engine_faults,
    evidence,
    faults,
    fingerprinting,
    fuzzing,
    inputs,
    interpreted,
    isolation,
    kernels,
    kills,
    lakes,
    large_training,
    localise,
    minimise,
    models,
    month,
    outputs,
    preparing,
    scale,
    screening,
    starts,
    submitting,
    time_left,
    training,
    training_faults,
    training_ranks,
    vendors,
    waiting,
)
from tests.bench.record import MEASURED, Result, machine, write
from tests.bench.running import Size

#: Stands for a config whose run takes half an hour, on a cluster that takes seconds to start.
TINY: dict[str, Any] = {
    "config": {
        "catalogs": [{"name": "load", "dtypes": ["float32"], "samples": 1}],
        "backends": ["null-cpu", "null-npu"],
    },
    "flags": ["--on=processes"],
}

#: Models of the catalog of every kind, trained ones first; architectures in the size that a search on two cores bears.
MODELS = [
    *(f"models:{x}" for x in ("ppocr_cls", "silero_vad", "magika", "basic_pitch")),
    *(
        f"models:{x}.small"
        for x in ("resnet50", "efficientnet_b0", "vit_b16", "bert_base", "gpt2", "llama_gqa", "whisper_encoder", "unet")
    ),
]

#: The others, but for architectures in their full size.
MORE = [
    *(f"models:{x}" for x in ("ppocr_det", "ppocr_rec", "minilm", "mtcnn_pnet", "mtcnn_rnet", "mtcnn_onet")),
    *(f"models:{x}.small" for x in ("mixtral_moe", "mamba2")),
]

#: Ops of ONNX's node suite whose outcome differs between releases of runtimes, and some that are sound in all of them.
NODES = [
    *(
        "Attention.attention_4d_*softcap*",
        "Attention.attention_4d_with_past_and_present_qk*",
        "Cast.cast_FLOAT_to_FLOAT16",
    ),
    *(
        "CastLike.*FLOAT16_to_FLOAT*",
        "GroupNormalization*",
        "LayerNormalization.*_[23]d_*axis*1*",
        "IsInf*",
        "Softmax.*",
    ),
    *("Relu*", "MatMul.*", "Conv.*", "Gemm*", "ReduceMean.*", "Gelu*", "Tanh*", "LSTM*", "Resize.*linear*", "TopK*"),
]

#: Some seconds of work of one backend, in cases of 5 ms.
LOAD: dict[str, Any] = {"catalogs": [{"name": "load", "dtypes": ["float32"], "samples": 60}], "backends": ["busy-cpu"]}


@dataclass(frozen=True)
class Bench:
    """full: the size whose figures count; small: one of seconds, in which the tests run it; long: not run by
    default."""

    run: Callable[[Path, Size], Result]
    full: Mapping[str, Any]
    small: Mapping[str, Any]
    long: bool = False


SMALL_GPT = {"wide": 16, "heads": 2, "deep": 1, "words": 50, "tokens": 8, "memory_gib": 8, "one": True}
BENCHES = {
    "zoo": Bench(evidence.zoo, {"ops": []}, {"ops": ["*relu*"]}),
    "verdicts": Bench(evidence.verdicts, {"samples": 8, "ops": ["*"]}, {"samples": 2, "ops": ["abs", "softmax"]}),
    "weak": Bench(evidence.weak, {"every": 1}, {"every": 400}),
    "overhead": Bench(
        engine.overhead,
        {"ops": 200, "samples": 20, "times": 3},
        {"ops": 5, "samples": 4, "times": 1, "how": "--on=processes"},
    ),
    "cards": Bench(
        devices.cards,
        {"cards": 8, "ops": 1600, "samples": 20, "case_ms": 5},
        {"cards": 2, "ops": 8, "samples": 4, "case_ms": 5},
    ),
    "compilers": Bench(
        devices.compilers,
        {"backends": 12, "ops": 20, "samples": 2, "case_ms": 5, "compile_ms": 2000, "cpus": 16},
        {"backends": 2, "ops": 2, "samples": 2, "case_ms": 5, "compile_ms": 50, "cpus": 2},
    ),
    "torch": Bench(preparing.torch_matrix, {"times": 3, "every": 1}, {"times": 1, "every": 200}),
    "noise": Bench(preparing.noise, {"draws": (1, 2, 4, 8, 16), "every": 1}, {"draws": (1, 2), "every": 200}),
    "onnx": Bench(preparing.onnx, {"ops": ["*"], "tests": "cpu"}, {"ops": ["Abs"], "tests": "test_abs_cpu"}),
    "localise": Bench(
        localise.localise,
        {
            "models": MODELS,
            "faults": 60,
            "fused": 24,
            "backends": ["torch-cpu", "ort-cpu", "ort-cpu@disable", "openvino-cpu"],
        },
        {"models": ["tiny:convolutional", "tiny:transformer"], "faults": 6, "fused": 4, "backends": ["ort-cpu"]},
        long=True,
    ),
    "minimise": Bench(minimise.minimise, {"graphs": 200}, {"graphs": 6}, long=True),
    "models": Bench(
        outputs.models,
        {"models": [*MODELS, *MORE], "backends": ["ort-cpu", "openvino-cpu"]},
        {"models": ["residual:sound"], "backends": ["ort-cpu"]},
        long=True,
    ),
    "fuzz": Bench(
        fuzzing.fuzz,
        {"seeds": [0, 1, 2], "cases": 150_000, "seconds": 1200, "each": 8, "ort": 6000},
        {"seeds": [0], "cases": 200, "seconds": 30, "each": 1, "ort": 40},
        long=True,
    ),
    "kernels": Bench(
        kernels.kernels,
        {"faults": [], "seeds": [0, 1, 2], "cases": 100, "twins": 330},
        {"faults": ["axpy--no_scale", "cube_gradient--detached"], "seeds": [0], "cases": 8, "twins": 9},
        long=True,
    ),
    "interpreted": Bench(interpreted.interpreted, {"times": 5}, {"times": 1}),
    "submissions": Bench(
        submitting.submissions, {"files": "*.py", "samples": 8}, {"files": "honest_e*.py", "samples": 2}
    ),
    "auditing": Bench(
        auditing.auditing, {"rounds": 5, "kernels": list(auditing.GIVEN)}, {"rounds": 1, "kernels": ["softmax"]}
    ),
    "engines": Bench(
        engine_faults.engine_faults,
        {"relations": "right"},
        {"relations": "right", "faults": ["padding_attended", "queries_out_of_order"]},
    ),
    "right_engines": Bench(
        engine_faults.right_engines,
        {
            "backends": {
                "engine-cpu": {},
                "transformers-cpu": {},
                "transformers-eager": {"like": "transformers-cpu", "options": {"attention": "eager"}},
                "genai-cpu": {},
                "llamacpp-cpu": {},
            },
            "samples": 5,
            "steps": 64,
        },
        {"backends": {"engine-cpu": {}}, "samples": 1, "steps": 4, "relations": ["float64", "padded_left", "greedy"]},
    ),
    "isolation": Bench(isolation.isolation, {"rounds": 15}, {"rounds": 2}),
    "screen": Bench(
        screening.screening,
        {"faults": 3000, "hot": 600, "tries": 400, "sound": 10_000},
        {"faults": 40, "hot": 12, "tries": 8, "sound": 100},
    ),
    "fingerprint": Bench(
        fingerprinting.fingerprint,
        {"config": "vendors", "flags": []},
        {
            "config": {"catalogs": [{"name": "critical"}], "backends": ["torch-cpu"]},
            "flags": ["--ops", "sum", "--dtypes", "float32"],
        },
        long=True,
    ),
    "training_faults": Bench(
        training_faults.training_faults,
        {"networks": list(networks.BUILT_IN), "dtypes": ["float32", "bfloat16", "float8_e4m3fn"], "seeds": [0]},
        {"networks": ["llama"], "dtypes": ["float32"], "seeds": [0]},
        long=True,
    ),
    "training_ranks": Bench(
        training_ranks.training_ranks, {"ways": list(spreading.WAYS)}, {"ways": ["tensor"]}, long=True
    ),
    "waiting": Bench(waiting.waiting, {"config": "quick", "times": 3}, {**TINY, "times": 1}),
    "time_left": Bench(time_left.time_left, {"config": "quick"}, TINY, long=True),
    "answers": Bench(waiting.answers, {"config": "quick"}, TINY),
    "way": Bench(cell_way.cell_way, {"op": "softmax", "rooms": 12}, {"op": "abs", "rooms": 3}),
    "starts": Bench(
        starts.starts,
        {"times": 7, "ops": ["fuzz:Abs", "critical:softmax", "torch:abs"]},
        {"times": 1, "ops": ["critical:softmax"]},
    ),
    "inputs": Bench(inputs.inputs, {"every": 1}, {"every": 59}, long=True),
    "million": Bench(engine.million, {"ops": 25_000, "backends": 20}, {"ops": 20, "backends": 2}),
    "quick": Bench(
        engine.whole, {"config": "quick", "bounds": {"cold": 90, "warm": 90}}, {**TINY, "bounds": {"cold": 90}}
    ),
    "full": Bench(
        engine.whole,
        {"config": "full", "bounds": {"cold": 1200, "warm": 300}},
        {**TINY, "bounds": {"cold": 90}},
        long=True,
    ),
    "device": Bench(
        device.on_memory,
        {"samples": 2000, "ops": ["*"]},
        {
            "samples": 2,
            "ops": ["abs", "arange", "nn.functional.conv2d", "tensor_split", "softmax"],
            "flags": ["--cpus", "1"],
        },
        long=True,
    ),
    "kills": Bench(
        kills.kills,
        {"config": "quick", "kills": {"--on=ray": 100, "--on=processes": 100}, "drivers": 3, "every_s": 0.7, "seed": 1},
        {"config": LOAD, "kills": {"--on=processes": 3}, "drivers": 1, "every_s": 0.3, "seed": 1},
        long=True,
    ),
    "faults": Bench(
        faults.faults,
        {
            "kinds": {
                "killed": 280,
                "full disks": 100,
                "parts cut off": 200,
                "two drivers": 60,
                "nodes killed": 40,
                "partitions": 260,
                "drains": 40,
                "heads restarted": 20,
            },
            "seed": 1,
        },
        {"kinds": {"parts cut off": 1}, "seed": 1},
        long=True,
    ),
    "lake": Bench(
        lakes.lakes,
        {"runs": 1000, "rows": 10_000, "merged": 500_000},
        {"runs": 3, "rows": 100, "merged": 1_000, "config": TINY["config"]},
        long=True,
    ),
    "month": Bench(
        month.month,
        {
            "nights": 30,
            "broken": 17,
            "mended": 24,
            "fails": 0.03,
            "bisect": True,
            "ops": NODES,
            "runtime": ["onnxruntime==1.31.1"],
            "releases": {
                "ort-cpu": [
                    "onnxruntime",
                    *"1.19.2 1.20.1 1.21.1 1.22.1 1.23.2 1.24.4 1.26.0 1.28.0 1.30.0 1.31.1".split(),
                ],
                "openvino-cpu": [
                    "openvino",
                    *"2024.2.0 2024.6.0 2025.0.0 2025.2.0 2025.4.1 2026.0.0 2026.2.1 2026.4.1".split(),
                ],
            },
        },
        {
            "nights": 2,
            "broken": 2,
            "mended": 3,
            "fails": 0.0,
            "bisect": False,
            "ops": ["Softmax.softmax_example"],
            "runtime": ["onnxruntime"],
            "releases": {},
        },
        long=True,
    ),
    "top50": Bench(
        models.top50,
        {"flags": []},
        {"flags": ["--ops", "softmax,matmul", "--backends", "torch-cpu", "--cpus", "1"]},
        long=True,
    ),
    "roundtrip": Bench(
        models.roundtrip,
        {"of": "ResNet-50", "flags": [], "tiny": False},
        {"of": "one layer", "flags": [], "tiny": True},
        long=True,
    ),
    "alike": Bench(
        models.alike,
        {"ops": ["bert_encoder"], "tries": 20, "load": 10},
        {"ops": ["softmax"], "tries": 1, "load": 1},
        long=True,
    ),
    "baseline": Bench(models.baseline, {"tries": 20, "load": 2}, {"tries": 1, "load": 1}, long=True),
    "faster": Bench(
        models.faster, {"flags": []}, {"flags": ["--ops", "softmax", "--backends", "torch-cpu"]}, long=True
    ),
    "parity": Bench(
        models.parity, {"flags": []}, {"flags": ["--backends", "torch-cpu,ort-cpu", "--cpus", "1"]}, long=True
    ),
    "harvest": Bench(
        models.harvest,
        {
            "of": "five trained networks",
            "models": ["ppocr_*", "magika", "basic_pitch"],
            "backends": ["ort-cpu", "openvino-cpu"],
        },
        {"of": "one model", "models": [], "backends": ["ort-cpu"]},
        long=True,
    ),
    "training": Bench(
        training.training,
        {"models": list(ARCHITECTURES), "samples": 3},
        {"models": ["unet"], "samples": 1, "flags": ["--cpus", "1"]},
        long=True,
    ),
    "large_training": Bench(
        large_training.large_training,
        {"wide": 384, "heads": 6, "deep": 6, "words": 8000, "tokens": 256, "memory_gib": 16, "one": True},
        SMALL_GPT,
        long=True,
    ),
    "gpt": Bench(
        large_training.large_training,
        {"wide": 768, "heads": 12, "deep": 12, "words": 20000, "tokens": 256, "memory_gib": 20, "one": False},
        SMALL_GPT,
        long=True,
    ),
    "scale": Bench(
        scale.scale,
        {"slots": {64: 50_000, 1000: 50_000}, "backends": 20, "samples": 10, "case_ms": 5, "measured": True},
        {"slots": {4: 20}, "backends": 2, "samples": 5, "case_ms": 5, "measured": False},
        long=True,
    ),
    "vendors": Bench(vendors.vendors, {"config": "vendors"}, TINY, long=True),
}


def main(argv: list[str] | None = None) -> None:
    """Run benches one after another and print what each of them found."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "which", nargs="*", choices=[*BENCHES, []], help="default: all but the long ones, which take many minutes each"
    )
    parser.add_argument("--small", action="store_true", help="in seconds: shows that it runs, its figures mean nothing")
    parser.add_argument(
        "--write", action="store_true", help=f"keep the figures in {MEASURED.name}, which the docs show"
    )
    words = "of waiting: a lake that has a run of its config, made with $FARM_CACHE; without it that run, of minutes, comes first"
    parser.add_argument("--lake", type=Path, metavar="PATH", help=words)
    args = parser.parse_args(argv)
    if args.small and args.write:
        parser.error("--write: the figures of --small mean nothing")
    for name in args.which or [name for name, bench in BENCHES.items() if not bench.long]:
        bench, where = BENCHES[name], machine()
        print(where, flush=True)
        with tempfile.TemporaryDirectory(prefix="farm-bench-") as folder:
            size = {**(bench.small if args.small else bench.full), **({"lake": args.lake} if args.lake else {})}
            result = bench.run(Path(folder), size)
        print(f"{name}: {result.text}", flush=True)
        if args.write:
            write(name, result, where)


if __name__ == "__main__":
    main()
