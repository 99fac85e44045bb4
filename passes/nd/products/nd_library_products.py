"""nd-library-products: matrix products and convolutions of a GPU as calls of the library.

    %p = nd.matmul %a, %b ; %y = nd.add %p, %bias     ->   aten.addmm(%bias, %a, %b), where nothing else needs the product
    %z = nd.relu %y           (cheaper so)            ->   aten._addmm_activation(%bias, %a, %b): see library_epilogues
    %p = nd.matmul %a, %b   (rank over 2)             ->   aten.bmm of the operands with one batch dimension
    %p = nd.matmul %a, %b   (tiny)                    ->   nd.mul ; nd.reduce, a kernel of ours: a call costs the host more than that
    %p = nd.matmul %a, %b   (N x 3 times 3 x 3)       ->   the same: a call would take times as long as reading and writing
    %p = nd.matmul %a, %b   (cheaper so)              ->   the same, which fuses with what is around it: see product_choice
    %f = nd.cat %a, %b      (a factor of such)        ->   a sum for each part, or a selection: see joined_factors
    aten._grouped_mm          (cheaper so)            ->   the same: see grouped_products
    %y = nd.extern _scaled_mm, _int_mm                ->   the same for 8-bit factors: see scaled_products
    %o = nd.extern _scaled_dot_product_... (cheaper)  ->   products and a softmax, one kernel of ours: see library_attention
    %c = nd.conv %x, %w, %bias                        ->   nd.conv %x, %w ; nd.add, which fuses with what follows
    %c = nd.conv %x, %w, %bias   (cheaper so)         ->   multiplications and a sum, as products: see convolutions/nests
    %c = nd.conv %x, %w {transposed} (cheaper so)     ->   a product for each phase: see convolutions/phases
    %dx, %dw = aten.convolution_backward              ->   the gradient by the image as a convolution: see convolutions/gradients
    %c = nd.conv %x, %w     (1x1, small, of float32)  ->   aten.bmm of channels and pixels; its gradients too: see pixel_products

The library's kernels take transposed operands as they lie; a batch of several dimensions that do not follow each other in memory is copied.
Rows whose length is odd keep the library from its fast kernels: see product_padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, as_expr, product
from ....dialects.machine import has_fixed_order, has_library, records_launches
from ....dialects.nd.base import ExprsAttr
from ....dialects.nd.pointwise import OPS, CastOp
from ....dialects.nd.types import FLOATS, tensor_type
from ....dialects.support.replace import erase_op
from ...analysis.schedule_attrs import CARRIED, int_attr
from ...analysis.symbols import symbol_hints
from ...cost.library_cost import size
from ...cost.machine import Gpu, machine_of
from ...cost.machine.gpu_rates import HOST_BOUND_CONVOLUTION
from ...manager.pass_manager import Pass
from ..algebra.rewriter import Rewriter
from ..library_attention import PricedAttention, cheaper_generated, priced_attention
from ..nd_attention import keeps_eager_numerics
from ..row_blocks.begun_reductions import look_up_early
from .carried_scores import exact_factors, without_cast
from .convolutions.gradients import split_image_gradients, take_back, without_image_gradient
from .convolutions.nests import as_product, is_depthwise
from .convolutions.phases import as_phases
from .factor_types import FactorTypes
from .grouped_products import as_grouped_terms
from .joined_factors import as_selection, selected_factors, terms_by_part
from .library_epilogues import Activation, biased, product_and_bias
from .nd_small_convolutions import as_windows, without_library
from .ordered_products import ordered_product
from .ordered_rows import widen_rows
from .pixel_products import convolution_as_product, gradients_as_products
from .product_choice import Candidate, Choice, ProductChooser, Seconds
from .product_padding import PART_BYTES, padded_product, product_call
from .product_terms import EXACT, as_terms, with_bias
from .scaled_products import ScaledProduct, block_terms, scaled_product

MAX_OWN_MULTIPLICATIONS = 1 << 17
"""Multiplications of a product up to which a kernel of ours is faster: an extern call takes longer on the host than a launch
(docs/lab/constants.md)."""


def is_tiny(op: nd.MatmulOp, hints: Mapping[str, int], most: int) -> bool:
    """Whether a product has at most `most` multiplications. How many rows it has may be a symbol, which counts with its hint; what a row
    takes is known."""
    t = tensor_type(op.result)
    depth = tensor_type(op.lhs).dims[-1]
    fixed = depth.value is not None and t.dims[-1].value is not None
    return fixed and size(product((*t.dims, depth)), hints) <= most and t.element_type in FLOATS


def is_short(op: nd.MatmulOp, most: int) -> bool:
    """Whether the sums of a product have at most `most` terms, and its result at most as many rows, or columns."""
    t = tensor_type(op.result)
    depth = tensor_type(op.lhs).dims[-1]
    sides = [n.value for n in t.dims[-2:] if n.value is not None]
    return depth.value is not None and bool(sides) and max(depth.value, min(sides)) <= most and t.element_type in FLOATS


def as_call(rw: Rewriter, op: nd.MatmulOp, part: int) -> SSAValue | None:
    """A product as aten.mm or aten.bmm. `part`: see `padded_product`."""
    t = tensor_type(op.result)
    if t.rank == 2:
        return None if biased(op) is not None else padded_product(rw, op.lhs, op.rhs, None, t, part) or product_call(rw, op.operands, t)
    flat = [_flat(rw, x) for x in (op.lhs, op.rhs)]
    batch, rows, depth = tensor_type(flat[0]).dims
    columns = t.dims[-1]
    made = product_call(rw, flat, t.with_dims((batch, rows, columns)))
    return made if t.rank == 3 else rw.new(nd.ReshapeOp.new((made,), t))


def _flat(rw: Rewriter, x: SSAValue) -> SSAValue:
    """An operand with one batch dimension."""
    t = tensor_type(x)
    if t.rank == 3:
        return x
    return rw.new(nd.ReshapeOp.new((x,), t.with_dims((product(t.dims[:-2]), *t.dims[-2:]))))


def convolution_bias(rw: Rewriter, op: Operation) -> SSAValue | None:
    """The bias of a convolution as an addition after it."""
    assert isinstance(op, nd.ConvOp)
    if len(op.operands) != 3:
        return None
    t, bias = tensor_type(op.result), op.operands[2]
    attributes = dict(op.attributes)
    if isinstance(layouts := attributes.get("operand_layouts"), ArrayAttr):
        attributes["operand_layouts"] = ArrayAttr(layouts.data[:2])
    if isinstance(choices := attributes.get("layout_choices"), ArrayAttr):
        attributes["layout_choices"] = ArrayAttr([_without_bias(one) for one in choices])
    bare = nd.ConvOp.create(operands=op.operands[:2], result_types=[t], properties=op.properties, attributes=attributes)
    column = tensor_type(bias).with_dims((*tensor_type(bias).dims, *(ONE for _ in range(t.rank - 2))))
    return rw.new(OPS["add"].create(operands=[rw.new(bare), rw.new(nd.ReshapeOp.new((bias,), column))], result_types=[t]))


def _without_bias(choice: Attribute) -> DictionaryAttr:
    """One of `layout_choices` of a convolution that has lost its bias."""
    assert isinstance(choice, DictionaryAttr) and isinstance(operands := choice.data["operands"], ArrayAttr)
    return DictionaryAttr({**choice.data, "operands": ArrayAttr(operands.data[:2])})


def _parted(candidates: Sequence[Candidate], chosen: Mapping[Operation, Choice]) -> dict[Operation, Choice]:
    """Products of blocks of columns, where one was, each as is chosen for that one."""
    made: dict[Operation, Choice] = {}
    for one in candidates:
        (op,) = one.ops
        assert isinstance(op, nd.MatmulOp)
        for part in one.parts:
            new = _columns(op, part)
            made[new] = chosen[op]
    return made


def _columns(op: nd.MatmulOp, part: nd.SliceOp) -> nd.MatmulOp:
    """The product of which a slice of another one's columns is the result."""
    t, b, kept = tensor_type(op.result), tensor_type(op.rhs), tensor_type(part.result)
    start, width = part.starts.data[-1], kept.dims[-1]
    zeros, ones = [as_expr(0)] * (b.rank - 1), [ONE] * b.rank
    rhs = nd.SliceOp.new((op.rhs,), b.with_dims((*b.dims[:-1], width)), starts=ExprsAttr.get([*zeros, start]), steps=ExprsAttr.get(ones))
    new = nd.MatmulOp.new((op.lhs, rhs.result), t.with_dims((*t.dims[:-1], width)), **op.properties)
    ops: list[Operation] = [rhs, new]
    if kept.dims != tensor_type(new.result).dims:
        ops.append(nd.ReshapeOp.new((new.result,), kept))
    assert (block := part.parent) is not None
    block.insert_ops_before(ops, part)
    new.result.name_hint = part.result.name_hint or op.result.name_hint
    part.result.replace_all_uses_with(ops[-1].results[0])
    erase_op(part)
    return new


