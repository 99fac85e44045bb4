// RUN: opt-tool %s -p nd-split-reductions | filecheck %s
// RUN: opt-tool %s -p nd-split-reductions --remarks 2>&1 | filecheck %s --check-prefix=WHY
// RUN: opt-tool %s -p nd-split-reductions,nd-to-loop,loop-fuse | filecheck %s --check-prefix=NEST

// WHY: split: each of 64 rows, then their results
// WHY: not split: it has 4 rows, fewer than 8

// The nest of the rows' statistics makes the rows' sums.
// CHECK-LABEL: func.func @rows
// CHECK: %[[R:.*]] = nd.reduce %y {kind = "sum", dims = [1]} : (!nd.tensor<64 x 1000 x f32>) -> !nd.tensor<64 x f32>
// CHECK: nd.reduce %[[R]] {kind = "sum", dims = [0]} : (!nd.tensor<64 x f32>) -> !nd.tensor<f32>
// NEST-LABEL: func.func @rows
// NEST: loop.nest (%i = 64)
// NEST: loop.reduce (%j = 1000) max
// NEST: loop.reduce (%j_1 = 1000) sum
// NEST: loop.nest ()
// NEST-NEXT: loop.reduce (%i_1 = 64) sum
// NEST-NOT: loop.nest
// NEST-LABEL: func.func @half
func.func @rows(%x : !nd.tensor<64 x 1000 x f32>) -> !nd.tensor<f32> {
  %m = nd.reduce %x {kind = "max", dims = [1]} : (!nd.tensor<64 x 1000 x f32>) -> !nd.tensor<64 x f32>
  %c = nd.reshape %m : (!nd.tensor<64 x f32>) -> !nd.tensor<64 x 1 x f32>
  %d = nd.sub %x, %c : (!nd.tensor<64 x 1000 x f32>, !nd.tensor<64 x 1 x f32>) -> !nd.tensor<64 x 1000 x f32>
  %y = nd.exp %d : !nd.tensor<64 x 1000 x f32>
  %s = nd.reduce %y {kind = "sum", dims = [0, 1]} : (!nd.tensor<64 x 1000 x f32>) -> !nd.tensor<f32>
  func.return %s : !nd.tensor<f32>
}

// Between the two, sums of 16-bit numbers are not rounded; dimensions that the first one keeps stay.
// CHECK-LABEL: func.func @half
// CHECK: %[[R:.*]] = nd.reduce %y {kind = "sum", dims = [3]} : (!nd.tensor<2 x 16 x 1 x 32 x bf16>) -> !nd.tensor<2 x 16 x 1 x f32>
// CHECK: nd.reduce %[[R]] {kind = "sum", dims = [1, 2]} : (!nd.tensor<2 x 16 x 1 x f32>) -> !nd.tensor<2 x bf16>
func.func @half(%x : !nd.tensor<2 x 16 x 1 x 32 x bf16>) -> !nd.tensor<2 x bf16> {
  %v, %m = nd.var_mean %x {dims = [3], correction = 0.0 : f64} : (!nd.tensor<2 x 16 x 1 x 32 x bf16>) -> (!nd.tensor<2 x 16 x 1 x bf16>, !nd.tensor<2 x 16 x 1 x bf16>)
  %c = nd.reshape %m : (!nd.tensor<2 x 16 x 1 x bf16>) -> !nd.tensor<2 x 16 x 1 x 1 x bf16>
  %e = nd.expand %c : (!nd.tensor<2 x 16 x 1 x 1 x bf16>) -> !nd.tensor<2 x 16 x 1 x 32 x bf16>
  %y = nd.sub %x, %e : !nd.tensor<2 x 16 x 1 x 32 x bf16>
  %s = nd.reduce %y {kind = "sum", dims = [1, 2, 3]} : (!nd.tensor<2 x 16 x 1 x 32 x bf16>) -> !nd.tensor<2 x bf16>
  func.return %s : !nd.tensor<2 x bf16>
}

// Columns are followed through permutations; they need not be the last dimension.
// CHECK-LABEL: func.func @columns
// CHECK: nd.reduce %y {kind = "any", dims = [0]} : (!nd.tensor<9 x 64 x i1>) -> !nd.tensor<64 x i1>
func.func @columns(%x : !nd.tensor<64 x 9 x f32>) -> !nd.tensor<i1> {
  %m = nd.reduce %x {kind = "max", dims = [1]} : (!nd.tensor<64 x 9 x f32>) -> !nd.tensor<64 x f32>
  %p = nd.permute %x {dims = [1, 0]} : (!nd.tensor<64 x 9 x f32>) -> !nd.tensor<9 x 64 x f32>
  %y = nd.cmp %p, %m {predicate = "lt"} : (!nd.tensor<9 x 64 x f32>, !nd.tensor<64 x f32>) -> !nd.tensor<9 x 64 x i1>
  %s = nd.reduce %y {kind = "any", dims = [0, 1]} : (!nd.tensor<9 x 64 x i1>) -> !nd.tensor<i1>
  func.return %s : !nd.tensor<i1>
}

