"""Ranks of a process group: data come over a connection, and what the collective makes of them goes back.

Started as ``python -m tasks.backends.shared.ranks CONNECTIONS OWNER NUMBERS RANKS STORE LIBRARY DEVICE PATIENCE WRAP``:
of each rank an inherited socket, with which it ends, and its number, separated by commas; several are forked from a
process that has imported torch once. OWNER: the process that started it; STORE: the URL where the ranks meet; PATIENCE:
seconds that a rank waits for others. A message is a line of JSON, then as many bytes as its dtype and shape say;
`SessionInRank` has the messages of a session. WRAP: "module:function" that is given the process group's functions and
returns others, for what tests plant; "" for none.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib
import json
import operator
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NoReturn

import numpy as np

from tasks.devices.base import PLUGIN_ALONE
from tasks.importing import pause_garbage_collector
from tasks.model import get_numpy_dtype

#: Rank that broadcasts.
ROOT = 1
#: Seconds for a script's rank to notice that the farm has hung up.
END_S = 2.0


def write_to_rank(file: BinaryIO, header: dict[str, Any], array: np.ndarray | None = None) -> None:
    if array is not None:
        header |= {"dtype": array.dtype.name, "shape": list(array.shape)}
    file.write(json.dumps(header).encode() + b"\n")
    if array is not None:
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    file.flush()


def read_from_rank(file: BinaryIO) -> tuple[dict[str, Any], np.ndarray | None]:
    """Raises EOFError where the other side has ended."""
    line = file.readline()
    if not line:
        raise EOFError
    header = json.loads(line)
    if "dtype" not in header:
        return header, None
    dtype = get_numpy_dtype(header["dtype"])
    raw = file.read(int(np.prod(header["shape"], dtype=np.int64)) * dtype.itemsize)
    return header, np.frombuffer(bytearray(raw), dtype).reshape(header["shape"])


def compute_collective(group: Any, op: str, reduction: str, data: Any) -> Any:
    """What this rank receives. group: torch.distributed, or what stands for it; data: a tensor of one dimension."""
    import torch

    how = {"sum": torch.distributed.ReduceOp.SUM, "max": torch.distributed.ReduceOp.MAX}.get(reduction)
    ranks = torch.distributed.get_world_size()
    if op in ("all_reduce", "broadcast"):
        made = data.clone()
        group.all_reduce(made, op=how) if op == "all_reduce" else group.broadcast(made, src=ROOT)
        return made
    if op == "reduce_scatter":
        made = data.new_empty(data.numel() // ranks)
        group.reduce_scatter_tensor(made, data, op=how)
    elif op == "all_gather":
        made = data.new_empty(data.numel() * ranks)
        group.all_gather_into_tensor(made, data)
    else:
        made = torch.empty_like(data)
        group.all_to_all_single(made, data)
    return made


class SessionInRank:
    """A session of tensors in this rank (`tasks.model.TensorSession`). A message opens it: "open" names the function
    that makes it, which is given "arguments", "plant" what changes it for a test; or takes a step: "step" names the
    arrays that follow, in a message each."""

    def __init__(self, place: Any, patience_s: float, makers: Mapping[str, Callable[..., Any]] | None = None) -> None:
        """patience_s: how long it waits for other ranks; makers: functions of this process that a message may name
        instead."""
        self.place, self._session, self._makers, self._patience_s = place, None, makers or {}, patience_s

    def answer(self, source: BinaryIO, sink: BinaryIO, header: dict[str, Any]) -> None:
        from tasks.arrays import torch_tree

        made, begun = list[Any](), time.monotonic()
        given = [(name, read_from_rank(source)[1]) for name in header.get("step", ())]
        try:
            limit_rank_waiting(self._patience_s)  # a session makes groups of its own when it is opened
            if "open" in header:
                make = self._makers.get(header["open"]) or find_named_object(header["open"])
                self._session = make(*header["arguments"])
                if header["plant"]:
                    find_named_object(header["plant"])(self._session)
            else:
                tensors = {name: torch_tree.tensor_from_numpy(x).to(self.place) for name, x in given if x is not None}
                made = [torch_tree.tensor_to_numpy(x.cpu()) for x in self._session.step((), tensors)]  # type: ignore[attr-defined]
        except Exception as error:
            write_to_rank(sink, describe_rank_failure(f"{type(error).__name__}: {error}", begun, self._patience_s))
            return
        write_to_rank(sink, {"count": len(made)})
        for x in made:
            write_to_rank(sink, {}, x)


def describe_rank_failure(text: str, begun: float, patience_s: float) -> dict[str, Any]:
    """What a rank says of an error. waited: whether it had waited for others as long as it does; begun: when it was
    asked, as `time.monotonic` has it."""
    return {"error": text, "waited": time.monotonic() - begun >= patience_s}


def limit_rank_waiting(seconds: float) -> None:
    """How long this process waits for the other ranks in a collective, of any process group that there is by now."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return
    from torch.distributed import distributed_c10d

    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), group)


