"""The searches of the hunt, in a device process, and what they share: programs that can be cut into pieces, searched cases with their references, the talk with a backend.

A `Program` is read: its nodes, what they make in float64, pieces of it. A `Case` is changed and run: it has a reference
of its own.

A search is a generator: it asks for cases or pieces to be run on the backend and is sent what came of them. So it knows
nothing of processes, and a stand-in can answer it. Searches need onnx or torch, which a backend's environment may lack:
they run in the farm's own.
"""
