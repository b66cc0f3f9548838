"""The columns of the lake: name, type, unit and meaning of each."""

from __future__ import annotations

import pyarrow as pa

_S, _F, _I = pa.string(), pa.float64(), pa.int32()


def _field(name: str, kind: pa.DataType, text: str, unit: str = "") -> pa.Field:
    return pa.field(name, kind, metadata={"description": text, "unit": unit})


#: One row per outcome. Strings that repeat are plain strings (parquet dictionary-encodes them by itself).
SCHEMA = pa.schema(
    [
        _field("run_id", _S, "the launch this row belongs to"),
        _field("case_id", _S, "check/op[.variant]/dtype[/distribution]/sample[@seed]; stable across runs"),
        _field("attempts", _I, "how often the case was started in this run"),
        _field("check", _S, "what was checked: forward, …"),
        _field("catalog", _S, "torch, onnx, critical, …"),
        _field("op", _S, "the op with its catalog's prefix"),
        _field("variant", _S, "the op's variant, empty when it has none"),
        _field("dtype", _S, "dtype under test"),
        _field("op_class", _S, "how the op is judged: exact, elementary, contraction, …"),
        _field(
            "distribution", _S, "where the values come from: own (the op's list), regular, boundary, adversarial, nan"
        ),
        _field("sample", _I, "index in the op's list of samples; -1: the group could not be prepared"),
        _field("seed", pa.int64(), "seed of the samples"),
        _field("digest", _S, "SHA-256 of the inputs' bytes, first 16 hex digits"),
        _field("shapes", _S, "shapes of the input tensors"),
        _field("backend", _S, "runtime-device[@version]"),
        _field("vendor", _S, "who ships the runtime"),
        _field("device", _S, "the device as the runtime names it"),
        _field(
            "device_ids", _S, "numbers of the devices that Ray gave the case, of those of its node; empty for the CPU"
        ),
        _field("node", _S, "host that ran the case, or the name its Ray node was given"),
        _field("status", _S, "one of the closed set of statuses"),
        _field(
            "kind",
            _S,
            "for wrong: numbers, nonfinite, shape, dtype, structure, mutation, nondeterministic, …; for invalid: oracle; for crash: the signal",
        ),
        _field("stage", _S, "where it failed: sample, reference, export, build, run, judge"),
        _field("error_type", _S, "class of the error"),
        _field("error", _S, "text of the error, with the end of stderr for a dead process"),
        _field("max_diff", _F, "largest |actual − reference|", "as the output"),
        _field("max_rel", _F, "largest |actual − reference| / |reference|", "1"),
        _field(
            "max_ulp",
            _F,
            "largest |actual − reference| in units in the last place of the output dtype, or of compute_precision if coarser",
            "ulp",
        ),
        _field("rmse", _F, "root of the mean squared error", "as the output"),
        _field("error_units", _F, "largest |actual − reference| / (ε·|reference| + δ + tiny)", "1"),
        _field("noise_floor", _F, "largest noise floor δ of the case", "as the output"),
        _field("limit", _F, "threshold that held for error_units or, for exact and elementary ops, max_ulp", "1"),
        _field("nonfinite", pa.int64(), "elements with a misplaced NaN or Inf"),
        _field("second_oracle", _S, "a further oracle that computed the expected output"),
        _field("second_units", _F, "the result against that oracle, as error_units or max_ulp", "1"),
        _field("oracles_units", _F, "that oracle against the first", "1"),
        _field(
            "output_digest",
            _S,
            "SHA-256 of the outputs' dtypes, shapes and bytes, first 16 hex digits: equal for the very same result",
        ),
        _field(
            "signature",
            pa.list_(pa.float32()),
            "of a result outside the limit, at most 16 signed errors: of each element, or the smallest and largest of runs of elements",
            "1",
        ),
        _field("mismatched", pa.int64(), "elements outside the classic tolerance, misplaced NaN and Inf included"),
        _field("numel", pa.int64(), "elements compared"),
        _field("classic", pa.bool_(), "verdict of the classic tolerance (torch.testing's atol/rtol by dtype)"),
        _field("weak", pa.bool_(), "a constant output would have passed this sample"),
        _field("policy", _S, "name-version of the policy that judged"),
        _field("oracle", _S, "who computed the expected output: float64, numpy-float64, stored, metadata, …"),
        _field("compute_precision", _S, "precision the backend was asked to compute in"),
        _field(
            "placement", _S, 'where the case ran, in the runtime\'s words; after "emulated" where no device was used'
        ),
        _field("prepare_ms", _F, "time to make inputs, reference and noise floor (once for all backends)", "ms"),
        _field("build_ms", _F, "time to build or compile", "ms"),
        _field("run_ms", _F, "time of the measured call", "ms"),
        _field("started_at", pa.timestamp("us", tz="UTC"), "when the case was started on the backend"),
        _field("runtime_version", _S, "version of the runtime"),
        _field("driver_version", _S, "version of the device's driver"),
        _field("flags", _S, "modes in force, e.g. tf32=off, kernels=3"),
    ],
    metadata={"schema_version": "3"},
)

#: A row is one outcome: readers keep the last row of each key.
KEY = ["run_id", "case_id", "backend"]
