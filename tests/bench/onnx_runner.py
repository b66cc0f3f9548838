"""onnx's own pytest runner of its node suite on ONNX Runtime's CPU provider (run with pytest)."""

from __future__ import annotations

import onnx.backend.test
import onnxruntime.backend

suite = onnx.backend.test.BackendTest(onnxruntime.backend, __name__)
globals().update({n: c for n, c in suite.test_cases.items() if n == "OnnxBackendNodeModelTest"})
