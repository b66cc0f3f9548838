"""What the shapes of weights do not say of the networks: heads, groups, patches. Needs no framework, so that every framework's text has it."""

from __future__ import annotations

#: Heads of every attention; groups of the Llama's keys and values.
HEADS, LLAMA_GROUPS = 4, 2
#: Experts that a token goes to, and the share of the loss that balances them.
CHOSEN, BALANCE = 2, 0.01
#: Side of the vision transformer's patches.
PATCH = 2
#: Groups of the U-Net's norms.
NORM_GROUPS = 4
