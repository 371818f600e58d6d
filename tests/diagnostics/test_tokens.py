"""Classes of tokens by their text, and by their ids where there is no text."""

from __future__ import annotations

import pytest

from k3lab.config.errors import UserError
from k3lab.diagnostics.tokens import classify, text_class


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n", "line break"),
        (";\n", "line break"),
        ("\t", "space"),
        ("    ", "space"),
        ("e", "small letters"),
        ("ing", "small letters"),
        ("my_name", "small letters"),
        ("E", "capital letters"),
        ("True", "capital letters"),
        (" the", "word after a space"),
        (" The", "word after a space"),
        ("2024", "digits"),
        (" 7", "digits"),
        ("({", "brackets"),
        ('"', "quotes"),
        ("==", "punctuation"),
        ("_", "punctuation"),
        ("é", "not ASCII"),
        ("\ufffd", "not ASCII"),
        ("x2", "other"),
        ("\x00", "other"),
        ("", "other"),
    ],
)
def test_text_class(text: str, expected: str) -> None:
    assert text_class(text) == expected


def test_bytes() -> None:
    classes = classify(256, lambda ids: bytes(ids).decode("utf-8", "replace"))
    label = [classes.labels[c] for c in classes.of_token_V.tolist()]
    assert len(label) == 256
    assert (label[ord("a")], label[ord(" ")], label[200]) == ("small letters", "space", "not ASCII")
    assert set(label) == set(classes.labels)


def no_text(ids: list[int]) -> str:
    raise UserError("no text form")


@pytest.mark.parametrize("decode", [no_text, lambda ids: str(ids[0])])
def test_ranges_where_text_tells_nothing(decode) -> None:
    classes = classify(20, decode)
    assert classes.labels[0] == "ids 0–2"
    assert classes.labels[-1] == "ids 18–19"
    assert classes.of_token_V.tolist() == [i * 8 // 20 for i in range(20)]
    assert classify(3, decode).labels == ["ids 0–0", "ids 1–1", "ids 2–2"]
