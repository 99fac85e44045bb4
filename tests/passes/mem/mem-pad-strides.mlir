// RUN: opt-tool %s -p "loop-vectorize{nest=down axis=1 lanes=16},loop-to-mem,mem-pad-strides" | filecheck %s
// RUN: opt-tool %s -p "loop-vectorize{nest=down axis=1 lanes=16},loop-to-mem,mem-pad-strides" --remarks 2>&1 | filecheck %s --check-prefix=WHY
// RUN: opt-tool %s -p "loop-to-mem,mem-pad-strides" | filecheck %s --check-prefix=TILES
// RUN: opt-tool %s -p "loop-to-mem,mem-pad-strides{always=true padding=128}" | filecheck %s --check-prefix=ALWAYS

// WHY: rows of 64 x 1024 are padded: {{.*}} us dense, {{.*}} us padded
// WHY: rows of 64 x 1024 stay dense: the caller gets it

// Columns of rows of 4096 bytes share the ways of the first cache.
// CHECK-LABEL: func.func @columns
// CHECK: mem.alloc {kind = "arena"} : !mem.buffer<64 x 1024 x f32, [1040, 1]>
// CHECK: loop.store {{.*}} !mem.buffer<64 x 1024 x f32, [1040, 1]>
// CHECK: loop.load {{.*}} !mem.buffer<64 x 1024 x f32, [1040, 1]>

// In tiles each line is used as soon as it is there.
// TILES-LABEL: func.func @columns
// TILES: mem.alloc {kind = "arena"} : !mem.buffer<64 x 1024 x f32>

// ALWAYS-LABEL: func.func @columns
// ALWAYS: mem.alloc {kind = "arena"} : !mem.buffer<64 x 1024 x f32, [1056, 1]>
// ALWAYS: mem.alloc {kind = "output"} : !mem.buffer<1024 x 64 x f32>
func.func @columns(%x : !nd.tensor<64 x 1024 x f32>, %z : !nd.tensor<1024 x 64 x f32>) -> !nd.tensor<1024 x 64 x f32> {
  %0 = loop.empty : !nd.tensor<64 x 1024 x f32>
  %e = loop.nest (%i = 64, %j = 1024) outs(%o = %0 : !nd.tensor<64 x 1024 x f32>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<64 x 1024 x f32> -> f32
    %w = arith.addf %v, %v : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<64 x 1024 x f32>
  }
  %1 = loop.empty : !nd.tensor<1024 x 64 x f32>
  %y = loop.nest (%i = 1024, %j = 64) outs(%o = %1 : !nd.tensor<1024 x 64 x f32>) {
    %v = loop.load %e[%j, %i] : !nd.tensor<64 x 1024 x f32> -> f32
    %u = loop.load %z[%i, %j] : !nd.tensor<1024 x 64 x f32> -> f32
    %w = arith.addf %v, %u : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<1024 x 64 x f32>
  } attributes {label = "down"}
  func.return %y : !nd.tensor<1024 x 64 x f32>
}

// ALWAYS-LABEL: func.func @given
// ALWAYS: mem.alloc {kind = "output"} : !mem.buffer<64 x 1024 x f32>
// ALWAYS-NOT: 1056
func.func @given(%x : !nd.tensor<64 x 1024 x f32>) -> !nd.tensor<64 x 1024 x f32> {
  %0 = loop.empty : !nd.tensor<64 x 1024 x f32>
  %e = loop.nest (%i = 64, %j = 1024) outs(%o = %0 : !nd.tensor<64 x 1024 x f32>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<64 x 1024 x f32> -> f32
    loop.store %v, %o[%i, %j] : f32, !nd.tensor<64 x 1024 x f32>
  }
  func.return %e : !nd.tensor<64 x 1024 x f32>
}
