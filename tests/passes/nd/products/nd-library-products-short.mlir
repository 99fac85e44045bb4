// RUN: opt-tool %s -p 'nd-library-products{tiny=0 short=8}' | filecheck %s
// RUN: opt-tool %s -p 'nd-library-products{tiny=0 short=3}' | filecheck %s --check-prefix=THREE
// RUN: opt-tool %s -p 'nd-library-products{tiny=0}' | filecheck %s --check-prefix=NONE

// Few columns, and a bias of 16-bit numbers, which is added before the sum is rounded.
// CHECK-LABEL: func.func @points
// CHECK: nd.mul {{.*}} -> !nd.tensor<1000000 x 4 x 4 x f32>
// CHECK: nd.reduce {{.*}} {kind = "sum", dims = [2]} {{.*}} -> !nd.tensor<1000000 x 4 x f32>
// CHECK: nd.add {{.*}} -> !nd.tensor<1000000 x 4 x f32>
// CHECK: nd.cast {{.*}} -> !nd.tensor<1000000 x 4 x bf16>
// CHECK-NOT: nd.extern
// THREE-LABEL: func.func @points
// THREE: aten.addmm.default
// NONE-LABEL: func.func @points
// NONE: aten.addmm.default
func.func @points(%a : !nd.tensor<1000000 x 4 x bf16>, %b : !nd.tensor<4 x 4 x bf16>, %c : !nd.tensor<4 x bf16>) -> !nd.tensor<1000000 x 4 x bf16> {
  %0 = nd.matmul %a, %b : (!nd.tensor<1000000 x 4 x bf16>, !nd.tensor<4 x 4 x bf16>) -> !nd.tensor<1000000 x 4 x bf16>
  %1 = nd.add %0, %c : (!nd.tensor<1000000 x 4 x bf16>, !nd.tensor<4 x bf16>) -> !nd.tensor<1000000 x 4 x bf16>
  func.return %1 : !nd.tensor<1000000 x 4 x bf16>
}

// Few rows, for each of a batch; the other side may be a symbol.
// CHECK-LABEL: func.func @channels
// CHECK: nd.mul {{.*}} -> !nd.tensor<64 x 3 x s0 x 3 x f32>
// CHECK: nd.reduce
// CHECK-NOT: nd.extern
// THREE-LABEL: func.func @channels
// THREE: nd.reduce
// NONE-LABEL: func.func @channels
// NONE: aten.bmm.default
func.func @channels(%a : !nd.tensor<64 x 3 x 3 x f32>, %b : !nd.tensor<64 x 3 x s0 x f32>) -> !nd.tensor<64 x 3 x s0 x f32> {
  %0 = nd.matmul %a, %b : (!nd.tensor<64 x 3 x 3 x f32>, !nd.tensor<64 x 3 x s0 x f32>) -> !nd.tensor<64 x 3 x s0 x f32>
  func.return %0 : !nd.tensor<64 x 3 x s0 x f32>
}

// Long sums, two long sides, and sums of so many terms as a symbol are the library's.
// CHECK-LABEL: func.func @long
// CHECK-NOT: nd.reduce
// CHECK-COUNT-3: aten.mm.default
func.func @long(%a : !nd.tensor<3 x 1000000 x f32>, %b : !nd.tensor<1000000 x 3 x f32>, %c : !nd.tensor<3 x s0 x f32>, %d : !nd.tensor<s0 x 3 x f32>)
    -> (!nd.tensor<3 x 3 x f32>, !nd.tensor<1000000 x 1000000 x f32>, !nd.tensor<3 x 3 x f32>) {
  %0 = nd.matmul %a, %b : (!nd.tensor<3 x 1000000 x f32>, !nd.tensor<1000000 x 3 x f32>) -> !nd.tensor<3 x 3 x f32>
  %1 = nd.matmul %b, %a : (!nd.tensor<1000000 x 3 x f32>, !nd.tensor<3 x 1000000 x f32>) -> !nd.tensor<1000000 x 1000000 x f32>
  %2 = nd.matmul %c, %d : (!nd.tensor<3 x s0 x f32>, !nd.tensor<s0 x 3 x f32>) -> !nd.tensor<3 x 3 x f32>
  func.return %0, %1, %2 : !nd.tensor<3 x 3 x f32>, !nd.tensor<1000000 x 1000000 x f32>, !nd.tensor<3 x 3 x f32>
}
