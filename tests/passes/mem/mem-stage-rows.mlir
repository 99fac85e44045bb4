// RUN: opt-tool %s -p "loop-to-mem,mem-stage-rows" | filecheck %s
// RUN: opt-tool %s -p "loop-to-mem,mem-stage-rows{bytes=256}" | filecheck %s --check-prefix=SMALL

// The shares are computed once a row, with the lanes along it.
// CHECK-LABEL: func.func @shares
// CHECK: loop.nest (%{{.*}} = 8)
// CHECK: %[[L:.*]] = loop.local : !mem.buffer<128 x f32>
// CHECK: loop.for (%{{.*}} = 128)
// CHECK: math.exp
// CHECK: loop.store {{.*}}, %[[L]]
// CHECK: loop.for (%{{.*}} = 64)
// CHECK: loop.reduce (%{{.*}} = 128) sum
// CHECK-NEXT: loop.load %[[L]]
// CHECK-NEXT: loop.load %v
// CHECK-NOT: math.exp
// SMALL-LABEL: func.func @shares
// SMALL-NOT: loop.local
func.func @shares(%s : !nd.tensor<8 x 128 x f32>, %v : !nd.tensor<8 x 128 x 64 x f32>) -> !nd.tensor<8 x 64 x f32> {
  %0 = loop.empty : !nd.tensor<8 x 64 x f32>
  %y = loop.nest (%b = 8) outs(%o = %0 : !nd.tensor<8 x 64 x f32>) {
    %m = loop.reduce (%j = 128) max {
      %a = loop.load %s[%b, %j] : !nd.tensor<8 x 128 x f32> -> f32
      loop.yield %a : f32
    } -> f32
    loop.for (%i = 64) {
      %t = loop.reduce (%j = 128) sum {
        %a = loop.load %s[%b, %j] : !nd.tensor<8 x 128 x f32> -> f32
        %d = arith.subf %a, %m : f32
        %e = math.exp %d : f32
        %w = loop.load %v[%b, %j, %i] : !nd.tensor<8 x 128 x 64 x f32> -> f32
        %p = arith.mulf %e, %w : f32
        loop.yield %p : f32
      } -> f32
      loop.store %t, %o[%b, %i] : f32, !nd.tensor<8 x 64 x f32>
    }
  }
  func.return %y : !nd.tensor<8 x 64 x f32>
}

// What depends on the column stays in its loop.
// CHECK-LABEL: func.func @columns
// CHECK-NOT: loop.local
func.func @columns(%s : !nd.tensor<8 x 128 x f32>, %v : !nd.tensor<8 x 64 x f32>) -> !nd.tensor<8 x 64 x f32> {
  %0 = loop.empty : !nd.tensor<8 x 64 x f32>
  %y = loop.nest (%b = 8) outs(%o = %0 : !nd.tensor<8 x 64 x f32>) {
    loop.for (%i = 64) {
      %w = loop.load %v[%b, %i] : !nd.tensor<8 x 64 x f32> -> f32
      %t = loop.reduce (%j = 128) sum {
        %a = loop.load %s[%b, %j] : !nd.tensor<8 x 128 x f32> -> f32
        %d = arith.subf %a, %w : f32
        %e = math.exp %d : f32
        loop.yield %e : f32
      } -> f32
      loop.store %t, %o[%b, %i] : f32, !nd.tensor<8 x 64 x f32>
    }
  }
  func.return %y : !nd.tensor<8 x 64 x f32>
}
