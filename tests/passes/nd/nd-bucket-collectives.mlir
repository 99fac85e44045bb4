// RUN: opt-tool %s -p nd-bucket-collectives --split-input-file --remarks | filecheck %s
// Small collectives of one kind become one; what each needs and gives is a part of it.

func.func @sums(%x: !nd.tensor<2 x 3 x f32>, %y: !nd.tensor<4 x f32>) -> (!nd.tensor<2 x 3 x f32>, !nd.tensor<4 x f32>) {
  %a = nd.extern %x {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<2 x 3 x f32>
  %u = nd.extern %a, %x {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<2 x 3 x f32>, !nd.tensor<2 x 3 x f32>) -> !nd.tensor<2 x 3 x f32>
  %p = nd.relu %u : !nd.tensor<2 x 3 x f32>
  %q = nd.exp %y : !nd.tensor<4 x f32>
  %b = nd.extern %q {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<4 x f32>
  %v = nd.extern %b, %q {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32>
  func.return %p, %v : !nd.tensor<2 x 3 x f32>, !nd.tensor<4 x f32>
}
// CHECK-LABEL: @sums
// CHECK: nd.cat {{.*}} -> !nd.tensor<1 x 10 x f32>
// CHECK: nd.extern {{.*}}all_reduce.default", [arg(0), "sum", "0"]>, operand_layouts = [#nd.layout<[1], 0>]{{.*}} : !nd.tensor<10 x f32>
// CHECK: wait_tensor
// CHECK: nd.slice %{{.*}} {starts = [0, 0]
// CHECK: nd.slice %{{.*}} {starts = [0, 6]
// CHECK: func.return

// -----

// Two chains: the second sum of each needs the first one.
func.func @chains(%x: !nd.tensor<4 x f32>, %y: !nd.tensor<4 x f32>) -> (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>) {
  %a = nd.extern %x {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<4 x f32>
  %u = nd.extern %a, %x {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32>
  %b = nd.extern %u {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "max", "0"]>} : !nd.tensor<4 x f32>
  %v = nd.extern %b, %u {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32>
  %c = nd.extern %y {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "max", "0"]>} : !nd.tensor<4 x f32>
  %w = nd.extern %c, %y {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32>
  %d = nd.extern %w {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<4 x f32>
  %z = nd.extern %d, %w {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32>
  func.return %v, %z : !nd.tensor<4 x f32>, !nd.tensor<4 x f32>
}
// The maxima become one; the sums cannot: one of them comes before that, the other behind.
// CHECK-LABEL: @chains
// CHECK: "sum", "0"]>{{.*}} : !nd.tensor<4 x f32>
// CHECK: "max", "0"]>{{.*}} : !nd.tensor<8 x f32>
// CHECK: "sum", "0"]>{{.*}} : !nd.tensor<4 x f32>

// -----

// Rows of ranks: what one rank gathers of each tensor lies side by side.
func.func @rows(%x: !nd.tensor<2 x 3 x f32>, %y: !nd.tensor<1 x f32>) -> (!nd.tensor<4 x 3 x f32>, !nd.tensor<2 x f32>) {
  %a = nd.extern %x {call = #nd.call<"_c10d_functional.all_gather_into_tensor.default", [arg(0), 2, "0"]>} : (!nd.tensor<2 x 3 x f32>) -> !nd.tensor<4 x 3 x f32>
  %b = nd.extern %y {call = #nd.call<"_c10d_functional.all_gather_into_tensor.default", [arg(0), 2, "0"]>} : (!nd.tensor<1 x f32>) -> !nd.tensor<2 x f32>
  %u = nd.extern %a, %x {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<4 x 3 x f32>, !nd.tensor<2 x 3 x f32>) -> !nd.tensor<4 x 3 x f32>
  %v = nd.extern %b, %y {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<2 x f32>, !nd.tensor<1 x f32>) -> !nd.tensor<2 x f32>
  func.return %u, %v : !nd.tensor<4 x 3 x f32>, !nd.tensor<2 x f32>
}
// CHECK-LABEL: @rows
// CHECK: all_gather_into_tensor.default{{.*}} : (!nd.tensor<7 x f32>) -> !nd.tensor<14 x f32>
// CHECK: nd.reshape {{.*}} -> !nd.tensor<2 x 7 x f32>
// CHECK: nd.slice {{.*}} -> !nd.tensor<2 x 6 x f32>

// -----

// A symbol's typical value may be another one on another rank; the types differ; one is large.
func.func @apart(%x: !nd.tensor<s0 x f32>, %y: !nd.tensor<4 x f32>, %z: !nd.tensor<4 x f64>, %big: !nd.tensor<1000000 x f32>) -> (!nd.tensor<s0 x f32>, !nd.tensor<4 x f32>, !nd.tensor<4 x f64>, !nd.tensor<1000000 x f32>) {
  %a = nd.extern %x {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<s0 x f32>
  %b = nd.extern %y {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<4 x f32>
  %c = nd.extern %z {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<4 x f64>
  %d = nd.extern %big {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<1000000 x f32>
  %s = nd.extern %a, %x {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<s0 x f32>, !nd.tensor<s0 x f32>) -> !nd.tensor<s0 x f32>
  %t = nd.extern %b, %y {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32>
  %u = nd.extern %c, %z {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<4 x f64>, !nd.tensor<4 x f64>) -> !nd.tensor<4 x f64>
  %v = nd.extern %d, %big {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<1000000 x f32>, !nd.tensor<1000000 x f32>) -> !nd.tensor<1000000 x f32>
  func.return %s, %t, %u, %v : !nd.tensor<s0 x f32>, !nd.tensor<4 x f32>, !nd.tensor<4 x f64>, !nd.tensor<1000000 x f32>
}
// CHECK-LABEL: @apart
// CHECK-NOT: nd.cat
// CHECK: func.return
