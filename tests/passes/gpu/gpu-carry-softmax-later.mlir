// RUN: opt-tool %s -p gpu-carry-softmax | filecheck %s

// A number of a row that the nest of the weights stores, that which weighs by them reads, and one in between needs: this comes later.

// CHECK-LABEL: func.func @divided
// CHECK:      %[[O:.*]], %[[INVERSE:.*]] = loop.nest
// CHECK-NEXT:   loop.reduce (%{{.*}} = 64) softmax_dot
// CHECK:      loop.nest
// CHECK-NEXT:   loop.load %[[INVERSE]]
builtin.module attributes {stepwell.machine = #stepwell.machine<"sm_90", multiprocessors = 132>} {
  func.func @divided(%q: !nd.tensor<2 x 64 x 64 x bf16>) -> (!nd.tensor<2 x 64 x 64 x bf16>, !nd.tensor<2 x 64 x f32>) {
    %0 = loop.empty : !nd.tensor<2 x 64 x 64 x bf16>
    %1 = loop.empty : !nd.tensor<2 x 64 x 64 x f32>
    %2 = loop.empty : !nd.tensor<2 x 64 x f32>
    %3 = loop.empty : !nd.tensor<2 x 64 x f32>
    %4 = loop.empty : !nd.tensor<2 x 64 x 64 x bf16>
    %scores = loop.nest (%b = 2, %i = 64, %j = 64) outs(%s = %0 : !nd.tensor<2 x 64 x 64 x bf16>) {
      %sum = loop.reduce (%e = 64) sum {
        %x = loop.load %q[%b, %i, %e] : !nd.tensor<2 x 64 x 64 x bf16> -> f32
        %y = loop.load %q[%b, %j, %e] : !nd.tensor<2 x 64 x 64 x bf16> -> f32
        %t = arith.mulf %x, %y fastmath<contract> : f32
        loop.yield %t : f32
      } -> f32
      loop.store %sum, %s[%b, %i, %j] : f32, !nd.tensor<2 x 64 x 64 x bf16>
    }
    %powers, %inverse = loop.nest (%b = 2, %i = 64) outs(%p = %1 : !nd.tensor<2 x 64 x 64 x f32>, %r = %2 : !nd.tensor<2 x 64 x f32>) {
      %top = loop.reduce (%j = 64) max {
        %x = loop.load %scores[%b, %i, %j] : !nd.tensor<2 x 64 x 64 x bf16> -> f32
        loop.yield %x : f32
      } -> f32
      %total = loop.reduce (%j = 64) sum {
        %x = loop.load %scores[%b, %i, %j] : !nd.tensor<2 x 64 x 64 x bf16> -> f32
        %y = arith.subf %x, %top : f32
        %z = math.exp %y : f32
        loop.store %z, %p[%b, %i, %j] : f32, !nd.tensor<2 x 64 x 64 x f32>
        loop.yield %z : f32
      } -> f32
      %one = arith.constant 1.000000e+00 : f32
      %n = arith.divf %one, %total : f32
      loop.store %n, %r[%b, %i] : f32, !nd.tensor<2 x 64 x f32>
    }
    %kept = loop.nest (%b = 2, %i = 64) outs(%r = %3 : !nd.tensor<2 x 64 x f32>) {
      %x = loop.load %inverse[%b, %i] : !nd.tensor<2 x 64 x f32> -> f32
      loop.store %x, %r[%b, %i] : f32, !nd.tensor<2 x 64 x f32>
    } attributes {no_fuse = "nd.barrier"}
    %rows = loop.nest (%b = 2, %i = 64, %d = 64) outs(%o = %4 : !nd.tensor<2 x 64 x 64 x bf16>) {
      %n = loop.load %inverse[%b, %i] : !nd.tensor<2 x 64 x f32> -> f32
      %sum = loop.reduce (%j = 64) sum {
        %x = loop.load %powers[%b, %i, %j] : !nd.tensor<2 x 64 x 64 x f32> -> f32
        %y = arith.mulf %x, %n : f32
        %z = arith.truncf %y : f32 to bf16
        %w = arith.extf %z : bf16 to f32
        %v = loop.load %q[%b, %j, %d] : !nd.tensor<2 x 64 x 64 x bf16> -> f32
        %t = arith.mulf %w, %v fastmath<contract> : f32
        loop.yield %t : f32
      } -> f32
      loop.store %sum, %o[%b, %i, %d] : f32, !nd.tensor<2 x 64 x 64 x bf16>
    }
    func.return %rows, %kept : !nd.tensor<2 x 64 x 64 x bf16>, !nd.tensor<2 x 64 x f32>
  }
}
