"""Generated graphs of ONNX operators: two that may be fused, or up to fifteen."""
