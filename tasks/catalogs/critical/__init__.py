"""The critical operations: NumPy references, each called as its op is (`conv2d`, `layer_norm`, `topk`, `mean`, `cat`), with their drawn inputs, sums and torch forms."""

DTYPES = ("float32", "float16", "bfloat16", "float64")
