// RUN: opt-tool %s -p nd-to-loop,loop-order --split-input-file | filecheck %s
// A collective begins when its operand is there, and other work comes before the wait for it (K03).

func.func @beside(%x: !nd.tensor<64 x 64 x f32>, %g: !nd.tensor<64 x f32>) -> (!nd.tensor<64 x f32>, !nd.tensor<64 x 64 x f32>) {
  %p = nd.exp %x : !nd.tensor<64 x 64 x f32>
  %h = nd.sin %g : !nd.tensor<64 x f32>
  %a = nd.extern %h {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<64 x f32>
  %w = nd.extern %a, %h {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<64 x f32>, !nd.tensor<64 x f32>) -> !nd.tensor<64 x f32>
  %r = nd.cos %w : !nd.tensor<64 x f32>
  %m = nd.matmul %p, %x : (!nd.tensor<64 x 64 x f32>, !nd.tensor<64 x 64 x f32>) -> !nd.tensor<64 x 64 x f32>
  func.return %r, %m : !nd.tensor<64 x f32>, !nd.tensor<64 x 64 x f32>
}
// CHECK-LABEL: @beside
// CHECK: all_reduce.default
// CHECK: loop.contract
// CHECK: wait_tensor.default
// CHECK: func.return

// -----

// Two collectives keep their order, whatever their prices are (K02).
func.func @in_order(%x: !nd.tensor<4 x f32>, %y: !nd.tensor<65536 x f32>) -> (!nd.tensor<65536 x f32>, !nd.tensor<4 x f32>) {
  %s = nd.sin %y : !nd.tensor<65536 x f32>
  %a = nd.extern %s {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<65536 x f32>
  %w = nd.extern %a, %s {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<65536 x f32>, !nd.tensor<65536 x f32>) -> !nd.tensor<65536 x f32>
  %b = nd.extern %x {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "max", "0"]>} : !nd.tensor<4 x f32>
  %v = nd.extern %b, %x {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32>
  func.return %w, %v : !nd.tensor<65536 x f32>, !nd.tensor<4 x f32>
}
// CHECK-LABEL: @in_order
// CHECK: "sum"
// CHECK: "max"
// CHECK: func.return
