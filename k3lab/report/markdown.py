"""The document as Markdown, with its figures beside it: for a repository's README."""

from __future__ import annotations

import re
from collections.abc import Sequence

from k3lab.report.document import (
    Block,
    Bullets,
    Cell,
    Code,
    Commands,
    Document,
    Heading,
    Lead,
    Notice,
    Paragraph,
    Picture,
    Strong,
    Table,
    Terms,
    Text,
    parts,
)

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def render(document: Document) -> str:
    """Return the page as Markdown."""
    blocks = [f"# {escape(document.title)}", escape(document.subtitle), *map(_block, document.blocks)]
    return "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split(" ")).replace("\n", " "))


def inline(text: Text) -> str:
    """Return one line of prose."""
    found = []
    for part in parts(text):
        if isinstance(part, Strong):
            bare = part.text.strip()
            found.append(f"**{escape(bare)}**" + " " * (len(part.text) - len(part.text.rstrip())) if bare else "")
        elif isinstance(part, Code):
            fence = "`" * (1 + max((len(m) for m in re.findall(r"`+", part.text)), default=0))
            room = " " if "`" in part.text else ""
            found.append(f"{fence}{room}{part.text.replace(chr(10), ' ').replace('|', chr(92) + '|')}{room}{fence}")
        else:
            found.append(escape(part))
    return "".join(found)


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {escape(block.text)}"
    if isinstance(block, Paragraph):
        return inline(block.text)
    if isinstance(block, Bullets):
        return _bullets(block.items)
    if isinstance(block, Lead):
        return "\n\n".join([inline(block.text), *([_bullets(block.points)] if block.points else [])])
    if isinstance(block, Notice):
        return f"**{escape(block.title)}**\n\n{_bullets(block.items)}"
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Picture):
        return f"![{escape(block.alt)}](figures/{block.name}.png)\n\n{inline(block.caption)}"
    if isinstance(block, Commands):
        return "```bash\n" + "\n".join(block.lines) + "\n```"
    assert isinstance(block, Terms)
    return "\n".join(f"- **{escape(term)}**: {inline(meaning)}" for term, meaning in block.items)


def _bullets(items: Sequence[Text]) -> str:
    return "\n".join(f"- {inline(item)}" for item in items)


def _table(table: Table) -> str:
    rule = ["---" if i in table.prose else "---:" for i in range(len(table.columns))]
    rows = [
        [escape(title) for title in table.columns],
        rule,
        *([_cell(c) for c in row] for row in table.rows),
    ]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{text}\n\n{inline(table.caption)}" if table.caption else text


def _cell(cell: Cell) -> str:
    return inline(cell.text).replace("\n", " ")
