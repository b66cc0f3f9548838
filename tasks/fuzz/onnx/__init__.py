"""Fuzzed nodes of ONNX operators: what is drawn for each (`draw_conv`) as a table, models, references."""
