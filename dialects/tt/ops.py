"""The `tt` dialect: Triton's own IR, operation for operation, as its parser reads and prints it.

A module of it holds a public `tt.func`, the kernel, that works on blocks: builtin tensors of static sizes whose numbers
of elements are powers of two, without a layout (which Triton chooses in its own next stage). Arithmetic is xDSL's
`arith` and `math` on such tensors (see arith.py), control flow is `scf`.

    tt.func public @add(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %n: i32) {
      %block = arith.constant 64 : i32
      %pid = tt.get_program_id x : i32
      %start = arith.muli %pid, %block : i32
      %lane = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
      %first = tt.splat %start : i32 -> tensor<64xi32>
      %i = arith.addi %first, %lane : tensor<64xi32>
      %sizes = tt.splat %n : i32 -> tensor<64xi32>
      %mask = arith.cmpi slt, %i, %sizes : tensor<64xi32>
      %base = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
      %p = tt.addptr %base, %i : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
      %v = tt.load %p, %mask : tensor<64x!tt.ptr<f32>>
      ...
    }

The text is Triton's: targets/triton/emit.py writes it for a version, and text that Triton wrote is read back. What the
versions spell differently (`Spelling` of types.py) is read in every spelling.
"""

from __future__ import annotations

from xdsl.ir import Dialect

from .blocks import BLOCK_OPS
from .compute import COMPUTE_OPS
from .memory import MEMORY_OPS, CachePolicyAttr
from .shape import SHAPE_OPS
from .structure import STRUCTURE_OPS
from .types import PointerType, TensorDescType

Tt = Dialect(
    "tt",
    [*STRUCTURE_OPS, *MEMORY_OPS, *BLOCK_OPS, *SHAPE_OPS, *COMPUTE_OPS],
    [PointerType, TensorDescType, CachePolicyAttr],
)
