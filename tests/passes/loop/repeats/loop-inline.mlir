// RUN: opt-tool %s -p loop-inline --split-input-file --verify-diagnostics --mlir-print-debuginfo | filecheck %s

// Each call gets a copy with names, labels and locations of its own layer.
// CHECK:       func.func @forward
// CHECK:         %a = loop.nest
// CHECK:           math.tanh {{.*}} loc("a")
// CHECK:         attributes {label = "a"} loc("a")
// CHECK:         %b = loop.nest
// CHECK:           math.tanh {{.*}} loc("b")
// CHECK:         attributes {label = "b"} loc("b")
// CHECK:         func.return %b
// CHECK-NOT:   func.func
func.func @forward(%x: !nd.tensor<8 x f32>) -> !nd.tensor<8 x f32> {
  %a = func.call @layer0(%x) : (!nd.tensor<8 x f32>) -> !nd.tensor<8 x f32> loc(fused["a"])
  %b = func.call @layer0(%a) : (!nd.tensor<8 x f32>) -> !nd.tensor<8 x f32> loc(fused["b"])
  func.return %b : !nd.tensor<8 x f32>
}
func.func private @layer0(%x: !nd.tensor<8 x f32>) -> !nd.tensor<8 x f32> {
  %e = loop.empty : !nd.tensor<8 x f32>
  %y = loop.nest (%i = 8) outs(%o = %e : !nd.tensor<8 x f32>) {
    %v = loop.load %x[%i] : !nd.tensor<8 x f32> -> f32
    %w = math.tanh %v : f32 loc("y")
    loop.store %w, %o[%i] : f32, !nd.tensor<8 x f32>
  } attributes {label = "y"} loc("y")
  func.return %y : !nd.tensor<8 x f32>
} loc(fused["y"])

// -----

func.func @forward(%x: !nd.tensor<8 x f32>) -> !nd.tensor<8 x f32> {
  // expected-error @+1 {{there is no private function @elsewhere with a body to take the place of its call}}
  %a = func.call @elsewhere(%x) : (!nd.tensor<8 x f32>) -> !nd.tensor<8 x f32>
  func.return %a : !nd.tensor<8 x f32>
}
func.func @elsewhere(%x: !nd.tensor<8 x f32>) -> !nd.tensor<8 x f32> {
  func.return %x : !nd.tensor<8 x f32>
}
