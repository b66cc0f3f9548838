"""The order of a sum as a picture on a page."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from tasks.passport.sum_trees import decode_tree, draw_tree_as_svg


def draw_tree_svg(parents: Sequence[int]) -> Markup:
    """An SVG of a tree as `tasks.passport.sum_trees.encode_tree` has it."""
    return Markup(draw_tree_as_svg(decode_tree(parents)))  # numbers alone: nothing in it comes from elsewhere
