"""Training in JAX: the catalog's networks written in it, gradients by `jax.grad`, optimisers of optax."""

from __future__ import annotations

from dataclasses import replace

from tasks.backends.base import Backend, importing, join_words_once
from tasks.backends.jax import Jax
from tasks.backends.shared.recipe import ProgramRecipe
from tasks.backends.shared.training_form import LoopSession, TrainingForm
from tasks.model import Form, Program, RuntimeInfo, Unsupported
from tasks.training.recipe import FLOAT8
from tasks.training.recipe import TrainingRecipe as TrainingRecipe


class Optax(Jax):
    """Options as of JAX: without ``jit`` each primitive is a program by itself."""

    checks: tuple[str, ...] = ("train",)

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.packages = (*self.packages, "optax==0.2.8")
        self.oldest = ""

    def probe(self) -> RuntimeInfo:
        info = super().probe()
        with importing("optax"):
            import optax
        return replace(info, runtime_version=join_words_once(f"optax {optax.__version__}", info.runtime_version))

    def build(self, form: Form) -> Program:
        if not form.phases:
            raise Unsupported(f"{self.name} runs training loops alone")
        from tasks.training.in_jax.loop import JaxLoop
        from tasks.training.in_jax.networks import LOSSES

        given = TrainingForm.read(form)
        if given.network not in LOSSES:
            raise Unsupported(f"{self.name} trains what is written in JAX: {', '.join(LOSSES)} of the catalog")
        recipe = TrainingRecipe.read(given.recipe)
        if recipe.way:
            raise Unsupported(f"{recipe.way} is a way of torch's optimisers")
        if given.precision == FLOAT8:
            raise Unsupported("training in FP8 is written in torch alone")
        loop = JaxLoop(given.network, recipe, given.places, given.precision, self.jit)
        flags = f"jit={'on' if self.jit else 'off'} precision={self.precision}"
        return Program(lambda: [], self.device, flags=flags, session=lambda: LoopSession(given, loop))

    def recipe(self, form: Form) -> ProgramRecipe:
        return Backend.recipe(self, form)
