"""Makes a failing case small while it fails in the same way: its graph, dims, attributes, values, the cases before it.

A search is a generator: it asks for cases to be run on the backend and is told their rows. It needs what makes references
(onnx, torch), which a backend's environment may lack: it runs in the farm's own.
"""
