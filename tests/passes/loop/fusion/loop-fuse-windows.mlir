// RUN: opt-tool %s -p "nd-to-loop,loop-fuse,loop-fuse-windows{rows=4 always}" --split-input-file | filecheck %s
// RUN: opt-tool %s -p "nd-to-loop,loop-fuse,loop-fuse-windows{rows=4 always}" --split-input-file --remarks 2>&1 | filecheck %s --check-prefix=REMARK
// RUN: opt-tool %s -p "nd-to-loop,loop-fuse,loop-fuse-windows" --split-input-file --remarks 2>&1 | filecheck %s --check-prefix=PRICE

// Each row minus the one before it, of running sums: five rows make four.
// CHECK: loop.nest ([[T:%[a-z0-9_]+]] = 3) outs(
// CHECK: [[ROWS:%[a-z0-9_]+]] = loop.local : !nd.tensor<5 x 32 x f32>
// CHECK: loop.for ([[R:%[a-z0-9_]+]] = 5) {
// CHECK: loop.scan
// CHECK: loop.load %arg0[max([[T]] * 4 + [[R]] - 1, 0)
// CHECK: loop.store {{%[a-z0-9_]+}}, [[ROWS]][[[R]],
// CHECK: loop.for ([[Q:%[a-z0-9_]+]] = 4, [[J:%[a-z0-9_]+]] = 32) {
// CHECK-DAG: loop.load [[ROWS]][[[Q]] + 1, [[J]]]
// CHECK-DAG: loop.load [[ROWS]][[[Q]], [[J]]] if
// CHECK: window_rows = 4 : i64
// REMARK: [loop-fuse-windows] applied: {{.*}}computed by tiles in its reader d: {{.*}} us where two nests take
// PRICE: [loop-fuse-windows]
func.func @forward(%arg0: !nd.tensor<12 x 32 x f32>) -> !nd.tensor<12 x 32 x f32> {
  %y = nd.scan %arg0 {kind = "sum", dim = [1]} : (!nd.tensor<12 x 32 x f32>) -> !nd.tensor<12 x 32 x f32>
  %zero = nd.full {value = 0.0 : f32} : !nd.tensor<f32>
  %p = nd.pad %y, %zero {low = [1, 0], high = [-1, 0]} : (!nd.tensor<12 x 32 x f32>, !nd.tensor<f32>) -> !nd.tensor<12 x 32 x f32>
  %d = nd.sub %y, %p : !nd.tensor<12 x 32 x f32>
  func.return %d : !nd.tensor<12 x 32 x f32>
}

// -----

// A tensor that is returned too is needed in memory.
// CHECK-NOT: loop.local
// CHECK: func.return
// REMARK-NOT: in its reader
// PRICE-NOT: loop-fuse-windows] applied
func.func @forward(%arg0: !nd.tensor<12 x 32 x f32>) -> (!nd.tensor<12 x 32 x f32>, !nd.tensor<12 x 32 x f32>) {
  %y = nd.exp %arg0 : !nd.tensor<12 x 32 x f32>
  %zero = nd.full {value = 0.0 : f32} : !nd.tensor<f32>
  %p = nd.pad %y, %zero {low = [1, 0], high = [-1, 0]} : (!nd.tensor<12 x 32 x f32>, !nd.tensor<f32>) -> !nd.tensor<12 x 32 x f32>
  %d = nd.sub %y, %p : !nd.tensor<12 x 32 x f32>
  func.return %y, %d : !nd.tensor<12 x 32 x f32>, !nd.tensor<12 x 32 x f32>
}
