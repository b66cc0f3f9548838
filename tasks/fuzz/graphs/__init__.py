"""Fuzzed graphs of ONNX operators, grown and rewritten: two that may be fused, or up to fifteen."""
