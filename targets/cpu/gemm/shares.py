"""How work that is a grid is cut into parts for threads: batches and rectangles of a product, heads and rows of an attention."""

from __future__ import annotations

from .ir import Function, Value

UNREACHED_COST = 1 << 62


def best_split(f: Function, wanted: Value, outer: Value, inner: Value, grain: int = 1, size: Value | None = None) -> tuple[Value, Value]:
    """Into how many parts `outer` items and the `inner` units of each are cut, at most `wanted` parts in all; each number is at least 1.
    `grain`, `size`: an item is so many columns, say, of `size` in all, so that the last item may have fewer.

    Of all cuts the one whose largest part is the smallest: min(ceil(outer / p) * grain, size) * (ceil(inner / q) + 1). The unit on top is
    what each part does again for its items: it packs them, or reads them. Of equal cuts the one with the fewest parts along `outer`."""
    most = f.min(wanted, outer)
    with f.loop(1, f.add(most, 1), carry=(("i64", 1), ("i64", UNREACHED_COST))) as part:
        parts, least = part.values
        inside = f.min(f.div(wanted, part.i), inner)
        items = f.ceil_div(outer, part.i)
        largest = items if size is None else f.min(f.mul(items, grain), size)
        price = f.mul(largest, f.add(f.ceil_div(inner, inside), 1))
        better = f.cmp("slt", price, least)
        part.next = [f.pick(better, part.i, parts), f.pick(better, price, least)]
    found = part.results[0]
    return found, f.min(f.div(wanted, found), inner)
