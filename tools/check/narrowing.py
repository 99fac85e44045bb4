"""The one of many names that matters, by halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def narrowed(names: Sequence[str], is_right: Callable[[list[str]], bool]) -> str:
    """The last of the shortest beginning of `names` that makes it right; "" if all of them do not."""
    if not names or not is_right([*names]):
        return ""
    low, high = 0, len(names)
    while high - low > 1:
        middle = (low + high) // 2
        if is_right([*names[:middle]]):
            high = middle
        else:
            low = middle
    return names[high - 1]
