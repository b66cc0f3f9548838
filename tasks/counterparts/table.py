"""The table of counterparts: one row per op of torch's names, one column per framework."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.counterparts.mlx_names import make_mlx_expression

#: Frameworks with a column, in the order of the columns; each is also the name of a form.
FRAMEWORKS = ("jax", "tensorflow", "paddle", "mlx")


@dataclass(frozen=True)
class CounterpartRow:
    """Ops that share a torch signature, and the call in each framework's own public functions that means the same.

    names: labels of torch's ops ("max.binary"), or "critical:name" for an op of that catalog whose call is its own.
    signature: torch's parameters, as in a ``def``; then, behind "|", those without an effect on the result.
    jax, tensorflow, paddle: an expression over the parameters and the names of `in_jax`, …; "" for no counterpart. A
    bare name is called with all parameters in order. A parameter that the expression does not mention must be given at
    its default, or the framework has no counterpart of that call. "~" in front: no single function of the framework
    does it, the expression composes it as its users do.
    """

    names: str
    signature: str
    jax: str = ""
    tensorflow: str = ""
    paddle: str = ""

    @property
    def mlx(self) -> str:
        """MLX's expression, which stands in `mlx_names`."""
        return make_mlx_expression(self.names, self.jax)


R = CounterpartRow