def find_named_object(name: str) -> Any:
    """What "module:name" stands for; the name may have dots."""
    module, _, function = name.partition(":")
    return operator.attrgetter(function)(importlib.import_module(module))


def end_rank_with_connection(connection: socket.socket, served: threading.Event | None = None) -> None:
    """End this process when the other side hangs up: it may wait in a collective for ranks that are no more.
    served: of a script that goes on afterwards, set once it has noticed; it has END_S seconds for that."""
    hung_up = select.poll()
    hung_up.register(connection, getattr(select, "POLLRDHUP", select.POLLHUP))
    hung_up.poll()
    if served is None:
        os._exit(0)
    if not served.wait(END_S):
        os._exit(1)


def end_rank_with_parent(parent: int) -> None:
    """End this process with the one that started it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def main() -> None:
    connections, numbers = ([int(x) for x in sys.argv[at].split(",")] for at in (1, 3))
    end_rank_with_parent(int(sys.argv[2]))
    if len(numbers) == 1:
        serve_rank(connections[0], numbers[0], *sys.argv[4:])
    os.environ.update([PLUGIN_ALONE])  # a plug-in may start threads, whose locks a fork keeps locked
    try:
        with pause_garbage_collector():
            import torch.distributed  # noqa: F401

            from tasks.arrays import torch_tree  # noqa: F401
    except Exception as error:  # imported again, what is half made would fail in other words
        for connection in connections:
            refuse_rank(socket.socket(fileno=connection).makefile("wb"), error)
        os._exit(1)
    leader = os.getpid()
    for connection, number in zip(connections, numbers):
        if os.fork() == 0:
            end_rank_with_parent(leader)
            for other in set(connections) - {connection}:
                os.close(other)
            np.random.seed()  # as in a process of one's own; Python reseeds its own
            serve_rank(connection, number, *sys.argv[4:])
    for connection in connections:
        os.close(connection)
    for _ in numbers:
        os.wait()


def refuse_rank(sink: BinaryIO, error: Exception) -> None:
    """Say why there is no rank."""
    write_to_rank(sink, {"error": f"{type(error).__name__}: {error}"})


def serve_rank(
    fd: int, rank: int, ranks: str, store: str, library: str, device: str, patience: str, wrap: str
) -> NoReturn:
    """Be a rank; the arguments are those of this module. Ends this process."""
    patience_s = float(patience)
    connection = socket.socket(fileno=fd)
    source, sink = connection.makefile("rb"), connection.makefile("wb")
    threading.Thread(target=end_rank_with_connection, args=(connection,), daemon=True).start()
    try:
        import torch

        from tasks.arrays import torch_tree

        torch.set_num_threads(1)
        place = torch.device(device)
        if device != "cpu":
            torch.cuda.set_device(place)
        torch.distributed.init_process_group(library, init_method=store, rank=rank, world_size=int(ranks))
        limit_rank_waiting(patience_s)  # from here on: a busy machine takes its time to start all of them
        group: Any = torch.distributed
        if wrap:
            group = find_named_object(wrap)(group)
    except Exception as error:
        refuse_rank(sink, error)
        os._exit(1)
    write_to_rank(sink, {"version": torch.__version__})
    session = SessionInRank(place, patience_s)
    while True:
        try:
            header, data = read_from_rank(source)
        except EOFError:
            os._exit(0)
        if "op" not in header:
            session.answer(source, sink, header)
            continue
        begun = time.monotonic()
        try:
            assert data is not None
            tensor = torch_tree.tensor_from_numpy(data).to(place)
            made = torch_tree.tensor_to_numpy(
                compute_collective(group, header["op"], header["reduction"], tensor).cpu()
            )
            write_to_rank(sink, {}, made)
        except Exception as error:
            write_to_rank(sink, describe_rank_failure(str(error), begun, patience_s))


if __name__ == "__main__":
    main()
