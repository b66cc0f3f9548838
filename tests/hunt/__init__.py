"""Public reports about wrong numbers, each as a small instance beside its sound twin; `python -m tests.hunt` says what the farm finds.

`kernels` has faults as kernels of one's own, `compiled` and `onnx_models` models on which a runtime that can be
installed is wrong. `reports` says which public report each of them is, and what is found of it; `running` asks the
farm.
"""