// A plain reduction, of one dimension or of all that the statistics go over: there is nothing that the rows share.
// CHECK-LABEL: func.func @whole
// CHECK: nd.reduce %x {kind = "sum", dims = [0, 1]}
// CHECK: nd.reduce %d {kind = "sum", dims = [0, 1]}
// CHECK: nd.reduce %d {kind = "sum", dims = [0]}
// CHECK-NOT: nd.reduce
func.func @whole(%x : !nd.tensor<64 x 9 x f32>) -> (!nd.tensor<f32>, !nd.tensor<9 x f32>) {
  %m = nd.reduce %x {kind = "sum", dims = [0, 1]} : (!nd.tensor<64 x 9 x f32>) -> !nd.tensor<f32>
  %d = nd.sub %x, %m : (!nd.tensor<64 x 9 x f32>, !nd.tensor<f32>) -> !nd.tensor<64 x 9 x f32>
  %s = nd.reduce %d {kind = "sum", dims = [0, 1]} : (!nd.tensor<64 x 9 x f32>) -> !nd.tensor<f32>
  %r = nd.reduce %d {kind = "sum", dims = [0]} : (!nd.tensor<64 x 9 x f32>) -> !nd.tensor<9 x f32>
  func.return %s, %r : !nd.tensor<f32>, !nd.tensor<9 x f32>
}

// Statistics of other rows: of a table whose rows are shorter, and of columns that are kept.
// CHECK-LABEL: func.func @others
// CHECK: nd.reduce %y {kind = "sum", dims = [0, 1]}
// CHECK: nd.reduce %z {kind = "sum", dims = [0, 1]}
// CHECK-NOT: nd.reduce
func.func @others(%x : !nd.tensor<64 x 9 x f32>, %w : !nd.tensor<64 x 5 x f32>, %v : !nd.tensor<64 x 9 x 4 x f32>)
    -> (!nd.tensor<f32>, !nd.tensor<4 x f32>) {
  %m = nd.reduce %w {kind = "sum", dims = [1]} : (!nd.tensor<64 x 5 x f32>) -> !nd.tensor<64 x f32>
  %c = nd.reshape %m : (!nd.tensor<64 x f32>) -> !nd.tensor<64 x 1 x f32>
  %y = nd.mul %x, %c : (!nd.tensor<64 x 9 x f32>, !nd.tensor<64 x 1 x f32>) -> !nd.tensor<64 x 9 x f32>
  %s = nd.reduce %y {kind = "sum", dims = [0, 1]} : (!nd.tensor<64 x 9 x f32>) -> !nd.tensor<f32>
  %n = nd.reduce %v {kind = "sum", dims = [2]} : (!nd.tensor<64 x 9 x 4 x f32>) -> !nd.tensor<64 x 9 x f32>
  %d = nd.reshape %n : (!nd.tensor<64 x 9 x f32>) -> !nd.tensor<64 x 9 x 1 x f32>
  %z = nd.mul %v, %d : (!nd.tensor<64 x 9 x 4 x f32>, !nd.tensor<64 x 9 x 1 x f32>) -> !nd.tensor<64 x 9 x 4 x f32>
  %t = nd.reduce %z {kind = "sum", dims = [0, 1]} : (!nd.tensor<64 x 9 x 4 x f32>) -> !nd.tensor<4 x f32>
  func.return %s, %t : !nd.tensor<f32>, !nd.tensor<4 x f32>
}

// CHECK-LABEL: func.func @few
// CHECK: nd.reduce %y {kind = "sum", dims = [0, 1]}
func.func @few(%x : !nd.tensor<4 x 9 x f32>) -> !nd.tensor<f32> {
  %m = nd.reduce %x {kind = "max", dims = [1]} : (!nd.tensor<4 x 9 x f32>) -> !nd.tensor<4 x f32>
  %c = nd.reshape %m : (!nd.tensor<4 x f32>) -> !nd.tensor<4 x 1 x f32>
  %y = nd.sub %x, %c : (!nd.tensor<4 x 9 x f32>, !nd.tensor<4 x 1 x f32>) -> !nd.tensor<4 x 9 x f32>
  %s = nd.reduce %y {kind = "sum", dims = [0, 1]} : (!nd.tensor<4 x 9 x f32>) -> !nd.tensor<f32>
  func.return %s : !nd.tensor<f32>
}
