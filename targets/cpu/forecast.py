"""Which functions of the library a graph will call, guessed when its algebra is done: attention is a call of its own then, and its products
are gone.

The guess starts work early (`library.prepare`); what is really called is decided by the pass "contract-select" on buffers, whose strides
nobody knows yet. Here an operand counts as transposed when the permutations that it comes from move the last dimension.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import nd
from ...dialects.expr import ONE
from ...dialects.nd.base import prop
from ...dialects.nd.call_args import Call
from ...dialects.nd.pointwise import OPS, CastOp
from ...dialects.nd.types import tensor_type
from ...dialects.support.gemm_types import BYTES, FACTORS, PANEL_BYTES, PANEL_UNIT_BYTES
from ...lowering.mem_to_cpu.attention import DTYPES as ATTENTION_DTYPES
from ...lowering.mem_to_cpu.attention import GENERATED, flash_call
from ...lowering.mem_to_cpu.contract import DTYPES
from ...passes.analysis.symbols import DEFAULT_SIZE
from ...passes.analysis.weighed_calls import WeighedCall
from ...passes.nd.quantised.affine_factors import BYTES as BYTE_TYPES
from ...passes.nd.quantised.int4_calls import int4_call
from ...passes.nd.quantised.int4_row_calls import Int4RowsCall
from .attention.spec import AttentionSpec, WeighedSpec
from .features import target
from .gemm.choice import prefer_own_gemm
from .gemm.int4 import Int4Spec, has_int4
from .gemm.int4_rows import Int4RowsSpec
from .gemm.spec import ISAS, GemmSpec, isa_for


def expected_functions(module: ModuleOp) -> list[str]:
    """The symbols of the generated functions that the products, and the generated calls, of a module of tensors are likely to become,
    each once."""
    isa = isa_for(target()).name
    ops = [op for func in module.body.block.ops if isinstance(func, FuncOp) for block in func.body.blocks for op in block.ops]
    found = [_product(op, isa) if type(op) is nd.MatmulOp else _call(op, isa) for op in ops if type(op) in (nd.MatmulOp, nd.ExternOp)]
    return list(dict.fromkeys(symbol for symbol in found if symbol))


def _product(op: Operation, isa: str) -> str:
    """The function of a product; "" where it is likely to be a nest, or ATen's."""
    lhs, rhs = op.operands
    type_a, type_b = tensor_type(lhs), tensor_type(rhs)
    dtype = DTYPES.get(type_a.element_type)
    if dtype is None:
        return ""
    (m, k), n = type_a.dims[-2:], type_b.dims[-1]
    sizes = [int(e) if e.is_const else DEFAULT_SIZE for e in (m, n, k)]
    layout = _is_transposed(lhs), _is_transposed(rhs)
    if sizes[1] == 1 and sizes[0] != 1:  # computed as a row, see `row_major`
        sizes = [1, sizes[0], sizes[2]]
        layout = False, not layout[0]
    source = _narrow_source(rhs) if dtype in FACTORS else None
    narrow = _type_of(source)
    if source is not None and narrow in FACTORS.get(dtype, ())[1:]:
        a = _type_of(_narrow_source(lhs))
        kind = a if narrow in FACTORS.get(a, ()) else dtype
        if kind == a and (panels := _panels(source)):
            return GemmSpec(kind, _sums(kind), layout[0], isa=isa, b=narrow, panels=panels).shared_symbol
        return GemmSpec(kind, _sums(kind), *layout, isa=isa, b=narrow).shared_symbol
    if (panels := _panels(rhs)) and dtype == "f32":
        return GemmSpec(dtype, trans_a=layout[0], isa=isa, panels=panels).shared_symbol
    if not prefer_own_gemm(sizes[0], sizes[1], sizes[2], dtype, *layout):
        return ""
    return GemmSpec(dtype, trans_a=layout[0], trans_b=layout[1], isa=isa).shared_symbol


def _call(op: Operation, isa: str) -> str:
    """The function of a call that is generated; "" for another one."""
    if prop(op, "schedule") != GENERATED:
        return ""
    call: Call = prop(op, "call")
    rows, int4 = Int4RowsCall.of(call), int4_call(call)
    if (rows or int4) and not has_int4(ISAS[isa]):
        return ""
    if rows is not None:
        x, scales = (ATTENTION_DTYPES[tensor_type(op.operands[k]).element_type] for k in (0, 2))
        return Int4RowsSpec(x, isa, scales, rows.parts, rows.part_groups, rows.zeros).shared_symbol
    if int4 is not None:
        return Int4Spec(ATTENTION_DTYPES[tensor_type(op.operands[0]).element_type], isa).shared_symbol
    return _attention(op, call, isa)


def _attention(op: Operation, call: Call, isa: str) -> str:
    """The function of a call of attention; "" for another call."""
    weighed, flash = WeighedCall.of(call), flash_call(call)
    if weighed is None and flash is None:
        return ""
    dtype = ATTENTION_DTYPES.get(tensor_type(op.operands[0]).element_type)
    if dtype is None:
        return ""
    if weighed is None:
        return AttentionSpec(dtype, isa).shared_symbol
    counts = len(weighed.scales), len(weighed.rows)
    return WeighedSpec(dtype, isa, *counts, weighed.softmax, weighed.scaled, weighed.added, weighed.placed).shared_symbol


def _sums(dtype: str) -> str:
    """The type of a product that is scaled when it is made."""
    return "i32" if dtype in BYTES else "f32"


def _narrow_source(value: SSAValue) -> SSAValue | None:
    """The numbers that a factor is scaled, or cast, from, as `affine_factor` will find them; None for a factor that is stored."""
    while isinstance(op := value.owner, (nd.ViewOp, CastOp, OPS["mul"], OPS["sub"])) and op.operands:
        value = op.operands[0]
        if isinstance(op, CastOp) and tensor_type(value).element_type in BYTE_TYPES:
            return value
    return None


def _type_of(value: SSAValue | None) -> str:
    return "" if value is None else DTYPES[tensor_type(value).element_type]


def _panels(value: SSAValue) -> int:
    """The columns of the panels that a right factor is stored in (lowering/fx/post_grad/weight_order.py shows it by these views); 0 for
    others."""
    if isinstance(value.owner, nd.PermuteOp) and tensor_type(value).rank == 2:
        value = value.owner.input
    while isinstance(value.owner, nd.SliceOp):
        value = value.owner.operands[0]
    for view in (nd.ReshapeOp, nd.PermuteOp):
        if type(value.owner) is not view:
            return 0
        value = value.owner.operands[0]
    *dims, last = tensor_type(value).dims
    if tensor_type(value).element_type in BYTE_TYPES:
        last, dims = (dims[-1], dims[:-1]) if last.value == PANEL_UNIT_BYTES and dims else (ONE, dims)
    width = last.value or 0
    return width if len(dims) == 2 and width * PANEL_UNIT_BYTES % PANEL_BYTES == 0 else 0


def _is_transposed(value: SSAValue) -> bool:
    """Whether the last dimension is not the last one where the permutations that a value comes from begin."""
    last = tensor_type(value).rank - 1
    at = last
    while isinstance(op := value.owner, nd.ViewOp) and op.operands:
        if type(op) is nd.PermuteOp:
            at = op.dims.data[at]
        elif at != last:
            break
        else:
            at = tensor_type(op.operands[0]).rank - 1
        value = op.operands[0]
        last = tensor_type(value).rank - 1
    return at != last
