"""Whole ONNX graphs, torch modules and traced programs: nodes and operations read and classed, cut into parts, evaluated in float64, and the floors of graphs. onnx is imported inside functions."""
