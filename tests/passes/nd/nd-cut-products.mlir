// RUN: opt-tool %s -p nd-cut-products,nd-canonicalize --machine cpu --split-input-file | filecheck %s
// A product and the collective beside it are cut where parts overlap; what is too small, and what other work hides, stays whole.

func.func @reduced(%x: !nd.tensor<2048 x 4096 x f32>, %w: !nd.tensor<4096 x 256 x f32>) -> !nd.tensor<4 x 512 x 256 x f32> {
  %p = nd.matmul %x, %w : (!nd.tensor<2048 x 4096 x f32>, !nd.tensor<4096 x 256 x f32>) -> !nd.tensor<2048 x 256 x f32>
  %v = nd.reshape %p : (!nd.tensor<2048 x 256 x f32>) -> !nd.tensor<4 x 512 x 256 x f32>
  %a = nd.extern %v {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<4 x 512 x 256 x f32>
  %u = nd.extern %a, %v {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<4 x 512 x 256 x f32>, !nd.tensor<4 x 512 x 256 x f32>) -> !nd.tensor<4 x 512 x 256 x f32>
  func.return %u : !nd.tensor<4 x 512 x 256 x f32>
}
// Rows of the first factor; each part is sent before the next one is computed.
// CHECK-LABEL: @reduced
// CHECK: nd.matmul {{.*}}!nd.tensor<4096 x 256 x f32>) -> !nd.tensor<[[N:[0-9]+]] x 256 x f32>
// CHECK-NEXT: all_reduce.default
// CHECK: nd.slice %x
// CHECK: nd.matmul
// CHECK: wait_tensor
// CHECK: nd.cat {{.*}}-> !nd.tensor<2048 x 256 x f32>
// CHECK-NEXT: nd.reshape {{.*}}-> !nd.tensor<4 x 512 x 256 x f32>

// -----

func.func @scattered(%x: !nd.tensor<2048 x 512 x f32>, %w: !nd.tensor<512 x 1024 x f32>) -> !nd.tensor<1024 x 1024 x f32> {
  %p = nd.matmul %x, %w : (!nd.tensor<2048 x 512 x f32>, !nd.tensor<512 x 1024 x f32>) -> !nd.tensor<2048 x 1024 x f32>
  %a = nd.extern %p {call = #nd.call<"_c10d_functional.reduce_scatter_tensor.default", [arg(0), "sum", 2, "0"]>} : (!nd.tensor<2048 x 1024 x f32>) -> !nd.tensor<1024 x 1024 x f32>
  %u = nd.extern %a, %p {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<1024 x 1024 x f32>, !nd.tensor<2048 x 1024 x f32>) -> !nd.tensor<1024 x 1024 x f32>
  func.return %u : !nd.tensor<1024 x 1024 x f32>
}
// Columns of the second factor: every rank has a part of each.
// CHECK-LABEL: @scattered
// CHECK: nd.matmul %x, {{.*}} -> !nd.tensor<2048 x [[N:[0-9]+]] x f32>
// CHECK-NEXT: reduce_scatter_tensor.default{{.*}} -> !nd.tensor<1024 x [[N]] x f32>
// CHECK: nd.matmul %x
// CHECK: nd.cat {{.*}}{dim = [1]}{{.*}}-> !nd.tensor<1024 x 1024 x f32>

// -----

func.func @gathered(%x: !nd.tensor<2 x 512 x 2048 x f32>, %w: !nd.tensor<2048 x 256 x f32>, %v: !nd.tensor<2048 x 64 x f32>) -> (!nd.tensor<2048 x 256 x f32>, !nd.tensor<2048 x 64 x f32>) {
  %a = nd.extern %x {call = #nd.call<"_c10d_functional.all_gather_into_tensor.default", [arg(0), 2, "0"]>} : (!nd.tensor<2 x 512 x 2048 x f32>) -> !nd.tensor<4 x 512 x 2048 x f32>
  %u = nd.extern %a, %x {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<4 x 512 x 2048 x f32>, !nd.tensor<2 x 512 x 2048 x f32>) -> !nd.tensor<4 x 512 x 2048 x f32>
  %r = nd.reshape %u : (!nd.tensor<4 x 512 x 2048 x f32>) -> !nd.tensor<2048 x 2048 x f32>
  %p = nd.matmul %r, %w : (!nd.tensor<2048 x 2048 x f32>, !nd.tensor<2048 x 256 x f32>) -> !nd.tensor<2048 x 256 x f32>
  %q = nd.matmul %r, %v : (!nd.tensor<2048 x 2048 x f32>, !nd.tensor<2048 x 64 x f32>) -> !nd.tensor<2048 x 64 x f32>
  func.return %p, %q : !nd.tensor<2048 x 256 x f32>, !nd.tensor<2048 x 64 x f32>
}
// Rows of a rank: those of all ranks are put together again behind each product.
// CHECK-LABEL: @gathered
// CHECK: all_gather_into_tensor
// CHECK: all_gather_into_tensor
// CHECK: wait_tensor
// CHECK: nd.matmul {{.*}}!nd.tensor<2048 x 256 x f32>
// CHECK: nd.cat {{.*}}{dim = [1]}{{.*}}-> !nd.tensor<2 x 1024 x 256 x f32>
// CHECK: nd.cat {{.*}}{dim = [1]}{{.*}}-> !nd.tensor<2 x 1024 x 64 x f32>

// -----

// One is sent in less than the time of a start; rows of the other are a symbol, whose hints may differ between ranks.
func.func @whole(%x: !nd.tensor<16 x 64 x f32>, %w: !nd.tensor<64 x 64 x f32>, %y: !nd.tensor<s0 x 64 x f32>) -> (!nd.tensor<16 x 64 x f32>, !nd.tensor<s0 x 64 x f32>) {
  %p = nd.matmul %x, %w : (!nd.tensor<16 x 64 x f32>, !nd.tensor<64 x 64 x f32>) -> !nd.tensor<16 x 64 x f32>
  %a = nd.extern %p {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<16 x 64 x f32>
  %u = nd.extern %a, %p {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<16 x 64 x f32>, !nd.tensor<16 x 64 x f32>) -> !nd.tensor<16 x 64 x f32>
  %q = nd.matmul %y, %w : (!nd.tensor<s0 x 64 x f32>, !nd.tensor<64 x 64 x f32>) -> !nd.tensor<s0 x 64 x f32>
  %b = nd.extern %q {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<s0 x 64 x f32>
  %v = nd.extern %b, %q {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<s0 x 64 x f32>, !nd.tensor<s0 x 64 x f32>) -> !nd.tensor<s0 x 64 x f32>
  func.return %u, %v : !nd.tensor<16 x 64 x f32>, !nd.tensor<s0 x 64 x f32>
}
// CHECK-LABEL: @whole
// CHECK-NOT: nd.slice
// CHECK-NOT: nd.cat

// -----

// The other product takes longer than the all-reduce, and needs none of it.
func.func @hidden(%x: !nd.tensor<2048 x 4096 x f32>, %w: !nd.tensor<4096 x 256 x f32>, %y: !nd.tensor<4096 x 4096 x f32>) -> (!nd.tensor<2048 x 256 x f32>, !nd.tensor<4096 x 4096 x f32>) {
  %p = nd.matmul %x, %w : (!nd.tensor<2048 x 4096 x f32>, !nd.tensor<4096 x 256 x f32>) -> !nd.tensor<2048 x 256 x f32>
  %a = nd.extern %p {call = #nd.call<"_c10d_functional.all_reduce.default", [arg(0), "sum", "0"]>} : !nd.tensor<2048 x 256 x f32>
  %u = nd.extern %a, %p {call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>} : (!nd.tensor<2048 x 256 x f32>, !nd.tensor<2048 x 256 x f32>) -> !nd.tensor<2048 x 256 x f32>
  %q = nd.matmul %y, %y : !nd.tensor<4096 x 4096 x f32>
  func.return %u, %q : !nd.tensor<2048 x 256 x f32>, !nd.tensor<4096 x 4096 x f32>
}
// CHECK-LABEL: @hidden
// CHECK-NOT: nd.cat
