"""The document as one HTML file: images inside it, nothing to fetch, legible on a screen and on paper."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from k3lab.report.document import Block, Code, Document, Part, Strong, parts, plain

HERE = Path(__file__).parent
_NUMBER = re.compile("([+−]?[\\d.\u202f]+ ± [\\d.\u202f]+)")


def render(document: Document, folder: Path) -> str:
    """Return the page; its figures are read from ``folder``/figures."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "parts": parts,
        "starts_strong": lambda t: isinstance(parts(t)[0], Strong),
        "plain": plain,
        "mark": _mark,
        "whole": _whole,
        "kind": lambda b: type(b).__name__,
    }
    template = environment.get_template("page.html.jinja")
    return template.render(document=document, image=lambda name: _inline(folder / "figures" / f"{name}.png"))


def _whole(text: str) -> Markup:
    """Escape a text and keep each number with its interval on one line."""
    return Markup(_NUMBER.sub(r'<span class="whole">\1</span>', str(escape(text))))


def _mark(part: Part) -> str:
    return "strong" if isinstance(part, Strong) else "code" if isinstance(part, Code) else ""


def _kind(block: Block) -> str:
    return type(block).__name__


def _inline(file: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
