// RUN: opt-tool %s -p nd-to-loop,loop-fuse,contract-accumulate | filecheck %s
// RUN: opt-tool %s -p nd-to-loop,loop-fuse,contract-accumulate,loop-to-mem,contract-select{force=library},mem-to-cpu | filecheck %s --check-prefix=CALL
// RUN: opt-tool %s -p nd-to-loop,loop-fuse,contract-accumulate,loop-to-mem,contract-select{force=gemm},mem-to-cpu | filecheck %s --check-prefix=OWN

// CALL-LABEL: func.func @sum
// CALL: aten.mm
// CALL: aten.addmm
// OWN: cpu.gemm @gemm_f32_nn {dtype = "f32", out = "f32"}
// OWN: cpu.gemm @gemm_f32_nn_add {dtype = "f32", out = "f32", accumulate}

// CHECK-LABEL: func.func @sum
// CHECK: %[[P:.*]] = loop.contract
// CHECK: loop.contract {{.*}} outs({{.*}} = %[[P]] : !nd.tensor<8 x 8 x f32>)
// CHECK: loop.store {{.*}} add
// CHECK-NOT: loop.nest
func.func @sum(%a : !nd.tensor<8 x 9 x f32>, %b : !nd.tensor<8 x 9 x f32>, %x : !nd.tensor<9 x 8 x f32>, %y : !nd.tensor<9 x 8 x f32>)
    -> !nd.tensor<8 x 8 x f32> {
  %0 = nd.matmul %a, %x : (!nd.tensor<8 x 9 x f32>, !nd.tensor<9 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %1 = nd.matmul %b, %y : (!nd.tensor<8 x 9 x f32>, !nd.tensor<9 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %2 = nd.add %0, %1 : !nd.tensor<8 x 8 x f32>
  func.return %2 : !nd.tensor<8 x 8 x f32>
}

// Another nest reads the sum anyway, and rounding after each product of bf16 would lose digits.
// CHECK-LABEL: func.func @activation
// CHECK-COUNT-2: loop.contract
// CHECK: loop.nest
func.func @activation(%a : !nd.tensor<8 x 9 x f32>, %b : !nd.tensor<8 x 9 x f32>, %x : !nd.tensor<9 x 8 x f32>, %y : !nd.tensor<9 x 8 x f32>)
    -> !nd.tensor<8 x 8 x f32> {
  %0 = nd.matmul %a, %x : (!nd.tensor<8 x 9 x f32>, !nd.tensor<9 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %1 = nd.matmul %b, %y : (!nd.tensor<8 x 9 x f32>, !nd.tensor<9 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %2 = nd.add %0, %1 : !nd.tensor<8 x 8 x f32>
  %3 = nd.exp %2 : !nd.tensor<8 x 8 x f32>
  func.return %3 : !nd.tensor<8 x 8 x f32>
}

// CHECK-LABEL: func.func @half
// CHECK-COUNT-2: loop.contract
// CHECK: loop.nest
func.func @half(%a : !nd.tensor<8 x 9 x bf16>, %b : !nd.tensor<8 x 9 x bf16>, %x : !nd.tensor<9 x 8 x bf16>, %y : !nd.tensor<9 x 8 x bf16>)
    -> !nd.tensor<8 x 8 x bf16> {
  %0 = nd.matmul %a, %x : (!nd.tensor<8 x 9 x bf16>, !nd.tensor<9 x 8 x bf16>) -> !nd.tensor<8 x 8 x bf16>
  %1 = nd.matmul %b, %y : (!nd.tensor<8 x 9 x bf16>, !nd.tensor<9 x 8 x bf16>) -> !nd.tensor<8 x 8 x bf16>
  %2 = nd.add %0, %1 : !nd.tensor<8 x 8 x bf16>
  func.return %2 : !nd.tensor<8 x 8 x bf16>
}

// The first product is needed by itself too.
// CHECK-LABEL: func.func @kept
// CHECK-COUNT-2: loop.contract
// CHECK: loop.nest
func.func @kept(%a : !nd.tensor<8 x 9 x f32>, %b : !nd.tensor<8 x 9 x f32>, %x : !nd.tensor<9 x 8 x f32>, %y : !nd.tensor<9 x 8 x f32>)
    -> (!nd.tensor<8 x 8 x f32>, !nd.tensor<8 x 8 x f32>) {
  %0 = nd.matmul %a, %x : (!nd.tensor<8 x 9 x f32>, !nd.tensor<9 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %1 = nd.matmul %b, %y : (!nd.tensor<8 x 9 x f32>, !nd.tensor<9 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %2 = nd.add %0, %1 : !nd.tensor<8 x 8 x f32>
  func.return %0, %2 : !nd.tensor<8 x 8 x f32>, !nd.tensor<8 x 8 x f32>
}
