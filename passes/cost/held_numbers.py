"""How many numbers of each element of a product a thread of a GPU keeps at once, while it computes what stands behind the product.

    %a = f(sum) ; store %g(%a) ; store %h(%a, sum)     ->     2: a store goes through shared memory, and %a and the sum are needed after it

Between stores ptxas goes on element by element, so that what it computes replaces what it computed it of. A random number is the exception:
the words of its block are mixed in rounds that ptxas does for all elements at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from xdsl.ir import Operation, SSAValue

from .machine.gpu import Gpu
from .machine.registers import OTHER


def held_numbers(
    sums: Sequence[SSAValue], ops: Sequence[Operation], stores: Collection[Operation], counts: Callable[[SSAValue], bool], draws: bool
) -> int:
    """The most numbers of an element that are kept at once. `sums`: the results of products; `ops`: what stands behind, in order, of which
    `stores` store something; `counts`: whether a value is a number of each element; `draws`: whether there are random numbers."""
    place = {op: k for k, op in enumerate(ops)}
    values = [(-1, v) for v in sums] + [(k, v) for k, op in enumerate(ops) for v in op.results if counts(v)]
    spans = [(k, max([place.get(use.operation, -1) for use in v.uses], default=-1)) for k, v in values]
    kept = [sum(made <= place[store] < last for made, last in spans) for store in stores]
    return max(len(sums), *kept, len(sums) + OTHER.random if draws else 0)


def fits_registers(elements: int, warps: int, held: int, gpu: Gpu) -> bool:
    """Whether the threads of a program have registers for `held` numbers of each of its elements."""
    return elements * held // (warps * gpu.lanes) + OTHER.product <= gpu.thread_registers
