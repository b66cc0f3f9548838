"""What is said of the backends before a run begins: where each runs, or why it does not."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from farm.fleet.inventory import Offer
from tasks.backends.needs import install_line


def print_preflight(console: Console, known: dict[str, Offer]) -> None:
    """One line per backend: where it runs, or why it does not; then how to have those whose needs can be installed."""
    width = max(map(len, known), default=0)
    for name, offer in known.items():
        state = "[green]available[/]    " if offer.available else "[yellow]unavailable[/]  "
        console.print(f"  {name:{width}}  {state}", Text(offer.words), highlight=False, soft_wrap=True)
    lacking = [offer for offer in known.values() if offer.installs and not offer.available]
    if lacking:
        line = install_line(pair for offer in lacking for pair in offer.installs)
        console.print(f"to have {', '.join(o.name for o in lacking)} as well: {line}", highlight=False, soft_wrap=True)
