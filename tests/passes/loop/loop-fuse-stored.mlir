// RUN: opt-tool %s -p nd-to-loop,loop-fuse | filecheck %s

// The gates of channels are a result, and shared by all places of a channel: these are multiplied by what is stored.
// CHECK-LABEL: func.func @gates
// CHECK: loop.math "sigmoid"
// CHECK: arith.truncf
// CHECK: arith.extf
// CHECK: arith.mulf
func.func @gates(%x : !nd.tensor<4 x 8 x 1 x bf16>, %y : !nd.tensor<4 x 8 x s0 x bf16>)
    -> (!nd.tensor<4 x 8 x bf16>, !nd.tensor<4 x 8 x s0 x bf16>) {
  %s = nd.sigmoid %x : !nd.tensor<4 x 8 x 1 x bf16>
  %flat = nd.reshape %s : (!nd.tensor<4 x 8 x 1 x bf16>) -> !nd.tensor<4 x 8 x bf16>
  %z = nd.mul %s, %y : (!nd.tensor<4 x 8 x 1 x bf16>, !nd.tensor<4 x 8 x s0 x bf16>) -> !nd.tensor<4 x 8 x s0 x bf16>
  func.return %flat, %z : !nd.tensor<4 x 8 x bf16>, !nd.tensor<4 x 8 x s0 x bf16>
}

// Here they are inside of a nest alone, and stay in f32 there.
// CHECK-LABEL: func.func @inside
// CHECK-NOT: arith.truncf
// CHECK: func.return
func.func @inside(%x : !nd.tensor<4 x 8 x 1 x bf16>, %y : !nd.tensor<4 x 8 x s0 x bf16>) -> !nd.tensor<4 x 8 x s0 x bf16> {
  %s = nd.sigmoid %x : !nd.tensor<4 x 8 x 1 x bf16>
  %z = nd.mul %s, %y : (!nd.tensor<4 x 8 x 1 x bf16>, !nd.tensor<4 x 8 x s0 x bf16>) -> !nd.tensor<4 x 8 x s0 x bf16>
  func.return %z : !nd.tensor<4 x 8 x s0 x bf16>
}

// Of elements too: what is read here is what others load.
// CHECK-LABEL: func.func @elements
// CHECK: arith.truncf %[[S:.*]] : f32 to bf16
// CHECK-NEXT: %[[R:.*]] = arith.extf
// CHECK-NEXT: loop.store %[[R]]
// CHECK-NEXT: arith.mulf %[[R]]
func.func @elements(%x : !nd.tensor<4 x s0 x bf16>) -> (!nd.tensor<4 x s0 x bf16>, !nd.tensor<4 x s0 x bf16>) {
  %s = nd.sigmoid %x : !nd.tensor<4 x s0 x bf16>
  %z = nd.mul %s, %x : !nd.tensor<4 x s0 x bf16>
  func.return %s, %z : !nd.tensor<4 x s0 x bf16>, !nd.tensor<4 x s0 x bf16>
}

// The sum of a row and its elements are of the same numbers, the ones that are stored.
// CHECK-LABEL: func.func @rows
// CHECK: loop.reduce
// CHECK: arith.truncf
// CHECK-NEXT: %[[X:.*]] = arith.extf
// CHECK-NEXT: loop.store %[[X]]
// CHECK-NEXT: loop.yield %[[X]]
func.func @rows(%a : !nd.tensor<4 x 64 x bf16>, %b : !nd.tensor<4 x 64 x bf16>) -> (!nd.tensor<4 x 64 x bf16>, !nd.tensor<4 x f32>) {
  %x = nd.add %a, %b : !nd.tensor<4 x 64 x bf16>
  %wide = nd.cast %x : (!nd.tensor<4 x 64 x bf16>) -> !nd.tensor<4 x 64 x f32>
  %sum = nd.reduce %wide {kind = "sum", dims = [1]} : (!nd.tensor<4 x 64 x f32>) -> !nd.tensor<4 x f32>
  func.return %x, %sum : !nd.tensor<4 x 64 x bf16>, !nd.tensor<4 x f32>
}

// A sum in f32 of the same elements is another value, which is not rounded.
// CHECK-LABEL: func.func @wide
// CHECK: %[[SUM:.*]] = arith.addf
// CHECK-DAG: loop.store %[[SUM]], %{{.*}} : f32, !nd.tensor<4 x f32>
func.func @wide(%a : !nd.tensor<4 x bf16>, %b : !nd.tensor<4 x bf16>) -> (!nd.tensor<4 x bf16>, !nd.tensor<4 x bf16>, !nd.tensor<4 x f32>) {
  %x = nd.add %a, %b : !nd.tensor<4 x bf16>
  %y = nd.mul %x, %b : !nd.tensor<4 x bf16>
  %c = nd.cast %a : (!nd.tensor<4 x bf16>) -> !nd.tensor<4 x f32>
  %d = nd.cast %b : (!nd.tensor<4 x bf16>) -> !nd.tensor<4 x f32>
  %z = nd.add %c, %d : !nd.tensor<4 x f32>
  func.return %x, %y, %z : !nd.tensor<4 x bf16>, !nd.tensor<4 x bf16>, !nd.tensor<4 x f32>
}
