"""The stranger: holds the backend and the kernel's code, and answers one request after another, until nobody asks."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks import model
from tasks import wire as lines
from tasks.backends.base import Backend
from tasks.catalogs.user_definitions import announce
from tasks.importing import pause_gc
from tasks.model import Form, Misbehaviour, Program, Timed, Unsupported
from tasks.stranger import records
from tasks.stranger.wire import Closed, Connection
from tasks.surroundings import Surroundings

#: Further ways to call a program, by the attribute of `Program` that takes arrays and such plain data, and returns outputs.
CALLS: dict[str, Callable[..., Any]] = {
    name: made for name, kind in {"placed": "Placing"}.items() if (made := getattr(model, kind, None)) is not None
}
#: Attributes of a backend that its start may set, and a judge asks for.
STARTED = ("found", "identity")


def serve(own: socket.socket, request: dict[str, Any]) -> None:
    """Answer what comes over a connection. request: "backend" (a line of `tasks.wire`), "kernels" (definitions), "lacks"."""
    announce(request["kernels"])
    backend: Backend = lines.decode(request["backend"]).create()
    Server(backend, os.getpid(), request["lacks"]).answer(Connection(own))
    os._exit(0)


class Server:
    """Answers requests. What it has made it keeps by a number, until the judge has dropped it."""

    def __init__(self, backend: Backend, pid: int, lacks: Sequence[str]) -> None:
        self._backends: dict[int, Backend] = {0: backend}
        self._kept: dict[int, Any] = {}
        self._said: dict[int, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self._pid, self._lacks = pid, list(lacks)
        self._surroundings = Surroundings()

    def answer(self, connection: Connection) -> None:
        """Answer until the other side closes its end."""
        while True:
            try:
                message, fds = connection.receive()
            except Closed:
                return
            if message.verb == "lane":  # another thread of the judge's asks over a connection of its own
                lane = Connection(socket.socket(fileno=fds[0]))
                threading.Thread(target=self.answer, args=(lane,), daemon=True).start()
                connection.send(message.number, "done")
                continue
            out: list[Any] = []
            self._answer_one(connection, message.number, message.verb, message.body, message.arrays, out)

    def _answer_one(
        self, connection: Connection, number: int, verb: str, body: Any, arrays: list[Any], out: list[Any]
    ) -> None:
        said: Any
        ahead = verb == "build" and body.pop("ahead", False)
        try:
            for old in body.pop("drop", ()):
                self._kept.pop(old, None)
                self._said.pop(old, None)
            backend = self._backends[body.pop("backend", 0)]
            if verb in ("build", "build_all"):  # another case begins
                self._surroundings.put_back()
            said, verb = _VERBS[verb](self, backend, body, arrays, out), "done"
        except BaseException as error:
            said, verb = records.write_error(error, self._backends[0], out), "raised"
        if os.getpid() != self._pid:  # the kernel has forked, and this is not the process that is asked
            os._exit(0)
        sys.stdout.flush()
        connection.send(number, verb, said, out)
        if ahead and verb == "done":  # who builds it runs it next
            self._answer_one(connection, number, "run", {"of": said["of"]}, [], [])

    def _keep(self, made: Any) -> int:
        number = next(self._numbers)
        self._kept[number] = made
        return number

    # --- of a backend ---

    def _start(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        with pause_gc():
            info = backend.start()
        given = {name: getattr(backend, name) for name in STARTED}
        return {"info": lines.encode(info).decode(), "lacks": self._lacks, **given}

    def _derive(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        """Another backend that a method makes of one; levels: those by name; None where there is none."""
        made = getattr(backend, body["method"])(*body["given"])
        if isinstance(made, Mapping):
            return {name: self._keep_backend(x) for name, x in made.items()}
        return None if made is None else self._keep_backend(made)

    def _keep_backend(self, made: Backend) -> int:
        number = next(self._numbers)
        self._backends[number] = made
        return number

    def _tell(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        """What a method of the backend says in plain data."""
        return getattr(backend, body["method"])(*body["given"])

    def _flushes(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        found = backend.measure_flushing(body["dtype"])
        return [list(found.results), list(found.inputs)]

    def _canary(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        from tasks.canary import build_form

        return self._program(backend.canary(build_form(body["kind"], body["dtype"])), out)

    def _build(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        return self._program(backend.build(records.read_form(body["form"], arrays)), out)

    def _build_all(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        forms = [self._read_form(x, arrays) for x in body["forms"]]
        built = iter(backend.build_all([x for x in forms if isinstance(x, Form)]))
        return [self._program_or_error(next(built) if isinstance(x, Form) else x, out) for x in forms]

    @staticmethod
    def _read_form(record: dict[str, Any], arrays: list[Any]) -> Form | Exception:
        try:
            return records.read_form(record, arrays)
        except Exception as error:
            return error

    def _program_or_error(self, made: Program | Exception, out: list[Any]) -> dict[str, Any]:
        if isinstance(made, Program):
            return self._program(made, out)
        return {"raised": records.write_error(made, self._backends[0], out)}

    def _arm(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        form = records.read_form(body["form"], arrays)
        also = {kind: x if isinstance(x, str) else records.read_form(x, arrays) for kind, x in body["also"].items()}

        def find_other(kind: str) -> Form:
            found = also.get(kind, f"the sample has no {kind} form")
            if isinstance(found, str):
                raise Unsupported(found)
            return found

        arm = getattr(backend, body["method"])(replace(form, also=find_other))
        return {
            "name": arm.name,
            "form": arm.form.kind,
            "products": arm.products,
            "declared": arm.declared,
            "work": list(arm.work),
            "views": arm.views,
            "program": self._program(arm.program, out),
        }

    # --- of a program ---

    def _program(self, program: Program, out: list[Any]) -> dict[str, Any]:
        number = self._keep(program)
        said = self._said[number] = records.describe_program(program)
        return {
            "of": number,
            "said": said,
            "ways": self._ways(program, out),
            "given": program.given is not None,
            "timed": program.timed is not None,
            "capture": program.capture is not None,
            "session": program.session is not None,
            "threads": program.threads,
            "calls": [name for name in CALLS if getattr(program, name, None) is not None],
        }

    @staticmethod
    def _ways(program: Program, out: list[Any]) -> Any:
        return [[name, records.add(_plain(x), out)] for name, x in program.ways.items()]

    def _changes(self, number: int, program: Program) -> dict[str, Any]:
        """What a program says now that it did not say before."""
        before, now = self._said[number], records.describe_program(program)
        self._said[number] = now
        return {name: x for name, x in now.items() if x != before[name]}

    def _run(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        """Run a program, or what it was given other inputs for."""
        self._surroundings.runs()
        made = self._kept[body["of"]]
        program, run, number = (made, made.run, body["of"]) if isinstance(made, Program) else made
        outputs = _plain(run())
        places = records.add(outputs, out)
        return {"outputs": places, "said": self._changes(number, program), "ways": self._ways(program, out)}

    def _given(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        program = self._kept[body["of"]]
        return self._keep((program, program.given(records.take(body["arrays"], arrays)), body["of"]))

    def _timed(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        """Make a call ready that is timed by itself."""
        program = self._kept[body["of"]]
        return self._keep(program.timed(records.take(body["arrays"], arrays), body["cold"], body["probe"]))

    def _time(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        self._surroundings.runs()
        found: Timed = self._kept[body["of"]]()
        later = None if found.later is None else _plain(found.later)
        return records.write_timed(replace(found, outputs=_plain(found.outputs), later=later), out)

    def _call(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        """A call of a program in another way, by its name in `CALLS`: with arrays and plain data, to outputs."""
        program, data = self._kept[body["of"]], CALLS[body["name"]](**body["data"])
        self._surroundings.runs()
        outputs = getattr(program, body["name"])(records.take(body["arrays"], arrays), data)
        places = records.add(_plain(outputs), out)
        return {"outputs": places, "said": self._changes(body["of"], program), "ways": self._ways(program, out)}

    def _capture(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        return self._keep(self._kept[body["of"]].capture())

    def _replay(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        return records.add(_plain(self._kept[body["of"]](records.take(body["arrays"], arrays))), out)

    # --- of a session ---

    def _open(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        program = self._kept[body["of"]]
        return self._keep((program, program.session(), body["of"]))

    def _step(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        program, session, number = self._kept[body["of"]]
        outputs = session.step(None if body["arrays"] is None else records.take(body["arrays"], arrays))
        places = records.add(_plain(outputs), out)
        return {"outputs": places, "said": self._changes(number, program), "ways": self._ways(program, out)}

    def _session(self, backend: Backend, body: Any, arrays: list[Any], out: list[Any]) -> Any:
        session = self._kept[body["of"]][1]
        found = getattr(session, body["method"])()
        if body["method"] != "state":
            return None
        return [list(map(str, found)), records.add(_plain(list(found.values())), out)]


def _plain(outputs: Sequence[Any]) -> list[Any]:
    """Outputs as arrays of NumPy's own class: what computes when it is read is read here, on the kernel's time. Raises Misbehaviour."""
    made = [None if x is None else np.asarray(x) for x in outputs]
    for x in made:
        if x is not None and type(x) is not np.ndarray:
            raise Misbehaviour("structure", f"an output is a {type(x).__name__}, not an array")
    return made


_VERBS: dict[str, Callable[[Server, Backend, Any, list[Any], list[Any]], Any]] = {
    name.removeprefix("_"): getattr(Server, name)
    for name in (
        *("_start", "_derive", "_tell", "_flushes", "_canary", "_build", "_build_all", "_arm"),
        *("_run", "_given", "_timed", "_time", "_call", "_capture", "_replay", "_open", "_step", "_session"),
    )
}
