"""Fuzzed graphs of ONNX operators: one operator put on the tensor of another (`put_conv`), and rewritten; two that may be fused, or up to fifteen."""
