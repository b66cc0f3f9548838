"""A mode that is given every operation of torch's, and does not import the compiler for that."""

from __future__ import annotations

import sys
from typing import Any


def make_dispatch_mode() -> Any:
    """`TorchDispatchMode`, to be subclassed where it is used.

    That of torch imports the compiler when the first operation comes, a second of work, to keep itself out of what is
    compiled: where nothing has imported the compiler, nothing is.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return "torch._dynamo" in sys.modules

    return Mode
