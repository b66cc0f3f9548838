"""The stranger: holds the backend and the kernel's code, and answers one request after another, until nobody asks."""

from __future__ import annotations

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
from tasks.backends.shared import replaced
from tasks.catalogs.user_definitions import announce_definitions
from tasks.importing import pause_garbage_collector
from tasks.model import Form, Misbehaviour, Program, Unsupported
from tasks.stranger import records
from tasks.stranger.wire import Closed, StrangerConnection, StrangerMessage
from tasks.surroundings import Surroundings

#: Further ways to call a program, by the attribute of `Program` that takes arrays and such plain data, and returns
#: outputs.
CALLS: dict[str, Callable[..., Any]] = {
    name: made for name, kind in {"placed": "Placing"}.items() if (made := getattr(model, kind, None)) is not None
}
#: Attributes of `Program` that are another way to call it, where they are not None.
WAYS = ("given", "timed", "capture", "session")
#: Attributes of a backend that its start may set, and a judge asks for.
STARTED = ("found", "identity")


def serve_as_stranger(own: socket.socket, request: dict[str, Any]) -> None:
    """Answer what comes over a connection. request: "backend" (a line of `tasks.wire`), "kernels" (definitions),
    "lacks"."""
    announce_definitions(request["kernels"])
    backend: Backend = lines.decode_wire_message(request["backend"]).create()
    StrangerServer(backend, os.getpid(), request["lacks"]).answer(StrangerConnection(own))
    os._exit(0)


