"""Kinds of tokens, so that what a model does can be told by what it reads.

C classes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from k3lab.config.errors import UserError

RANGES = 8  # classes of a vocabulary that has no text form
NEWLINE, SPACE, WORD, LOWER, CAPITAL, DIGIT, BRACKET, QUOTE, PUNCTUATION, FOREIGN, OTHER = ORDER = (
    *("line break", "space", "word after a space", "small letters", "capital letters", "digits", "brackets"),
    *("quotes", "punctuation", "not ASCII", "other"),
)
BRACKETS = set("()[]{}<>")
QUOTES = set("'\"`")


class TokenClasses(NamedTuple):
    """Labels of C classes, and the class of every token id."""

    labels: list[str]
    of_token_V: Tensor  # int64


def classify(vocab_size: int, decode: Callable[[list[int]], str]) -> TokenClasses:
    """Classes by the text of each token; equal ranges of ids where there is no text or it tells nothing apart."""
    try:
        found = [text_class(decode([i])) for i in range(vocab_size)]
    except UserError:
        found = []
    labels = [label for label in ORDER if label in found]
    if len(labels) < 2:
        return _ranges(vocab_size)
    return TokenClasses(labels, torch.tensor([labels.index(label) for label in found]))


def text_class(text: str) -> str:
    """The class of a token by its text."""
    bare = text.strip(" ")
    if "\n" in text or "\r" in text:
        return NEWLINE
    if not bare.strip():
        return SPACE if text else OTHER
    if not bare.isascii():
        return FOREIGN
    if bare.isalpha() or bare.replace("_", "").isalpha():
        if bare != text and text.startswith(" "):
            return WORD
        return LOWER if bare == bare.lower() else CAPITAL
    if bare.isdigit():
        return DIGIT
    if set(bare) <= BRACKETS:
        return BRACKET
    if set(bare) <= QUOTES:
        return QUOTE
    if not any(c.isalnum() for c in bare) and bare.isprintable():
        return PUNCTUATION
    return OTHER


def _ranges(vocab_size: int) -> TokenClasses:
    of_token_V = torch.arange(vocab_size) * RANGES // vocab_size
    ends = [(of_token_V == c).nonzero().flatten() for c in range(RANGES)]
    present = [ids for ids in ends if len(ids)]
    labels = [f"ids {int(ids[0])}–{int(ids[-1])}" for ids in present]
    _, of_token_V = of_token_V.unique(return_inverse=True)
    return TokenClasses(labels, of_token_V)