@dataclass(frozen=True)
class NdLibraryProducts(Pass):
    """Makes library calls of matrix products, with their bias, and takes the bias out of convolutions."""

    name = "nd-library-products"

    tiny: int = MAX_OWN_MULTIPLICATIONS
    """Multiplications of a product up to which it becomes a kernel of ours."""

    small: int = HOST_BOUND_CONVOLUTION.elements
    """Numbers in input and result below which a 1x1 convolution of float32, and its gradients, become products; 0: none does."""

    part: int = PART_BYTES
    """Bytes of a product for the caller that is made at once, where its rows are padded (product_padding.py); 0: all of it."""

    library: Literal["always", "price", "never"] = "price"
    """When a product, or a convolution, of 16-bit numbers is a call of the library on a GPU with units for such products: `always`, `price`
    (where that is cheaper) or `never`; see product_choice.py and carried_scores.py."""

    short: int = 0
    """Terms of a sum, and rows or columns of the result, up to which a product is a kernel of ours whatever the other side is: it takes the
    time of reading and writing, and fuses with what is around it; 0: none is."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        hints = symbol_hints(op)
        symbols, types = nd.symbol_ranges(op), FactorTypes.of(op)
        scaled: dict[Operation, ScaledProduct] = {}
        everything, ordered = not has_library(op), has_fixed_order(op)
        chooser = ProductChooser(
            machine_of(op, Gpu), hints, symbols, "never" if everything else self.library, types, scaled, self.seconds(ctx, op)
        )
        chosen: dict[Operation, Choice] = {}
        activations: dict[Operation, Activation] = {}
        joined: set[Operation] = set()
        carrying: set[Operation] = set()

        def own_kernel(rw: Rewriter, op: nd.MatmulOp, bias: SSAValue | None = None) -> SSAValue | None:
            """A product, and its bias, as multiplications and a sum."""
            if ordered:
                return ordered_product(rw, op, bias)
            one = scaled.get(op)
            if one is not None and one.blocks:
                self.remark(op, str(chosen[op]), "applied")
                return with_bias(rw, block_terms(rw, one), bias)
            if is_tiny(op, hints, self.tiny):
                return as_terms(rw, op, bias=bias)
            if is_short(op, self.short):
                self.remark(op, f"multiplications and a sum: at most {self.short} terms, and rows or columns (short)", "applied")
                return as_terms(rw, op, bias=bias)
            choice = chosen.get(op)
            if choice is not None and choice.reason:
                self.remark(op, str(choice), "applied" if choice.generated else "missed")
            if choice is None or not choice.generated:
                return as_terms(rw, op, bias=bias) if everything else None
            if choice.carries_scores:
                carrying.add(op)
            casts = exact_factors(op) if one is None else one.casts
            if casts is not None:
                pairs = [(without_cast(rw, op.lhs, casts[0]), without_cast(rw, op.rhs, casts[1]))]
                sums = EXACT if one is None or one.sums is None else StringAttr(one.sums)
                return as_terms(rw, op, rounded=True, bias=bias, pairs=pairs, sums=sums)
            return as_terms(rw, op, rounded=True, bias=bias, pairs=terms_by_part(rw, op))

        def biased_product(rw: Rewriter, found: Operation) -> SSAValue | None:
            """product + bias as one kernel, or one call."""
            pair = product_and_bias(found)
            if pair is None:
                return None
            op, bias = pair
            t = tensor_type(op.result)
            made = own_kernel(rw, op, bias)
            if made is None and op in chosen and chosen[op].activation is not None:
                return None  # its call is made for what stands behind
            return made or padded_product(rw, op.lhs, op.rhs, bias, t, self.part) or product_call(rw, (bias, op.lhs, op.rhs), t)

        def library_epilogue(rw: Rewriter, found: Operation) -> SSAValue | None:
            one = activations.get(found)
            return None if one is None or biased(one.product) is None else one.call(rw)  # else it is a kernel of ours

        def own_product(rw: Rewriter, found: Operation) -> SSAValue | None:
            assert isinstance(found, nd.MatmulOp)
            return None if biased(found) is not None else own_kernel(rw, found)

        def library_product(rw: Rewriter, found: Operation) -> SSAValue | None:
            return as_call(rw, found, self.part) if isinstance(found, nd.MatmulOp) and not everything else None

        def joined_factor(rw: Rewriter, found: Operation) -> SSAValue | None:
            return as_selection(rw, found) if isinstance(found, nd.CatOp) and found in joined else None

        def own_convolution(rw: Rewriter, found: Operation) -> SSAValue | None:
            choice = chosen.get(found)
            if not isinstance(found, nd.ConvOp):
                return None
            if choice is not None and choice.reason:
                self.remark(found, str(choice), "applied" if choice.generated else "missed")
            if choice is None or not choice.generated:
                return without_library(rw, found, as_windows) if everything else None
            if is_depthwise(found):
                return as_windows(rw, found, contract=True)
            return as_product(rw, found) if found.transposed is None else as_phases(rw, found)

        def grouped_product(rw: Rewriter, found: Operation) -> SSAValue | None:
            choice = chosen.get(found)
            if choice is None or not isinstance(found, nd.ExternOp):
                return None
            if choice.reason:
                self.remark(found, str(choice), "applied" if choice.generated else "missed")
            return as_grouped_terms(rw, found) if choice.generated else None

        def pixel_product(rw: Rewriter, found: Operation) -> SSAValue | None:
            as_product = convolution_as_product if isinstance(found, nd.ConvOp) else gradients_as_products
            made = as_product(rw, found, hints, self.small)  # pyright: ignore[reportArgumentType]
            if made is not None:
                self.remark(found, f"products of channels and pixels: fewer than {self.small} numbers of float32 (small)", "applied")
            return made

        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            if not any(isinstance(o, (nd.MatmulOp, nd.ConvOp, nd.ExternOp)) for o in func.body.block.ops):
                continue
            if ordered and (wide := widen_rows(func, symbols)):
                self.statistic("num-widened", wide)
            if self.library == "price" and not everything and not keeps_eager_numerics(op):
                self._spell_attention(func, chooser)
            calls = [scaled_product(o) for o in list(func.body.block.ops) if isinstance(o, nd.ExternOp)]
            scaled.clear()
            scaled.update((one.product, one) for one in calls if one is not None)
            gradients = split_image_gradients(func)
            found, parted = chooser.choose(func)
            for conv, call in gradients.items():
                if found[conv].generated:
                    without_image_gradient(call)
                    continue
                self.remark(call, str(found.pop(conv)), "missed")
                take_back(conv, call)
            for one in list(scaled.values()):
                if ordered or not found[one.product].generated and (one.blocks or not is_tiny(one.product, hints, self.tiny)):
                    del scaled[one.product]
                    self.remark(one.as_call(), str(found.pop(one.product)), "missed")
            chosen = {**found, **_parted(parted, found)}
            activations = {one.activation.last: one.activation for one in found.values() if one.activation is not None}
            for one in [o for o, choice in chosen.items() if choice.generated and isinstance(o, nd.MatmulOp) and not ordered]:
                self.statistic("looked-up", look_up_early(one, hints))
            joined = selected_factors(o for o in func.body.block.ops if isinstance(o, nd.MatmulOp) and o in chosen and chosen[o].generated)
            rules = {
                OPS["add"]: [biased_product], nd.MatmulOp: [own_product, library_product], nd.CatOp: [joined_factor],
                nd.ConvOp: [own_convolution, convolution_bias, pixel_product], nd.ExternOp: [grouped_product, pixel_product],
                CastOp: [library_epilogue], OPS["relu"]: [library_epilogue],
            }  # fmt: skip
            rewriter = Rewriter(func, rules, symbols)  # pyright: ignore[reportArgumentType]
            carrying.clear()
            rewriter.run()
            if carrying:
                func.attributes[CARRIED] = int_attr(len(carrying))
            named = (library_epilogue, biased_product, own_product, library_product, joined_factor, own_convolution, convolution_bias)
            for rule in (*named, grouped_product, pixel_product):
                self.statistic(rule.__name__.replace("_", "-"), rewriter.changed.get(rule.__name__, 0))

    def seconds(self, ctx: Context, module: ModuleOp) -> Seconds | None:
        """What measures candidates of a module; None: the price alone decides."""
        return None

    def _spell_attention(self, func: FuncOp, chooser: ProductChooser) -> None:
        """Attention of the library becomes products and a softmax where a kernel of ours is cheaper."""
        found = priced_attention(func, chooser.gpu, chooser.hints)
        if not found:
            return
        chosen: dict[Operation, PricedAttention] = {
            one.op: one for one in cheaper_generated(found, *chooser.library_products(func), records_launches(func))
        }
        for one in found:
            way = ("generated", "applied") if one.op in chosen else ("a call of the library", "missed")
            self.remark(one.op, f"{way[0]}: by price ({one})", way[1])

        def attention(rw: Rewriter, op: Operation) -> SSAValue | None:
            return chosen[op].call.with_own_keys(rw).spelled(rw, weigh_narrow=True) if op in chosen else None

        rewriter = Rewriter(func, {nd.ExternOp: [attention]}, chooser.symbols)  # pyright: ignore[reportArgumentType]
        rewriter.run()
        self.statistic("spelled-attention", rewriter.changed.get("attention", 0))
