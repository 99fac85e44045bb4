// RUN: opt-tool %s -p loop-interchange{order=j} --remarks 2>&1 | filecheck %s --check-prefix=INTERCHANGE
// RUN: opt-tool %s -p "loop-tile{sizes=8,24 nest=sum}" --remarks 2>&1 | filecheck %s --check-prefix=TILE
// RUN: opt-tool %s -p loop-collapse{nest=sum} | filecheck %s --check-prefix=COLLAPSE
// RUN: opt-tool %s -p "loop-expand{nest=sum axis=j by=14}" | filecheck %s --check-prefix=EXPAND
// RUN: opt-tool %s -p "loop-vectorize{nest=loop-transforms.mlir:71 axis=i lanes=16},loop-vectorize{nest=rows part=1 axis=j}" | filecheck %s --check-prefix=VECTOR
// RUN: opt-tool %s -p loop-unroll{nest=small} | filecheck %s --check-prefix=UNROLL
// RUN: opt-tool %s -p loop-hoist{nest=rows} --remarks 2>&1 | filecheck %s --check-prefix=HOIST
// RUN: opt-tool %s -p loop-narrow-index | filecheck %s --check-prefix=NARROW
// RUN: opt-tool %s -p "loop-split-reduction{nest=rows parts=8}" --remarks 2>&1 | filecheck %s --check-prefix=SPLIT
// RUN: opt-tool %s -p "loop-to-mem,loop-split-reduction{nest=rows parts=7}" | filecheck %s --check-prefix=SPLITMEM

// INTERCHANGE: applied: 'loop.nest' op: loops in the order %j, %i (were 1, 0)
// INTERCHANGE: missed: 'loop.nest' op: refused: there is no loop 'j'; it has 0 (%i)
// INTERCHANGE: loop.nest (%j = 70, %i = 100)
// INTERCHANGE: loop.load %x[%i, %j]
// INTERCHANGE: schedule = {fixed = true}

// TILE: applied: 'loop.nest' op: tiles of 8 x 24
// TILE: loop.nest (%i = 100, %j = 70)
// TILE: schedule = {tiles = array<i64: 8, 24>}

// COLLAPSE: loop.nest (%i = 7000)
// COLLAPSE: loop.load %x[%i floordiv 70, %i mod 70]
// COLLAPSE: schedule = {fixed = true}

// EXPAND: loop.nest (%i = 100, %j = 5, %j_1 = 14)
// EXPAND: loop.load %x[%i, %j * 14 + %j_1]

// VECTOR: label = "sum", schedule = {vector = 0 : i64, lanes = 16 : i64}
// VECTOR: loop.reduce (%{{.*}} = 70) sum
// VECTOR: attributes {vector = 0 : i64}
// VECTOR: schedule = {vector = "inner"}

// UNROLL: label = "rows"
// UNROLL-NOT: loop.reduce
// UNROLL: loop.load %x[%{{.*}}, 0]
// UNROLL: loop.load %x[%{{.*}}, 1]
// UNROLL: arith.addf
// UNROLL: loop.load %x[%{{.*}}, 2]
// UNROLL: arith.addf
// UNROLL: label = "small"

// HOIST: applied: 'loop.nest' op: 2 ops left their loops
// HOIST: %b = loop.load %w[%{{.*}}]
// HOIST-NEXT: math.exp
// HOIST-NEXT: loop.reduce (%{{.*}} = 70) sum

// G12, N08: what fits into 32 bits is computed there.
// NARROW: label = "sum", schedule = {index_bits = 32 : i64}
// NARROW: label = "rows", schedule = {index_bits = 32 : i64}

// SPLIT: applied: 'loop.nest' op: %j in 7 parts of 9 and one of 7
// SPLIT: loop.nest (%i_1 = 100, %{{.*}} = 7)
// SPLIT: loop.reduce (%j_1 = 9) sum
// SPLIT: loop.load %x[%i_1, %j_1 + %{{.*}} * 9]
// SPLIT: label = "rows_parts"
// SPLIT: loop.reduce (%j_2 = 7) sum
// SPLIT: loop.load %x[%i_2, %j_2 + 63]
// SPLIT: label = "rows_rest"
// SPLIT: loop.reduce (%{{.*}} = 8) sum
// SPLIT: label = "rows"

// SPLITMEM: %rows_parts = mem.alloc {kind = "arena"} : !mem.buffer<100 x 7 x f32>
// SPLITMEM: loop.nest (%i_1 = 100, %{{.*}} = 7)
// SPLITMEM-NOT: label = "rows_rest"
// SPLITMEM: loop.reduce (%{{.*}} = 7) sum
func.func @forward(%x : !nd.tensor<100 x 70 x f32>, %w : !nd.tensor<100 x f32>) -> (!nd.tensor<100 x 70 x f32>, !nd.tensor<100 x f32>, !nd.tensor<100 x f32>) {
  %e = loop.empty : !nd.tensor<100 x 70 x f32>
  %f = loop.empty : !nd.tensor<100 x f32>
  %sum = loop.nest (%i = 100, %j = 70) outs(%o = %e : !nd.tensor<100 x 70 x f32>) {
    %a = loop.load %x[%i, %j] : !nd.tensor<100 x 70 x f32> -> f32
    %c = arith.addf %a, %a : f32
    loop.store %c, %o[%i, %j] : f32, !nd.tensor<100 x 70 x f32>
  } attributes {label = "sum"}
  %rows = loop.nest (%i = 100) outs(%o = %f : !nd.tensor<100 x f32>) {
    %s = loop.reduce (%j = 70) sum {
      %a = loop.load %x[%i, %j] : !nd.tensor<100 x 70 x f32> -> f32
      %b = loop.load %w[%i] : !nd.tensor<100 x f32> -> f32
      %g = math.exp %b : f32
      %p = arith.mulf %a, %g : f32
      loop.yield %p : f32
    } -> f32
    loop.store %s, %o[%i] : f32, !nd.tensor<100 x f32>
  } attributes {label = "rows"}
  %small = loop.nest (%i = 100) outs(%o = %f : !nd.tensor<100 x f32>) {
    %s = loop.reduce (%j = 3) sum {
      %a = loop.load %x[%i, %j] : !nd.tensor<100 x 70 x f32> -> f32
      loop.yield %a : f32
    } -> f32
    loop.store %s, %o[%i] : f32, !nd.tensor<100 x f32>
  } attributes {label = "small"}
  func.return %sum, %rows, %small : !nd.tensor<100 x 70 x f32>, !nd.tensor<100 x f32>, !nd.tensor<100 x f32>
}
