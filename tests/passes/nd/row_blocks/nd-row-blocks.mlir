// RUN: opt-tool %s -p 'nd-row-blocks{rows=24}' | filecheck %s
// RUN: opt-tool %s -p 'nd-row-blocks{rows=24}' --remarks 2>&1 | filecheck %s --check-prefix=WHY
// RUN: opt-tool %s -p 'nd-row-blocks{rows=24}' --verify-results

// WHY: 3 blocks of 24 rows, 12 operations
// WHY: all rows at once: its rows are a result of the graph
// WHY: all rows at once: nd.var_mean over rows has no results of blocks to join
// WHY: all rows at once: nd.sub reads what all rows give

// The logarithm of the sum of exponentials, and the element of a target, which is looked up first; the gradients of a softmax by weight and rows.
// CHECK-LABEL: func.func @forward
// CHECK: nd.slice %x {starts = [0, 0]
// CHECK: func.call @rows0(
// CHECK: nd.slice %x {starts = [24, 0]
// CHECK: func.call @rows0(
// CHECK: nd.slice %x {starts = [48, 0]
// CHECK: func.call @rows1(
// CHECK: nd.cat %{{.*}}, %{{.*}}, %{{.*}} {dim = [0]} : {{.*}} -> !nd.tensor<50 x 1 x f32>
func.func @forward(%x : !nd.tensor<50 x 8 x f32>, %w : !nd.tensor<8 x 96 x f32>, %t : !nd.tensor<50 x 1 x i64>)
    -> (!nd.tensor<50 x 1 x f32>, !nd.tensor<50 x 8 x f32>, !nd.tensor<8 x 96 x f32>, !nd.tensor<96 x f32>) {
  %low = nd.full {value = 0 : i64} : !nd.tensor<i64>
  %high = nd.full {value = 95 : i64} : !nd.tensor<i64>
  %t0 = nd.maximum %t, %low : (!nd.tensor<50 x 1 x i64>, !nd.tensor<i64>) -> !nd.tensor<50 x 1 x i64>
  %t1 = nd.minimum %t0, %high : (!nd.tensor<50 x 1 x i64>, !nd.tensor<i64>) -> !nd.tensor<50 x 1 x i64>
  %p = nd.matmul %x, %w : (!nd.tensor<50 x 8 x f32>, !nd.tensor<8 x 96 x f32>) -> !nd.tensor<50 x 96 x f32>
  %m = nd.reduce %p {kind = "max", dims = [1]} : (!nd.tensor<50 x 96 x f32>) -> !nd.tensor<50 x f32>
  %top = nd.reshape %m : (!nd.tensor<50 x f32>) -> !nd.tensor<50 x 1 x f32>
  %d = nd.sub %p, %top : (!nd.tensor<50 x 96 x f32>, !nd.tensor<50 x 1 x f32>) -> !nd.tensor<50 x 96 x f32>
  %e = nd.exp %d : !nd.tensor<50 x 96 x f32>
  %s = nd.reduce %e {kind = "sum", dims = [1]} : (!nd.tensor<50 x 96 x f32>) -> !nd.tensor<50 x f32>
  %total = nd.reshape %s : (!nd.tensor<50 x f32>) -> !nd.tensor<50 x 1 x f32>
  %picked = nd.gather %d, %t1 {dim = [1]} : (!nd.tensor<50 x 96 x f32>, !nd.tensor<50 x 1 x i64>) -> !nd.tensor<50 x 1 x f32>
  %g = nd.div %e, %total : (!nd.tensor<50 x 96 x f32>, !nd.tensor<50 x 1 x f32>) -> !nd.tensor<50 x 96 x f32>
  %wt = nd.permute %w {dims = [1, 0]} : (!nd.tensor<8 x 96 x f32>) -> !nd.tensor<96 x 8 x f32>
  %dx = nd.matmul %g, %wt : (!nd.tensor<50 x 96 x f32>, !nd.tensor<96 x 8 x f32>) -> !nd.tensor<50 x 8 x f32>
  %xt = nd.permute %x {dims = [1, 0]} : (!nd.tensor<50 x 8 x f32>) -> !nd.tensor<8 x 50 x f32>
  %dw = nd.matmul %xt, %g : (!nd.tensor<8 x 50 x f32>, !nd.tensor<50 x 96 x f32>) -> !nd.tensor<8 x 96 x f32>
  %db = nd.reduce %g {kind = "sum", dims = [0]} : (!nd.tensor<50 x 96 x f32>) -> !nd.tensor<96 x f32>
  func.return %picked, %dx, %dw, %db : !nd.tensor<50 x 1 x f32>, !nd.tensor<50 x 8 x f32>, !nd.tensor<8 x 96 x f32>, !nd.tensor<96 x f32>
}

// CHECK-LABEL: func.func @stored
// CHECK-NOT: func.call
// CHECK: func.func @centred
func.func @stored(%x : !nd.tensor<50 x 8 x f32>, %w : !nd.tensor<8 x 96 x f32>) -> (!nd.tensor<50 x 96 x f32>, !nd.tensor<50 x f32>) {
  %p = nd.matmul %x, %w : (!nd.tensor<50 x 8 x f32>, !nd.tensor<8 x 96 x f32>) -> !nd.tensor<50 x 96 x f32>
  %m = nd.reduce %p {kind = "max", dims = [1]} : (!nd.tensor<50 x 96 x f32>) -> !nd.tensor<50 x f32>
  func.return %p, %m : !nd.tensor<50 x 96 x f32>, !nd.tensor<50 x f32>
}

func.func @spread(%x : !nd.tensor<50 x 8 x f32>, %w : !nd.tensor<8 x 96 x f32>) -> !nd.tensor<96 x f32> {
  %p = nd.matmul %x, %w : (!nd.tensor<50 x 8 x f32>, !nd.tensor<8 x 96 x f32>) -> !nd.tensor<50 x 96 x f32>
  %v, %m = nd.var_mean %p {dims = [0], correction = 1.0 : f64} : (!nd.tensor<50 x 96 x f32>) -> (!nd.tensor<96 x f32>, !nd.tensor<96 x f32>)
  func.return %v : !nd.tensor<96 x f32>
}

func.func @centred(%x : !nd.tensor<50 x 8 x f32>, %w : !nd.tensor<8 x 96 x f32>) -> !nd.tensor<50 x f32> {
  %p = nd.matmul %x, %w : (!nd.tensor<50 x 8 x f32>, !nd.tensor<8 x 96 x f32>) -> !nd.tensor<50 x 96 x f32>
  %c = nd.reduce %p {kind = "max", dims = [0]} : (!nd.tensor<50 x 96 x f32>) -> !nd.tensor<96 x f32>
  %d = nd.sub %p, %c : (!nd.tensor<50 x 96 x f32>, !nd.tensor<96 x f32>) -> !nd.tensor<50 x 96 x f32>
  %s = nd.reduce %d {kind = "sum", dims = [1]} : (!nd.tensor<50 x 96 x f32>) -> !nd.tensor<50 x f32>
  func.return %s : !nd.tensor<50 x f32>
}

// CHECK: func.func private @rows0({{.*}}: !nd.tensor<24 x 8 x f32>
// CHECK: nd.matmul {{.*}} -> !nd.tensor<24 x 96 x f32>
// CHECK-NEXT: nd.gather
// CHECK: func.func private @rows1({{.*}}: !nd.tensor<2 x 8 x f32>
