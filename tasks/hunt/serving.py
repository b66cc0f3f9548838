"""A search in a process of its own: what it wants run is written to packs, what came of it comes back."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tasks import wire
from tasks.arrays.pack import ArrayPack, save_pack
from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Sample
from tasks.graphs.traced_program import ProgramPart
from tasks.graphs.widening import NoOracle
from tasks.hunt.dialogue import Ask, DialoguePiece, NotFailing, Ran, Search
from tasks.model import Form, Group
from tasks.prepare.cases import PreparedGroup, save_sample_alone
from tasks.wire import ToRun


class Searcher:
    """Base of the searches: `begin` starts one, `go_on` tells it what became of what it wanted; each returns what it
    wants next, or what it found."""

    #: Whether it looks at the outputs of what is run itself; else it goes by the row.
    looks: ClassVar[bool]
    #: Exceptions that end it with nothing found; their text says why.
    ends: ClassVar[tuple[type[Exception], ...]] = (NotFailing, NoOracle)

    def __init__(self, command: wire.Search) -> None:
        self.item = item = command.item
        self.sample = PreparedGroup(item.pack, item.group.check).samples[item.positions[0]]
        self.backend = command.backend.create()
        self._folder, self._numbers = Path(command.folder), itertools.count()
        self._wanted = command.item
        self._search: Search[Any] | None = None

    def start(self) -> Search[wire.Found]:
        """The search; it returns what it found."""
        raise NotImplementedError

    def form(self, kind: str) -> Form:
        """The form of the stored case. Raises Unsupported, Vacuous, Invalid."""
        return self.sample.form(kind, ArrayPack(self.item.exported) if self.item.exported else None)

    def begin(self) -> wire.Answer:
        self._search = self.start()
        return self._step(None)

    def go_on(self, tried: wire.Tried) -> wire.Answer:
        """What is wanted next, or what was found."""
        ran = Ran(None, tried.error, tried.row)
        if self.looks and not tried.error:
            pack = ArrayPack(self._wanted.keep)
            ran = replace(ran, outputs=[pack.array(i).copy() for i in range(pack.header["outputs"])])
        for path in {self._wanted.keep, self._wanted.pack, self._wanted.part} - {self.item.pack, ""}:
            Path(path).unlink(missing_ok=True)
        return self._step(ran)

    def _step(self, ran: Any) -> wire.Answer:
        assert self._search is not None
        try:
            asked = self._search.send(ran)
        except StopIteration as end:
            found: wire.Found = end.value
            return found
        except self.ends as error:
            return wire.Found(error=str(error))
        self._wanted = self._item(asked)
        return wire.Wants(self._wanted, asked.before, asked.fresh, asked.patient)

    def _item(self, asked: Ask) -> ToRun:
        number, item = next(self._numbers), self.item
        if isinstance(asked.case, DialoguePiece):
            item = self._write_piece(number, asked.case)
        elif asked.case is not None:
            item = self.write(f"{number}.pack", *asked.case.make_sample())
        keep = str(self._folder / f"{number}.outputs") if self.looks else item.keep
        return replace(item, keep=keep, setting=asked.setting, explained=asked.explained)

    def _write_piece(self, number: int, piece: DialoguePiece) -> ToRun:
        """A piece has no reference: whoever asks for it judges it."""
        if isinstance(piece.program, ProgramPart):
            part, inputs = str(self._folder / f"{number}.part"), piece.program.inputs
            header = {"inputs": inputs, "outputs": piece.program.outputs}
            save_pack(part, header, [np.asarray(piece.feeds[name]) for name in inputs])
            return replace(self.item, part=part)
        arrays = [np.asarray(piece.feeds[x.name]) for x in piece.program.graph.input]
        args, content = tuple(map(TensorSpec, range(len(arrays)))), piece.program.SerializeToString()
        own = self.item.group  # a piece is of no catalog, so that every backend is given its ONNX form
        group = Group(f"piece:{own.op_name}", own.variant, own.dtype, 1)
        return self.write(f"{number}.pack", group, Sample(0, args, arrays=arrays, model=content))

    def write(self, name: str, group: Group, sample: Sample) -> ToRun:
        """A case that stands by itself."""
        path = self._folder / name
        save_sample_alone(path, group, sample, self.sample.owner.with_products)
        return ToRun(group, str(path), (0,))
