// RUN: opt-tool %s -p nd-sink-cat,nd-to-loop,loop-fuse | filecheck %s

// Both halves of a rotary embedding are computed straight into the result, in one nest, without masks.
// CHECK-LABEL: func.func @rope
// CHECK-COUNT-1: loop.nest
// CHECK: arith.negf
// CHECK: loop.store
// CHECK: loop.store
// CHECK-NOT: if
// CHECK-NOT: loop.nest
// CHECK: func.return
func.func @rope(%q : !nd.tensor<8 x 64 x f32>, %s : !nd.tensor<8 x 64 x f32>) -> !nd.tensor<8 x 64 x f32> {
  %h1 = nd.slice %q {starts = [0, 0], steps = [1, 1]} : (!nd.tensor<8 x 64 x f32>) -> !nd.tensor<8 x 32 x f32>
  %h2 = nd.slice %q {starts = [0, 32], steps = [1, 1]} : (!nd.tensor<8 x 64 x f32>) -> !nd.tensor<8 x 32 x f32>
  %n = nd.neg %h2 : !nd.tensor<8 x 32 x f32>
  %r = nd.cat %n, %h1 {dim = [1]} : (!nd.tensor<8 x 32 x f32>, !nd.tensor<8 x 32 x f32>) -> !nd.tensor<8 x 64 x f32>
  %b = nd.mul %r, %s : !nd.tensor<8 x 64 x f32>
  %y = nd.add %q, %b : !nd.tensor<8 x 64 x f32>
  func.return %y : !nd.tensor<8 x 64 x f32>
}
