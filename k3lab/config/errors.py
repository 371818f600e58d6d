"""The one exception that stands for a user's mistake."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake of the user, told in one line: what is wrong, what is allowed, the nearest valid name."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the allowed name closest to ``name``, or an empty string."""
    names = list(allowed)
    found = get_close_matches(name, names, n=1, cutoff=0.5)
    if not found:  # a leaf typed without its group, or the reverse
        tails = {n.rsplit(".", 1)[-1]: n for n in reversed(names)}
        leaf = get_close_matches(name.rsplit(".", 1)[-1], list(tails), n=1, cutoff=0.6)
        found = [tails[leaf[0]]] if leaf else []
    return f"; did you mean '{found[0]}'?" if found else ""
