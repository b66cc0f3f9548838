"""A model that is named on the command line, as a config: instead of the ops of a config, or on a CPU's runtimes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic

from farm.plan import kernels
from farm.plan.config_schema import Config, ConfigError
from tasks.catalogs.models import table

#: Where a model runs that no config names backends for; a torch module is compiled as well.
BACKENDS = ("torch-cpu", "ort-cpu", "openvino-cpu")
COMPILED = ("inductor-cpu",)
#: How often inputs are drawn that nobody counted: of one alone, a constant would do for a model with one number as its
#: output.
DRAWN = 2
#: Seconds that a case of a whole model may take.
DEADLINE_S = 600.0


def make_config_of_model(
    model: str,
    inputs: Sequence[str],
    config: Config | None = None,
    drawn: Sequence[str] = (),
    samples: int | None = None,
) -> Config:
    """The config of a run of one model. inputs: .npz files, one a sample; drawn: what is drawn instead (`--input`),
    ``samples`` times, else DRAWN; config: whose backends, policy and checks are taken. Raises ConfigError."""
    if inputs and drawn:
        raise ConfigError("--input: the inputs are in the files that --inputs names; leave out one of the two")
    model = kernels.find_model_in_file(model, Path.cwd())
    catalog = {
        "name": kernels.MODELS,
        "samples": len(inputs) or samples or DRAWN,
        "own": [{"name": _name_model_op(model), "model": model, "inputs": _name_drawn_inputs(drawn) or list(inputs)}],
    }
    backends = [*BACKENDS, *COMPILED * kernels.is_model_function(model)]
    base: dict[str, Any] = config.model_dump(by_alias=True) if config else {"backends": backends}
    base |= {"catalogs": [catalog], "dtypes": ["float32"], "skip": []}
    base |= {} if config else {"name": _name_model_op(model), "deadline_s": DEADLINE_S}

    def refuse(key: tuple[Any, ...], text: str) -> None:
        option = "--model" if "inputs" not in key else "--input" if drawn else "--inputs"
        raise ConfigError(f"{option}: {text}")

    try:
        made = Config.model_validate(base)
    except pydantic.ValidationError as error:
        raise ConfigError(f"--model: {error.errors()[0]['msg']}") from None
    (own,) = [kernels.resolve_catalog_paths(c, Path.cwd()) for c in made.catalogs]
    kernels.check_config_kernels(own, (), refuse)
    return made.model_copy(update={"catalogs": [own]})


def _name_drawn_inputs(drawn: Sequence[str]) -> dict[str, str]:
    """What is drawn, by the input's name. Raises ConfigError."""
    found: dict[str, str] = {}
    for text in drawn:
        name, *said = re.split(r"\s*=\s*|(?=<)", text.strip(), maxsplit=1)
        if name in found:
            raise ConfigError(f"--input: {name!r} is given twice")
        found[name] = "".join(said)
    return found


def _name_model_op(model: str) -> str:
    """The name of the op: the file's or the function's."""
    last = model.rpartition(":")[2] if kernels.is_model_function(model) else Path(model).resolve().stem
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", last).lstrip(".-") or "model"
    return f"my_{name}" if (name, "") in table.MODELS else name
