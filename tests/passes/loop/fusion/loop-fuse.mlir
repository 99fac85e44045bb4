// RUN: opt-tool %s -p nd-to-loop,loop-fuse | filecheck %s

// Softmax is one nest over rows; the exponentials wait in the result for their sum (I13, A19).
// CHECK-LABEL: func.func @softmax
// CHECK: loop.nest (%{{.*}} = s0) outs(%[[O:.*]] = %{{.*}} : !nd.tensor<s0 x 64 x f32>) {
// CHECK: loop.reduce {{.*}} max
// CHECK: loop.reduce {{.*}} sum
// CHECK: math.exp
// CHECK-NEXT: loop.store %{{.*}}, %[[O]]
// CHECK: loop.for
// CHECK-NEXT: loop.load %[[O]]
// CHECK-NOT: loop.nest
func.func @softmax(%x : !nd.tensor<s0 x 64 x f32>) -> !nd.tensor<s0 x 64 x f32> {
  %m = nd.reduce %x {kind = "max", dims = [1]} : (!nd.tensor<s0 x 64 x f32>) -> !nd.tensor<s0 x f32>
  %m1 = nd.reshape %m : (!nd.tensor<s0 x f32>) -> !nd.tensor<s0 x 1 x f32>
  %d = nd.sub %x, %m1 : (!nd.tensor<s0 x 64 x f32>, !nd.tensor<s0 x 1 x f32>) -> !nd.tensor<s0 x 64 x f32>
  %e = nd.exp %d : !nd.tensor<s0 x 64 x f32>
  %s = nd.reduce %e {kind = "sum", dims = [1]} : (!nd.tensor<s0 x 64 x f32>) -> !nd.tensor<s0 x f32>
  %s1 = nd.reshape %s : (!nd.tensor<s0 x f32>) -> !nd.tensor<s0 x 1 x f32>
  %y = nd.div %e, %s1 : (!nd.tensor<s0 x 64 x f32>, !nd.tensor<s0 x 1 x f32>) -> !nd.tensor<s0 x 64 x f32>
  func.return %y : !nd.tensor<s0 x 64 x f32>
}

// Independent readers of one tensor share a nest (I05).
// CHECK-LABEL: func.func @siblings
// CHECK-COUNT-1: loop.nest
// CHECK-NOT: loop.nest
// CHECK: func.return
func.func @siblings(%x : !nd.tensor<64 x f32>) -> (!nd.tensor<64 x f32>, !nd.tensor<64 x f32>) {
  %a = nd.sin %x : !nd.tensor<64 x f32>
  %b = nd.exp %x : !nd.tensor<64 x f32>
  func.return %a, %b : !nd.tensor<64 x f32>, !nd.tensor<64 x f32>
}

// Group norm: the channel loop is split to match the groups; the reshape costs nothing (G05).
// CHECK-LABEL: func.func @group_norm
// CHECK: loop.nest (%{{.*}} = 2, %{{.*}} = 4) outs
// CHECK: loop.reduce (%{{.*}} = 32) welford
// CHECK: loop.for (%{{.*}} = 2, %{{.*}} = 16)
// CHECK-NOT: loop.nest
// CHECK: func.return
func.func @group_norm(%x : !nd.tensor<2 x 8 x 16 x f32>) -> !nd.tensor<2 x 8 x 16 x f32> {
  %g = nd.reshape %x : (!nd.tensor<2 x 8 x 16 x f32>) -> !nd.tensor<2 x 4 x 32 x f32>
  %v, %m = nd.var_mean %g {dims = [2], correction = 0.0 : f64} : (!nd.tensor<2 x 4 x 32 x f32>) -> (!nd.tensor<2 x 4 x f32>, !nd.tensor<2 x 4 x f32>)
  %m1 = nd.reshape %m : (!nd.tensor<2 x 4 x f32>) -> !nd.tensor<2 x 4 x 1 x f32>
  %d = nd.sub %g, %m1 : (!nd.tensor<2 x 4 x 32 x f32>, !nd.tensor<2 x 4 x 1 x f32>) -> !nd.tensor<2 x 4 x 32 x f32>
  %b = nd.reshape %d : (!nd.tensor<2 x 4 x 32 x f32>) -> !nd.tensor<2 x 8 x 16 x f32>
  %y = nd.exp %b : !nd.tensor<2 x 8 x 16 x f32>
  func.return %y : !nd.tensor<2 x 8 x 16 x f32>
}

