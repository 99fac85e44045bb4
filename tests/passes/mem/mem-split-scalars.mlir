// RUN: opt-tool %s -p "loop-to-mem,mem-split-scalars" | filecheck %s
// RUN: opt-tool %s -p "loop-to-mem,mem-split-scalars" --remarks 2>&1 | filecheck %s --check-prefix=WHY

// WHY: functions of 2048 rows run in vectors: saves {{.*}} us
// WHY: functions of 2048 rows run in vectors: saves {{.*}} us
// WHY: functions of 64 rows stay scalar

// Before the loop over a short row and behind it.
// CHECK-LABEL: func.func @rows
// CHECK: %[[P:.*]] = mem.alloc {kind = "arena"} : !mem.buffer<2048 x f32>
// CHECK: loop.nest (%{{.*}} = 2048) outs(%{{.*}} = %[[P]]
// CHECK-NEXT: loop.load %x
// CHECK-NEXT: math.exp
// CHECK-NEXT: math.log1p
// CHECK-NEXT: loop.store
// CHECK: label = "scalars"
// CHECK: %[[Q:.*]] = mem.alloc {kind = "arena"} : !mem.buffer<2048 x f32>
// CHECK: loop.nest (%{{.*}} = 2048) outs(%{{.*}} = %[[Q]]
// CHECK: loop.load %[[P]]
// CHECK: loop.reduce (%{{.*}} = 16) sum
// CHECK: loop.store {{.*}}[%{{.*}}] : f32, !mem.buffer<2048 x f32>
// CHECK-NEXT: }
// CHECK: loop.nest (%{{.*}} = 2048) outs(
// CHECK: loop.load %[[Q]]
// CHECK: math.tanh
// CHECK: loop.store
func.func @rows(%x : !nd.tensor<2048 x f32>, %z : !nd.tensor<2048 x 16 x f32>) -> (!nd.tensor<2048 x f32>, !nd.tensor<2048 x 16 x f32>) {
  %0 = loop.empty : !nd.tensor<2048 x f32>
  %1 = loop.empty : !nd.tensor<2048 x 16 x f32>
  %y, %a = loop.nest (%i = 2048) outs(%o = %0 : !nd.tensor<2048 x f32>, %b = %1 : !nd.tensor<2048 x 16 x f32>) {
    %v = loop.load %x[%i] : !nd.tensor<2048 x f32> -> f32
    %e = math.exp %v : f32
    %d = math.log1p %e : f32
    %s = loop.reduce (%j = 16) sum {
      %w = loop.load %z[%i, %j] : !nd.tensor<2048 x 16 x f32> -> f32
      %u = arith.mulf %w, %d : f32
      loop.store %u, %b[%i, %j] : f32, !nd.tensor<2048 x 16 x f32>
      loop.yield %u : f32
    } -> f32
    %t = math.tanh %s : f32
    %r = arith.mulf %t, %v : f32
    loop.store %r, %o[%i] : f32, !nd.tensor<2048 x f32>
  }
  func.return %y, %a : !nd.tensor<2048 x f32>, !nd.tensor<2048 x 16 x f32>
}

// In long rows nothing is gained.
// CHECK-LABEL: func.func @long
// CHECK-NOT: "scalars"
func.func @long(%x : !nd.tensor<64 x f32>, %z : !nd.tensor<64 x 4096 x f32>) -> !nd.tensor<64 x f32> {
  %0 = loop.empty : !nd.tensor<64 x f32>
  %y = loop.nest (%i = 64) outs(%o = %0 : !nd.tensor<64 x f32>) {
    %v = loop.load %x[%i] : !nd.tensor<64 x f32> -> f32
    %d = math.exp %v : f32
    %s = loop.reduce (%j = 4096) sum {
      %w = loop.load %z[%i, %j] : !nd.tensor<64 x 4096 x f32> -> f32
      %u = arith.mulf %w, %d : f32
      loop.yield %u : f32
    } -> f32
    loop.store %s, %o[%i] : f32, !nd.tensor<64 x f32>
  }
  func.return %y : !nd.tensor<64 x f32>
}
