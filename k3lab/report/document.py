"""A page as a list of blocks, which one renderer turns into HTML and another one into Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Strong:
    """Words that stand out."""

    text: str


@dataclass(frozen=True)
class Code:
    """A name or a value as it is typed."""

    text: str


Part = str | Strong | Code
Text = Sequence[Part]  # one line of prose; a plain string is text too


@dataclass(frozen=True)
class Heading:
    """A section begins."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    text: Text


@dataclass(frozen=True)
class Bullets:
    """Points of a list."""

    items: Sequence[Text]


@dataclass(frozen=True)
class Lead:
    """The answer, before anything else."""

    text: Text
    points: Sequence[Text] = ()


@dataclass(frozen=True)
class Notice:
    """What a reader must know before trusting the page."""

    title: str
    items: Sequence[Text]


@dataclass(frozen=True)
class Cell:
    """A cell; ``tone`` is better, worse, quiet or empty."""

    text: Text
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first column is text, the others are numbers unless ``prose`` lists them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: Text = ()
    prose: Sequence[int] = (0,)


@dataclass(frozen=True)
class Picture:
    """A figure in figures/NAME.png."""

    name: str
    alt: str
    caption: Text


@dataclass(frozen=True)
class Commands:
    """Command lines."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Terms:
    """A glossary: term and meaning."""

    items: Sequence[tuple[str, Text]]


Block = Heading | Paragraph | Bullets | Lead | Notice | Table | Picture | Commands | Terms


@dataclass
class Document:
    """A page."""

    title: str
    subtitle: str
    blocks: list[Block] = field(default_factory=list)


def parts(text: Text) -> list[Part]:
    """Return a text as its parts."""
    return [text] if isinstance(text, str) else list(text)


def plain(text: Text) -> str:
    """Return a text without its marks."""
    return "".join(p if isinstance(p, str) else p.text for p in parts(text))