// A consumer that reads other rows than its own is not put into the producer's loop (I04).
// CHECK-LABEL: func.func @neighbours
// CHECK-COUNT-2: loop.nest
func.func @neighbours(%x : !nd.tensor<64 x 32 x f32>) -> !nd.tensor<63 x f32> {
  %s = nd.reduce %x {kind = "sum", dims = [1]} : (!nd.tensor<64 x 32 x f32>) -> !nd.tensor<64 x f32>
  %a = nd.slice %s {starts = [0], steps = [1]} : (!nd.tensor<64 x f32>) -> !nd.tensor<63 x f32>
  %b = nd.slice %s {starts = [1], steps = [1]} : (!nd.tensor<64 x f32>) -> !nd.tensor<63 x f32>
  %y = nd.add %a, %b : !nd.tensor<63 x f32>
  func.return %y : !nd.tensor<63 x f32>
}

// The extern needs the sum and feeds the product: no nest may hold both (I06).
// CHECK-LABEL: func.func @diamond
// CHECK: loop.reduce
// CHECK: nd.extern
// CHECK: arith.mulf
func.func @diamond(%x : !nd.tensor<64 x 32 x f32>) -> !nd.tensor<64 x f32> {
  %s = nd.reduce %x {kind = "sum", dims = [1]} : (!nd.tensor<64 x 32 x f32>) -> !nd.tensor<64 x f32>
  %e = nd.extern %s {call = #nd.call<"aten.sort.default", [arg(0)]>} : (!nd.tensor<64 x f32>) -> !nd.tensor<64 x f32>
  %y = nd.mul %s, %e : !nd.tensor<64 x f32>
  func.return %y : !nd.tensor<64 x f32>
}

// A border costs no copy where another nest computes what is behind it: that nest is the one that keeps apart.
// CHECK-LABEL: func.func @border
// CHECK: loop.nest
// CHECK: math.exp
// CHECK: no_fuse = "nd.barrier"
// CHECK: loop.nest
// CHECK: math.sin
// CHECK-NOT: loop.nest
// CHECK: func.return
func.func @border(%x : !nd.tensor<64 x f32>) -> !nd.tensor<64 x f32> {
  %e = nd.exp %x : !nd.tensor<64 x f32>
  %b = nd.barrier %e : !nd.tensor<64 x f32>
  %y = nd.sin %b : !nd.tensor<64 x f32>
  func.return %y : !nd.tensor<64 x f32>
}

// What a function takes or returns is copied: the results are two tensors.
// CHECK-LABEL: func.func @border_of_argument
// CHECK-COUNT-2: loop.nest
// CHECK: func.return
func.func @border_of_argument(%x : !nd.tensor<64 x f32>) -> !nd.tensor<64 x f32> {
  %b = nd.barrier %x : !nd.tensor<64 x f32>
  %y = nd.sin %b : !nd.tensor<64 x f32>
  func.return %y : !nd.tensor<64 x f32>
}

// CHECK-LABEL: func.func @border_of_result
// CHECK-COUNT-2: loop.nest
// CHECK: func.return
func.func @border_of_result(%x : !nd.tensor<64 x f32>) -> (!nd.tensor<64 x f32>, !nd.tensor<64 x f32>) {
  %e = nd.exp %x : !nd.tensor<64 x f32>
  %b = nd.barrier %e : !nd.tensor<64 x f32>
  func.return %e, %b : !nd.tensor<64 x f32>, !nd.tensor<64 x f32>
}
