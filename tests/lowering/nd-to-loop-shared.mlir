// RUN: opt-tool %s -p nd-to-loop,loop-fuse | filecheck %s

// The gates of channels are a result, and shared by all places of a channel: these are multiplied by what is returned.
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

// One place reads each element: the error is that of a single rounding either way.
// CHECK-LABEL: func.func @elements
// CHECK-NOT: arith.truncf
// CHECK: func.return
func.func @elements(%x : !nd.tensor<4 x s0 x bf16>) -> (!nd.tensor<4 x s0 x bf16>, !nd.tensor<4 x s0 x bf16>) {
  %s = nd.sigmoid %x : !nd.tensor<4 x s0 x bf16>
  %z = nd.mul %s, %x : !nd.tensor<4 x s0 x bf16>
  func.return %s, %z : !nd.tensor<4 x s0 x bf16>, !nd.tensor<4 x s0 x bf16>
}
