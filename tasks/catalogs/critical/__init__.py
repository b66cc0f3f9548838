"""The critical operations: their inputs, NumPy references and torch forms."""
