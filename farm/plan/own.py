"""A model that is named on the command line, as a config: instead of the ops of a config, or on a CPU's runtimes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic

from farm.plan import kernels
from farm.plan.model import Config, ConfigError
from tasks.catalogs.models import table

#: Where a model runs that no config names backends for.
BACKENDS = ("torch-cpu", "ort-cpu", "openvino-cpu")
#: Seconds that a case of a whole model may take.
DEADLINE_S = 600.0


def config_of(model: str, inputs: Sequence[str], config: Config | None = None) -> Config:
    """The config of a run of one model. ``config``: whose backends, policy and checks are taken. Raises ConfigError."""
    catalog = {
        "name": kernels.MODELS,
        "samples": max(1, len(inputs)),
        "own": [{"name": _name(model), "model": model, "inputs": list(inputs)}],
    }
    base: dict[str, Any] = config.model_dump(by_alias=True) if config else {"backends": list(BACKENDS)}
    base |= {"catalogs": [catalog], "dtypes": ["float32"], "skip": []}
    base |= {} if config else {"name": _name(model), "deadline_s": DEADLINE_S}

    def refuse(key: tuple[Any, ...], text: str) -> None:
        raise ConfigError(f"{'--inputs' if 'inputs' in key else '--model'}: {text}")

    try:
        made = Config.model_validate(base)
    except pydantic.ValidationError as error:
        raise ConfigError(f"--model: {error.errors()[0]['msg']}") from None
    (own,) = [kernels.resolved(c, Path.cwd()) for c in made.catalogs]
    kernels.check(own, (), refuse)
    return made.model_copy(update={"catalogs": [own]})


def _name(model: str) -> str:
    """The name of the op: the file's or the function's."""
    last = model.rpartition(":")[2] if kernels.is_function(model) else Path(model).resolve().stem
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", last).lstrip(".-") or "model"
    return f"my_{name}" if (name, "") in table.MODELS else name
