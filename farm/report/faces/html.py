"""What every HTML page shares, that of one run and those of a site: templates, the style sheet, the signs of statuses, names of files."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from farm.report.faces.curve import svg
from farm.report.faces.heat import heat
from farm.report.faces.strip import spark, strip
from farm.report.faces.tree_drawing import tree_svg
from farm.report.tables.view import View, cell
from tasks.model import Status

#: Where templates, scripts and the style sheet are.
HERE = Path(__file__).parent
#: A sign for each status, so that colour is not the only signal.
SIGNS = {status.value: status.facts.sign for status in Status}


def render(
    template: str,
    title: str,
    views: Sequence[View],
    verdicts: Sequence[tuple[str, str, str]] = (),
    lead: Sequence[tuple[str, str]] = (),
    pagers: Mapping[str, Sequence[tuple[str, str]]] | None = None,
    **more: Any,
) -> str:
    """A page as text. All text in it is escaped.

    template: one that extends ``base.html.j2``; verdicts: (tone, sentence, small words before it); lead: (tone,
    sentence) below them; pagers: by view the (words, page) that it goes on in, "" for this one; more: what the template
    asks for, ``limit`` (lines of a table) and ``sources`` (of scripts, styles and pictures, as a content security
    policy says it) among it.
    """
    given = {"title": title, "views": views, "verdicts": verdicts, "lead": lead, "words_beside": False}
    return _environment().get_template(template).render({**given, "pagers": defaultdict(tuple, pagers or {}), **more})


def compile_templates() -> None:
    """Compile what every page of a run is rendered with: whoever waits for something else may do it before."""
    for name in ("page.html.j2", "base.html.j2"):
        _environment().get_template(name)


def style() -> str:
    """The style sheet of every page."""
    return _colours() + (HERE / "style.css").read_text(encoding="utf-8")


def slug(name: str) -> str:
    """The name of a page's file: readable, and another one for another name."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}.html"


def script_json(value: Any) -> str:
    """JSON that is inert inside a <script> element: it holds no <, > or &."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        extensions=["jinja2.ext.loopcontrols"],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(signs=SIGNS, cell=cell, svg=svg, heat=heat, strip=strip, spark=spark, tree_svg=tree_svg)
    made.globals["table"] = made.get_template("table.html.j2").module.table  # type: ignore[attr-defined]
    return made


def _colours() -> str:
    """The class ``s-NAME`` of each status in its colours (`tasks.model.status`), light and dark."""

    def rules(theme: str) -> str:
        pairs = {status.value: getattr(status.facts, theme).split() for status in Status}
        return "\n".join(f".s-{name} {{ --back:{back}; color:{text}; }}" for name, (back, text) in pairs.items())

    return f"{rules('light')}\n@media (prefers-color-scheme: dark) {{\n{rules('dark')}\n}}\n"