class StrangerServer:
    """Answers requests. What a request makes is kept by the number of the request, until the judge has dropped it."""

    def __init__(self, backend: Backend, pid: int, lacks: Sequence[str]) -> None:
        self._backends: dict[int, Backend] = {0: backend}
        self._kept: dict[int, Any] = {}
        self._said: dict[int, dict[str, Any]] = {}
        self._pid, self._lacks = pid, list(lacks)
        self._surroundings = Surroundings()

    def answer(self, connection: StrangerConnection) -> None:
        """Answer until the other side closes its end."""
        while True:
            try:
                message, fds = connection.receive()
            except Closed:
                return
            if message.dropped:
                self._drop(message.dropped)
            if message.verb == "drop":
                for number in message.body:
                    self._drop(number)
            elif message.verb == "lane":  # another thread of the judge's asks over a connection of its own
                lane = StrangerConnection(socket.socket(fileno=fds[0]))
                threading.Thread(target=self.answer, args=(lane,), daemon=True).start()
                connection.send(message.number, "done")
            else:
                self._answer_request(connection, message)

    def _drop(self, number: int) -> None:
        self._kept.pop(number, None)
        self._said.pop(number, None)

    def _answer_request(self, connection: StrangerConnection, message: StrangerMessage) -> None:
        done = self._answer_one(connection, message, _VERBS.get(message.verb))
        if message.verb == "build":  # who builds it to run runs it next
            for _ in range(message.body["runs"]):
                done = done and self._answer_one(connection, message._replace(of=message.number), StrangerServer._run)

    def _answer_one(self, connection: StrangerConnection, message: StrangerMessage, verb: Verb | None) -> bool:
        """Whether nothing was raised."""
        said: Any
        out: list[Any] = []
        try:
            if verb is None:
                raise ValueError(f"nobody can be asked to {message.verb}")
            said, told = verb(self, message, out), "done"
        except BaseException as error:
            out = []
            said, told = records.write_error_record(error, self._backends[0], out), "raised"
        if os.getpid() != self._pid:  # the kernel has forked, and this is not the process that is asked
            os._exit(0)
        sys.stdout.flush()
        connection.send(message.number, told, said, out)
        return told == "done"

    # --- of a backend ---

    def _backend(self, message: StrangerMessage) -> Backend:
        return self._backends[message.body.get("backend", 0)]

    def _start(self, message: StrangerMessage, out: list[Any]) -> Any:
        backend = self._backend(message)
        with pause_garbage_collector():
            info = backend.start()
        replaced.describe_replaced_functions()  # before the kernel's code is there, and what it replaces
        given = {name: getattr(backend, name) for name in STARTED}
        return {"info": lines.encode_wire_message(info).decode(), "lacks": self._lacks, **given}

    def _derive(self, message: StrangerMessage, out: list[Any]) -> Any:
        """Another backend that a method makes of one; levels: those by name; None where there is none."""
        body = message.body
        made = getattr(self._backend(message), body["method"])(*body["given"])
        if isinstance(made, Mapping):
            return {name: self._keep_backend(x) for name, x in made.items()}
        return None if made is None else self._keep_backend(made)

    def _keep_backend(self, made: Backend) -> int:
        number = len(self._backends)
        self._backends[number] = made
        return number

    def _tell(self, message: StrangerMessage, out: list[Any]) -> Any:
        """What a method of the backend says in plain data."""
        return getattr(self._backend(message), message.body["method"])(*message.body["given"])

    def _flushes(self, message: StrangerMessage, out: list[Any]) -> Any:
        found = self._backend(message).measure_flushing(message.body["dtype"])
        return [list(found.results), list(found.inputs)]

    def _canary(self, message: StrangerMessage, out: list[Any]) -> Any:
        from tasks.canary import build_canary_form

        made = self._backend(message).canary(build_canary_form(message.body["kind"], message.body["dtype"]))
        return self._keep_program(message.number, made, out)

    def _build(self, message: StrangerMessage, out: list[Any]) -> Any:
        self._surroundings.put_back()  # another case begins
        form = message.text.read(_read_form_message).read(message.arrays)
        return self._keep_program(message.number, self._backend(message).build(form), out)

    def _build_all(self, message: StrangerMessage, out: list[Any]) -> Any:
        """Programs, or what was raised; the number of the last one is the request's."""
        self._surroundings.put_back()
        forms = [self._form_or_error(x, message.arrays) for x in message.text.read(_read_forms_message)]
        built = iter(self._backend(message).build_all([x for x in forms if isinstance(x, Form)]))
        first = message.number - len(forms) + 1
        made = (next(built) if isinstance(x, Form) else x for x in forms)
        return [self._program_or_error(first + k, x, out) for k, x in enumerate(made)]

    @staticmethod
    def _form_or_error(record: records.FormRecord, arrays: list[Any]) -> Form | Exception:
        try:
            return record.read(arrays)
        except Exception as error:
            return error

    def _program_or_error(self, number: int, made: Program | Exception, out: list[Any]) -> dict[str, Any]:
        if isinstance(made, Program):
            return self._keep_program(number, made, out)
        return {"raised": records.write_error_record(made, self._backends[0], out)}

    def _arm(self, message: StrangerMessage, out: list[Any]) -> Any:
        form = message.text.read(_read_form_message).read(message.arrays)
        others = {
            kind: x if isinstance(x, str) else records.FormRecord(x).read(message.arrays)
            for kind, x in message.body["also"].items()
        }

        def find_other(kind: str) -> Form:
            found = others.get(kind, f"the sample has no {kind} form")
            if isinstance(found, str):
                raise Unsupported(found)
            return found

        arm = getattr(self._backend(message), message.body["method"])(replace(form, also=find_other))
        return {
            "name": arm.name,
            "form": arm.form.kind,
            "products": arm.products,
            "declared": arm.declared,
            "work": list(arm.work),
            "views": arm.views,
            "program": self._keep_program(message.number, arm.program, out),
        }

    # --- of a program ---

    def _keep_program(self, number: int, program: Program, out: list[Any]) -> dict[str, Any]:
        self._kept[number] = program
        said = self._said[number] = records.describe_remote_program(program)
        return {
            "said": dict(said),
            "ways": self._ways(program, out),
            "threads": program.threads,
            "calls": [name for name in (*WAYS, *CALLS) if getattr(program, name, None) is not None],
        }

    @staticmethod
    def _ways(program: Program, out: list[Any]) -> Any:
        return [[name, records.add_crossing_arrays(_make_plain_outputs(x), out)] for name, x in program.ways.items()]

    def _describe_run(self, number: int, program: Program, outputs: Sequence[Any], out: list[Any]) -> dict[str, Any]:
        places = records.add_crossing_arrays(_make_plain_outputs(outputs), out)
        said = records.describe_remote_changes(program, self._said[number])
        return {"outputs": places, "said": said, "ways": self._ways(program, out)}

    def _run(self, message: StrangerMessage, out: list[Any]) -> Any:
        """Run a program, or what it was given other inputs for."""
        self._surroundings.runs()
        made = self._kept[message.of]
        program, run, number = (made, made.run, message.of) if isinstance(made, Program) else made
        return self._describe_run(number, program, run(), out)

    def _given(self, message: StrangerMessage, out: list[Any]) -> Any:
        program = self._kept[message.of]
        self._kept[message.number] = program, program.given(message.arrays), message.of

    def _timed(self, message: StrangerMessage, out: list[Any]) -> Any:
        """Make calls ready that are timed by themselves."""
        self._kept[message.number] = self._kept[message.of].timed(
            message.arrays, records.read_remote_chain(message.body)
        )

    def _time(self, message: StrangerMessage, out: list[Any]) -> Any:
        self._surroundings.runs()
        return records.write_timed_record(self._kept[message.of]())

    def _results(self, message: StrangerMessage, out: list[Any]) -> Any:
        """What timed calls returned: the places of each one's outputs."""
        return [records.add_crossing_arrays(_make_plain_outputs(x), out) for x in self._kept[message.of].results()]

    def _call(self, message: StrangerMessage, out: list[Any]) -> Any:
        """A call of a program in another way, by its name in `CALLS`: with arrays and plain data, to outputs."""
        name, program = message.body["name"], self._kept[message.of]
        data = CALLS[name](**message.body["data"])
        self._surroundings.runs()
        return self._describe_run(message.of, program, getattr(program, name)(message.arrays, data), out)

    def _capture(self, message: StrangerMessage, out: list[Any]) -> Any:
        self._kept[message.number] = self._kept[message.of].capture()

    def _replay(self, message: StrangerMessage, out: list[Any]) -> Any:
        return records.add_crossing_arrays(_make_plain_outputs(self._kept[message.of](message.arrays)), out)

    # --- of a session ---

    def _open(self, message: StrangerMessage, out: list[Any]) -> Any:
        program = self._kept[message.of]
        self._kept[message.number] = program, program.session(), message.of

    def _step(self, message: StrangerMessage, out: list[Any]) -> Any:
        program, session, number = self._kept[message.of]
        outputs = session.step(message.arrays if message.body["inputs"] else None)
        return self._describe_run(number, program, outputs, out)

    def _session(self, message: StrangerMessage, out: list[Any]) -> Any:
        method = message.body["method"]
        found = getattr(self._kept[message.of][1], method)()
        if method != "state":
            return None
        return [list(map(str, found)), records.add_crossing_arrays(_make_plain_outputs(list(found.values())), out)]


def _read_form_message(body: Any) -> records.FormRecord:
    return records.FormRecord(body["form"])


def _read_forms_message(body: Any) -> list[records.FormRecord]:
    return [records.FormRecord(x) for x in body["forms"]]


def _make_plain_outputs(outputs: Sequence[Any]) -> list[Any]:
    """Outputs as arrays of NumPy's own class: what computes when it is read is read here, on the kernel's time. Raises
    Misbehaviour."""
    made = [None if x is None else np.asarray(x) for x in outputs]
    for x in made:
        if x is not None and type(x) is not np.ndarray:
            raise Misbehaviour("structure", f"an output is a {type(x).__name__}, not an array")
    return made


#: Answers a request: what is said, and arrays that are appended to a list.
Verb = Callable[[StrangerServer, StrangerMessage, list[Any]], Any]

_VERBS: dict[str, Verb] = {
    name.removeprefix("_"): getattr(StrangerServer, name)
    for name in (
        *("_start", "_derive", "_tell", "_flushes", "_canary", "_build", "_build_all", "_arm"),
        *(
            "_run",
            "_given",
            "_timed",
            "_time",
            "_results",
            "_call",
            "_capture",
            "_replay",
            "_open",
            "_step",
            "_session",
        ),
    )
}
