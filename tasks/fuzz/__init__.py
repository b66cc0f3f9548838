"""Generated cases of ONNX operators: choices over bounded integers, domains of values, specs, and the nodes and graphs that they make."""
