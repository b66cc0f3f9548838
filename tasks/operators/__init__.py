"""ONNX's operators in float64 (`evaluate_conv`) and over torch (`apply_conv`): one row each (`tasks.operators.table`), and what the rows are made of."""
