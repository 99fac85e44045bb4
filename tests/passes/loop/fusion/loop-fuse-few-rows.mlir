// RUN: opt-tool %s --machine sm_90 -p 'nd-to-loop,loop-fuse' | filecheck %s

// Reductions of few rows take in what they are of: gpu-split-reduction has more programs take part.
// CHECK-LABEL: func.func @sums
// CHECK: loop.nest (%{{.*}} = 16)
// CHECK: loop.reduce {{.*}} sum, sum
// CHECK: loop.math "sigmoid"
// CHECK-NOT: loop.nest
// CHECK: func.return
func.func @sums(%x : !nd.tensor<16 x 4194304 x f32>, %t : !nd.tensor<16 x 4194304 x f32>) -> (!nd.tensor<16 x f32>, !nd.tensor<16 x f32>) {
  %p = nd.sigmoid %x : !nd.tensor<16 x 4194304 x f32>
  %m = nd.mul %p, %t : !nd.tensor<16 x 4194304 x f32>
  %a = nd.reduce %m {kind = "sum", dims = [1]} : (!nd.tensor<16 x 4194304 x f32>) -> !nd.tensor<16 x f32>
  %b = nd.reduce %p {kind = "sum", dims = [1]} : (!nd.tensor<16 x 4194304 x f32>) -> !nd.tensor<16 x f32>
  func.return %a, %b : !nd.tensor<16 x f32>, !nd.tensor<16 x f32>
}

// What is computed of such sums for each element is left a nest that all programs share.
// CHECK-LABEL: func.func @shares
// CHECK: loop.nest (%{{.*}} = 16)
// CHECK: loop.nest (%{{.*}} = 16, %{{.*}} = 4194304)
func.func @shares(%x : !nd.tensor<16 x 4194304 x f32>) -> !nd.tensor<16 x 4194304 x f32> {
  %a = nd.reduce %x {kind = "sum", dims = [1]} : (!nd.tensor<16 x 4194304 x f32>) -> !nd.tensor<16 x f32>
  %r = nd.reshape %a : (!nd.tensor<16 x f32>) -> !nd.tensor<16 x 1 x f32>
  %y = nd.div %x, %r : (!nd.tensor<16 x 4194304 x f32>, !nd.tensor<16 x 1 x f32>) -> !nd.tensor<16 x 4194304 x f32>
  func.return %y : !nd.tensor<16 x 4194304 x f32>
}
