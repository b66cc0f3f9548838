"""What a training script of the user's calls on every rank, so that the farm asks its own module and optimiser for the steps that it judges."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

from tasks.backends.shared import ranks
from tasks.training.hooked import Compute, HookedLoop
from tasks.training.parallel import count_training_ranks, find_training_rank
from tasks.training.recipe import TrainingRecipe

#: Variable of the script, as JSON: where the farm waits for the ranks (host, port, token), and how long they wait for
#: one another (patience_s).
HOOK = "FARM_TRAINING_HOOK"
#: Seconds for the connection.
PATIENCE_S = 30.0


def serve(module: Any, optimiser: Any, compute: Compute) -> bool:
    """Take the steps that the farm asks for until it hangs up; False at once where no farm has started this script.

    module, optimiser: of this rank, as the script trains them (DistributedDataParallel, fully_shard, …), within a
    process group; compute(module, *batch): the loss. Weights and moments are overwritten. Raises OSError where the farm
    cannot be reached.
    """
    if HOOK not in os.environ:
        return False
    said = json.loads(os.environ[HOOK])
    connection = socket.create_connection((said["host"], said["port"]), PATIENCE_S)
    connection.settimeout(None)
    device = next(module.parameters()).device

    def open_loop(recipe: Mapping[str, Any], precision: str) -> HookedLoop:
        loop = HookedLoop(module, optimiser, compute, TrainingRecipe.read(dict(recipe)), precision)
        loop.start(device.type)
        return loop

    session = ranks.SessionInRank(device, said["patience_s"], {"hook": open_loop})
    served = threading.Event()
    threading.Thread(target=ranks.end_rank_with_connection, args=(connection, served), daemon=True).start()
    with connection, connection.makefile("rb") as source, connection.makefile("wb") as sink:
        try:
            told = {"token": said["token"], "rank": find_training_rank(), "ranks": count_training_ranks()}
            ranks.write_to_rank(sink, told)
            while True:
                try:
                    header, _ = ranks.read_from_rank(source)
                except (EOFError, OSError):
                    return True
                session.answer(source, sink, header)
        finally:
            served.set()
            with contextlib.suppress(OSError):  # to be closed is not enough while a thread polls it
                connection.shutdown(socket.SHUT_RDWR)
