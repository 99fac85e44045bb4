// RUN: opt-tool %s -p "loop-to-mem,mem-pack-operands" | filecheck %s
// RUN: opt-tool %s -p "loop-to-mem,mem-pack-operands" --remarks 2>&1 | filecheck %s --check-prefix=WHY
// RUN: opt-tool %s -p "loop-to-mem,mem-pack-operands{always=true},mem-plan,loop-schedule" | filecheck %s --check-prefix=ALWAYS

// WHY: an operand is packed: {{.*}} us as it lies, {{.*}} us with a copy of 512 x 256

// Rows that lie in columns: the maximum and the exponentials read the copy.
// CHECK-LABEL: func.func @columns
// CHECK: %[[P:.*]] = mem.alloc {kind = "arena"} : !mem.buffer<512 x 256 x f32>
// CHECK: loop.nest (%{{.*}} = 512, %{{.*}} = 256) outs(%{{.*}} = %[[P]]
// CHECK: loop.load %x[%{{.*}}, %{{.*}}] : !mem.buffer<512 x 256 x f32, [1, 512]>
// CHECK: label = "pack"
// CHECK: loop.reduce (%{{.*}} = 256) max
// CHECK-NEXT: loop.load %[[P]]
// CHECK: loop.for (%{{.*}} = 256)
// CHECK-NEXT: loop.load %[[P]]

// ALWAYS-LABEL: func.func @columns
// ALWAYS: label = "pack", schedule = {{.*}}tile
func.func @columns(%x : !nd.tensor<512 x 256 x f32> {nd.layout = #nd.layout<[1, 512], 0>}) -> !nd.tensor<512 x 256 x f32> {
  %0 = loop.empty : !nd.tensor<512 x 256 x f32>
  %y = loop.nest (%i = 512) outs(%o = %0 : !nd.tensor<512 x 256 x f32>) {
    %m = loop.reduce (%j = 256) max {
      %v = loop.load %x[%i, %j] : !nd.tensor<512 x 256 x f32> -> f32
      loop.yield %v : f32
    } -> f32
    loop.for (%k = 256) {
      %v = loop.load %x[%i, %k] : !nd.tensor<512 x 256 x f32> -> f32
      %d = arith.subf %v, %m : f32
      %e = math.exp %d : f32
      loop.store %e, %o[%i, %k] : f32, !nd.tensor<512 x 256 x f32>
    }
  }
  func.return %y : !nd.tensor<512 x 256 x f32>
}

// Sums of columns have their lanes along the rows, where nothing is to be gained.
// CHECK-LABEL: func.func @sums
// CHECK-NOT: "pack"
// ALWAYS-LABEL: func.func @sums
// ALWAYS: label = "pack"
func.func @sums(%x : !nd.tensor<512 x 256 x f32> {nd.layout = #nd.layout<[1, 512], 0>}) -> !nd.tensor<512 x f32> {
  %0 = loop.empty : !nd.tensor<512 x f32>
  %y = loop.nest (%i = 512) outs(%o = %0 : !nd.tensor<512 x f32>) {
    %s = loop.reduce (%k = 256) sum {
      %v = loop.load %x[%i, %k] : !nd.tensor<512 x 256 x f32> -> f32
      loop.yield %v : f32
    } -> f32
    loop.store %s, %o[%i] : f32, !nd.tensor<512 x f32>
  }
  func.return %y : !nd.tensor<512 x f32>
}

// Along the rows, in part, and what a loaded index says stays as it is.
// CHECK-LABEL: func.func @rows
// ALWAYS-LABEL: func.func @rows
// ALWAYS-NOT: "pack"
func.func @rows(%x : !nd.tensor<64 x 256 x f32>, %at : !nd.tensor<64 x i64>) -> !nd.tensor<64 x f32> {
  %0 = loop.empty : !nd.tensor<64 x f32>
  %y = loop.nest (%i = 64) outs(%o = %0 : !nd.tensor<64 x f32>) {
    %a = loop.load %at[%i] : !nd.tensor<64 x i64> -> i64
    %b = loop.bound %a, 256 "rows" wrap : i64
    %s = loop.reduce (%k = 64) sum {
      %v = loop.load %x[%i, %k * 2] : !nd.tensor<64 x 256 x f32> -> f32
      %w = loop.load %x[%k, %b] : !nd.tensor<64 x 256 x f32> -> f32
      %u = arith.addf %v, %w : f32
      loop.yield %u : f32
    } -> f32
    loop.store %s, %o[%i] : f32, !nd.tensor<64 x f32>
  }
  func.return %y : !nd.tensor<64 x f32>
}
