"""Which mixer each decoder layer has."""

from __future__ import annotations

from collections.abc import Sequence


def layer_pattern(
    pattern: Sequence[str] | None, last_mixer: str | None, layers: int, selected: Sequence[str]
) -> list[str]:
    """Return one mixer name a layer.

    A pattern repeats over the layers. Without one, a single selected mixer serves all layers, and two, a and b,
    give Kimi K3's rhythm: a, a, a, b repeated, ending in b. ``last_mixer`` has the last word on the last layer.
    """
    if pattern is None:
        if len(selected) > 2:
            raise ValueError(f"model.pattern=null: must be given when mixer={list(selected)} selects more than two")
        first, last = selected[0], selected[-1]
        pattern = [first, first, first, last]
        last_mixer = last_mixer or last
    names = [pattern[i % len(pattern)] for i in range(layers)]
    if last_mixer is not None:
        names[-1] = last_mixer
    return names
