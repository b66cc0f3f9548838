"""What is printed of a culprit: no more than a screen."""

from __future__ import annotations

from farm.reproduction.find_case import StoredCase
from farm.reproduction.show_case import format_reproduced_status, print_name_and_text
from tasks.wire import Found

#: Tensors of a node, nodes of a window that are printed.
_TENSORS, _NODES = 4, 4


def print_case_of_culprit(case: StoredCase) -> None:
    """The row that failed."""
    print_name_and_text("case", case.key.case_id)
    units = case.row.get("error_units")
    said = f" at {units:.3g} error units" if units is not None else ""
    print_name_and_text(
        "stored", f"{format_reproduced_status(case.row)}{said} on {case.key.backend}, run {case.key.run_id}"
    )


def print_located_culprit(case: StoredCase, found: Found, seconds: float, *, last: bool = False) -> None:
    """The culprit with its facts, how it is known, and the next command, unless this was the ``last``."""
    facts = found.facts
    print_name_and_text("culprit", found.columns.get("culprit") or "none could be named")
    if facts.get("units") is not None:
        print_name_and_text(
            "own error", f"{facts['units']:.3g} error units of its own floor, on the inputs that the backend gave it"
        )
    nodes = facts.get("nodes", [])
    for node in nodes[:_NODES]:
        attributes = ", ".join(f"{name}={value}" for name, value in node["attributes"].items())
        print_name_and_text("node", f"{node['name']}: {node['op']}({attributes})")
        if node.get("module"):
            print_name_and_text("  module", node["module"])
        for words in ("inputs", "outputs"):
            shown = node[words][:_TENSORS]
            more = len(node[words]) - len(shown)
            print_name_and_text(f"  {words}", ", ".join(shown) + (f" and {more} more" if more else ""))
    if len(nodes) > _NODES:
        print_name_and_text("", f"and {len(nodes) - _NODES} nodes more")
    if facts.get("alone") is not None:
        print_name_and_text(
            "alone", "it fails by itself as well" if facts["alone"] else "by itself, on exact inputs, it does not fail"
        )
    for number, why in enumerate(facts.get("why", [])):
        print_name_and_text("known by" if not number else "", why)
    print_name_and_text("took", f"{seconds:.0f} s")
    if found.item is not None and not last:
        # Not wrapped: it is to be copied.
        print(f"{'next':13} farm localise '{case.key}' --out culprit   # its nodes alone, with their inputs")
