// RUN: opt-tool %s -p 'nd-row-blocks{bytes=8192}' | filecheck %s
// RUN: opt-tool %s -p 'nd-row-blocks{bytes=8192}' --remarks 2>&1 | filecheck %s --check-prefix=WHY
// RUN: opt-tool %s -p 'nd-row-blocks{bytes=8192}' --verify-results

// WHY: 3 blocks of 21 rows, 3 operations
// WHY: all rows at once: its rows are a result of the graph

// Under a bound of bytes also what is computed element by element goes by blocks: a normalised row is there for a product alone. Rows are
// all dimensions but the last.
// CHECK-LABEL: func.func @forward
// CHECK: func.call @rows0(
// CHECK: func.call @rows0(
// CHECK: func.call @rows1(
// CHECK: nd.cat %{{.*}}, %{{.*}}, %{{.*}} {dim = [0]} : {{.*}} -> !nd.tensor<50 x 8 x f32>
func.func @forward(%x : !nd.tensor<5 x 10 x 96 x f32>, %m : !nd.tensor<5 x 10 x 1 x f32>, %w : !nd.tensor<96 x 8 x f32>)
    -> !nd.tensor<50 x 8 x f32> {
  %d = nd.sub %x, %m : (!nd.tensor<5 x 10 x 96 x f32>, !nd.tensor<5 x 10 x 1 x f32>) -> !nd.tensor<5 x 10 x 96 x f32>
  %r = nd.reshape %d : (!nd.tensor<5 x 10 x 96 x f32>) -> !nd.tensor<50 x 96 x f32>
  %p = nd.matmul %r, %w : (!nd.tensor<50 x 96 x f32>, !nd.tensor<96 x 8 x f32>) -> !nd.tensor<50 x 8 x f32>
  func.return %p : !nd.tensor<50 x 8 x f32>
}

// CHECK-LABEL: func.func @result
// CHECK-NOT: func.call
// CHECK: return
func.func @result(%x : !nd.tensor<50 x 96 x f32>) -> !nd.tensor<50 x 96 x f32> {
  %e = nd.exp %x : !nd.tensor<50 x 96 x f32>
  func.return %e : !nd.tensor<50 x 96 x f32>
}

// A small value stays as it is.
// CHECK-LABEL: func.func @small
// CHECK-NOT: func.call
// CHECK: return
func.func @small(%x : !nd.tensor<50 x 16 x f32>, %w : !nd.tensor<16 x 8 x f32>) -> !nd.tensor<50 x 8 x f32> {
  %e = nd.exp %x : !nd.tensor<50 x 16 x f32>
  %p = nd.matmul %e, %w : (!nd.tensor<50 x 16 x f32>, !nd.tensor<16 x 8 x f32>) -> !nd.tensor<50 x 8 x f32>
  func.return %p : !nd.tensor<50 x 8 x f32>
}
