"""Reference scripts: JSON with base64 tensors to a Python script's stdin, its stdout back, with a time limit.

As ``python -m tasks.catalogs.user.reference_scripts SCRIPT`` this is the process that runs a script: requests come as lines of
JSON, each is the stdin of one run of the script as ``__main__``, and what it printed goes back as a JSON string on a
line. So all evaluations of a sample cost one start of Python and one import of NumPy.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tasks.importing import make_module_command
from tasks.model import get_numpy_dtype

#: Characters of a script's stderr kept in an error.
LAST_WORDS = 800


class ReferenceError(Exception):
    """A reference that gives no result; the text says why, with the end of its stderr. raised: it ended by itself, with
    an error."""

    def __init__(self, text: str, raised: bool = False) -> None:
        super().__init__(text)
        self.raised = raised


class ReferenceScript:
    """A reference script that is called as often as one likes: in one process, unless it ends, of ``limit_s`` seconds
    in all."""

    def __init__(self, path: Path, limit_s: float) -> None:
        self.path, self._limit_s, self._end = path, limit_s, time.monotonic() + limit_s
        self._process: _ScriptProcess | None = None

    def __call__(self, inputs: Mapping[str, np.ndarray], kwargs: Mapping[str, Any]) -> list[np.ndarray]:
        """The outputs for some inputs. Raises ReferenceError."""
        request = json.dumps(
            {"inputs": {k: encode_script_tensor(x) for k, x in inputs.items()}, "kwargs": dict(kwargs)}
        )
        self._process = self._process or _ScriptProcess(self.path, self._end)
        answer = self._process.ask(request)
        try:
            if not answer.endswith("\n"):
                late, code = self._process.wait()
                how = f"died of signal {-code}" if code < 0 else f"ended with exit code {code}"
                story = self._story(f"took longer than {self._limit_s:g} s" if late else how)
                raise ReferenceError(story, raised=not late and code > 0)
            return decode_script_outputs(json.loads(answer))
        except ReferenceError:
            self.close()
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise ReferenceError(self._story(f"wrote no outputs: {error}")) from None

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None

    def _story(self, what: str) -> str:
        words = self._process.words() if self._process else ""
        return f"the reference script {self.path.name} {what}" + (f"\n{words}" if words else "")


class _ScriptProcess:
    """A process that runs a script once a request, and is killed at ``end`` (of `time.monotonic`)."""

    def __init__(self, script: Path, end: float) -> None:
        folder = Path(__file__).resolve().parents[3]
        known = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            [*make_module_command(sys.executable, "tasks.catalogs.user.reference_scripts"), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=os.environ | {"PYTHONPATH": known},
        )
        self._late = False
        self._timer = threading.Timer(max(end - time.monotonic(), 0.0), self._kill_late)
        self._timer.daemon = True
        self._timer.start()

    def ask(self, request: str) -> str:
        """The line that answers a request; without its end where the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        return self._process.stdout.readline()

    def wait(self) -> tuple[bool, int]:
        """(whether its time was over, its exit code)."""
        code = self._process.wait()
        return self._late, code

    def words(self) -> str:
        """The end of its stderr."""
        self._stderr.seek(0)
        return self._stderr.read().strip()[-LAST_WORDS:]

    def close(self) -> None:
        self._timer.cancel()
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        self._stderr.close()

    def _kill_late(self) -> None:
        self._late = True
        self._process.kill()


def encode_script_tensor(array: np.ndarray) -> dict[str, Any]:
    """A tensor as {"dtype", "shape", "data": base64 of its bytes, C order}."""
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def decode_script_tensor(tensor: Any) -> np.ndarray:
    """The array of a tensor as `encode_script_tensor` writes it. Raises ValueError with what is wrong."""
    if not isinstance(tensor, dict) or not {"dtype", "shape", "data"} <= set(tensor):
        raise ValueError(f'a tensor is {{"dtype", "shape", "data"}}, not {_truncate_script_value(tensor)}')
    try:
        dtype = get_numpy_dtype(str(tensor["dtype"]))
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


def decode_script_outputs(text: str) -> list[np.ndarray]:
    """The outputs in what a script printed: {"outputs": {name: tensor}}, in that order, or a single tensor."""
    try:
        answer = json.loads(text)
    except ValueError:
        raise ValueError(f"stdout is no JSON: {_truncate_script_value(text)}") from None
    if isinstance(answer, dict) and "outputs" in answer:
        outputs = answer["outputs"]
        if not isinstance(outputs, dict) or not outputs:
            raise ValueError(f'"outputs" is a mapping from names to tensors, not {_truncate_script_value(outputs)}')
        return [decode_script_tensor(tensor) for tensor in outputs.values()]
    return [decode_script_tensor(answer)]


def _truncate_script_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text[:80]) + (" …" if len(text) > 80 else "")


def main(script: str) -> None:
    """Serve requests from stdin until it ends."""
    requests, answers = sys.stdin, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed past sys.stdout must not mix with the answers
    sys.argv, sys.path[0] = [script], str(Path(script).resolve().parent)
    code = None
    for line in requests:
        out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        sys.stdin = io.TextIOWrapper(io.BytesIO(line.encode()), "utf-8")
        with contextlib.redirect_stdout(out):
            try:
                code = code or compile(Path(script).read_bytes(), script, "exec")
                module = sys.modules["__main__"] = types.ModuleType("__main__")
                module.__file__ = script
                exec(code, vars(module))
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
