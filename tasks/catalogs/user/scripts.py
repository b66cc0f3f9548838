"""Reference scripts: JSON with base64 tensors to a Python script's stdin, its stdout back, with a time limit.

As ``python -m tasks.catalogs.user.scripts SCRIPT`` this is the process that runs a script: requests come as lines of JSON, each
is the stdin of one run of the script as ``__main__``, and what it printed goes back as a JSON string on a line. So all
evaluations of a sample cost one start of Python and one import of NumPy.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tasks.model import np_dtype

#: Characters of a script's stderr kept in an error.
LAST_WORDS = 800


class ReferenceError(Exception):
    """A reference that gives no result; the text says why, with the end of its stderr. raised: it ended by itself, with an error."""

    def __init__(self, text: str, raised: bool = False) -> None:
        super().__init__(text)
        self.raised = raised


def run(
    script: Path, requests: Iterable[tuple[Mapping[str, np.ndarray], Mapping[str, Any]]], limit_s: float
) -> list[list[np.ndarray]]:
    """The outputs of a script for each (inputs, kwargs); one process for all, of ``limit_s`` seconds in all.

    Raises ReferenceError.
    """
    lines = [
        json.dumps({"inputs": {k: encode(x) for k, x in inputs.items()}, "kwargs": dict(kwargs)})
        for inputs, kwargs in requests
    ]
    folder = Path(__file__).resolve().parents[3]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks.catalogs.user.scripts", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    try:
        out, err = process.communicate("\n".join(lines) + "\n", timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        _, err = process.communicate()
        raise ReferenceError(_story(script, f"took longer than {limit_s:g} s", err)) from None
    answers = out.splitlines()
    if process.returncode or len(answers) != len(lines):
        how = (
            f"died of signal {-process.returncode}"
            if process.returncode < 0
            else f"ended with exit code {process.returncode}"
        )
        raise ReferenceError(_story(script, how, err), process.returncode > 0)
    try:
        return [decode_outputs(json.loads(answer)) for answer in answers]
    except (ValueError, TypeError, KeyError) as error:
        raise ReferenceError(_story(script, f"wrote no outputs: {error}", err)) from None


def _story(script: Path, what: str, stderr: str) -> str:
    words = stderr.strip()[-LAST_WORDS:]
    return f"the reference script {script.name} {what}" + (f"\n{words}" if words else "")


def encode(array: np.ndarray) -> dict[str, Any]:
    """A tensor as {"dtype", "shape", "data": base64 of its bytes, C order}."""
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def decode(tensor: Any) -> np.ndarray:
    """The array of a tensor as `encode` writes it. Raises ValueError with what is wrong."""
    if not isinstance(tensor, dict) or not {"dtype", "shape", "data"} <= set(tensor):
        raise ValueError(f'a tensor is {{"dtype", "shape", "data"}}, not {_shortened(tensor)}')
    try:
        dtype = np_dtype(str(tensor["dtype"]))
    except TypeError:
        raise ValueError(f"unknown dtype {tensor['dtype']!r}") from None
    if dtype.kind not in "biufcV":
        raise ValueError(f"dtype {tensor['dtype']!r} is no number")
    data, shape = base64.b64decode(tensor["data"], validate=True), tuple(tensor["shape"])
    if (
        any(type(n) is not int or n < 0 for n in shape)
        or len(data) != int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    ):
        raise ValueError(f"{len(data)} bytes of data are no {dtype.name} of shape {list(shape)}")
    return np.frombuffer(data, dtype).reshape(shape)


def decode_outputs(text: str) -> list[np.ndarray]:
    """The outputs in what a script printed: {"outputs": {name: tensor}}, in that order, or a single tensor."""
    try:
        answer = json.loads(text)
    except ValueError:
        raise ValueError(f"stdout is no JSON: {_shortened(text)}") from None
    if isinstance(answer, dict) and "outputs" in answer:
        outputs = answer["outputs"]
        if not isinstance(outputs, dict) or not outputs:
            raise ValueError(f'"outputs" is a mapping from names to tensors, not {_shortened(outputs)}')
        return [decode(tensor) for tensor in outputs.values()]
    return [decode(answer)]


def _shortened(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text[:80]) + (" …" if len(text) > 80 else "")


def main(script: str) -> None:
    """Serve requests from stdin until it ends."""
    requests, answers = sys.stdin, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed past sys.stdout must not mix with the answers
    sys.argv, sys.path[0] = [script], str(Path(script).resolve().parent)
    for line in requests:
        out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        sys.stdin = io.TextIOWrapper(io.BytesIO(line.encode()), "utf-8")
        with contextlib.redirect_stdout(out):
            try:
                runpy.run_path(script, run_name="__main__")
            except SystemExit as end:
                if end.code not in (None, 0):
                    raise
            except Exception as error:
                frames = error.__traceback__
                while frames is not None and frames.tb_frame.f_code.co_filename != script:
                    frames = frames.tb_next  # those of this module are of no interest
                traceback.print_exception(error.with_traceback(frames))
                sys.exit(1)
        answers.write(json.dumps(out.buffer.getvalue().decode(errors="replace")) + "\n")  # type: ignore[attr-defined]
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
