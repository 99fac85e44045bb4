// RUN: opt-tool %s -p loop-batch --split-input-file | filecheck %s
// RUN: opt-tool %s -p loop-batch --remarks --split-input-file 2>&1 | filecheck %s --check-prefix=REMARK
// RUN: opt-tool %s -p loop-batch,nd-to-loop,loop-to-mem --split-input-file | filecheck %s --check-prefix=MEM

// Equal steps, each of which needs the one before it, are no list.
// CHECK:       func.func @steps
// CHECK-NOT:   loop.batch @
// REMARK:      not in a list (4 of 4 equal parts): an entry needs what is computed from another one
// MEM:         func.func @steps
// MEM-NOT:     loop.batch @
func.func @steps(%w0: !nd.tensor<8 x f32>, %w1: !nd.tensor<8 x f32>, %w2: !nd.tensor<8 x f32>, %w3: !nd.tensor<8 x f32>, %s: !nd.tensor<f32>) -> !nd.tensor<f32> {
  %a0 = nd.mul %w0, %s : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  %b0 = nd.reduce %a0 {kind = "sum", dims = [0]} : (!nd.tensor<8 x f32>) -> !nd.tensor<f32>
  %a1 = nd.mul %w1, %b0 : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  %b1 = nd.reduce %a1 {kind = "sum", dims = [0]} : (!nd.tensor<8 x f32>) -> !nd.tensor<f32>
  %a2 = nd.mul %w2, %b1 : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  %b2 = nd.reduce %a2 {kind = "sum", dims = [0]} : (!nd.tensor<8 x f32>) -> !nd.tensor<f32>
  %a3 = nd.mul %w3, %b2 : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  %b3 = nd.reduce %a3 {kind = "sum", dims = [0]} : (!nd.tensor<8 x f32>) -> !nd.tensor<f32>
  func.return %b3 : !nd.tensor<f32>
}

// -----

// Those that need no other one are a list. What needs their results reads them there: a step alone, and a second list.
// CHECK:       func.func @beside
// CHECK-NEXT:    %b0, %b1, %b2, %b3 = loop.batch @batch0 [
// CHECK:         %c0, %c1, %c2, %c3 = loop.batch @batch1 [
// CHECK-NEXT:      (%v0 : !nd.tensor<8 x f32>, %b0 : !nd.tensor<f32>)
// CHECK:         %a4 = nd.mul %w4, %b3
// CHECK:         func.return %b4, %c0, %c1, %c2, %c3
// REMARK:      4 equal parts of 2 operations are one list
// REMARK:      not in a list (1 of 5 equal parts): an entry needs what is computed from another one
// MEM:         func.func @beside
// MEM:         loop.batch @batch0
// MEM:         loop.batch @batch1
func.func @beside(%w0: !nd.tensor<8 x f32>, %w1: !nd.tensor<8 x f32>, %w2: !nd.tensor<8 x f32>, %w3: !nd.tensor<8 x f32>, %w4: !nd.tensor<8 x f32>, %v0: !nd.tensor<8 x f32>, %v1: !nd.tensor<8 x f32>, %v2: !nd.tensor<8 x f32>, %v3: !nd.tensor<8 x f32>, %s: !nd.tensor<f32>) -> (!nd.tensor<f32>, !nd.tensor<8 x f32>, !nd.tensor<8 x f32>, !nd.tensor<8 x f32>, !nd.tensor<8 x f32>) {
  %a0 = nd.mul %w0, %s : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  %b0 = nd.reduce %a0 {kind = "sum", dims = [0]} : (!nd.tensor<8 x f32>) -> !nd.tensor<f32>
  %a1 = nd.mul %w1, %s : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  %b1 = nd.reduce %a1 {kind = "sum", dims = [0]} : (!nd.tensor<8 x f32>) -> !nd.tensor<f32>
  %a2 = nd.mul %w2, %s : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  %b2 = nd.reduce %a2 {kind = "sum", dims = [0]} : (!nd.tensor<8 x f32>) -> !nd.tensor<f32>
  %a3 = nd.mul %w3, %s : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  %b3 = nd.reduce %a3 {kind = "sum", dims = [0]} : (!nd.tensor<8 x f32>) -> !nd.tensor<f32>
  %a4 = nd.mul %w4, %b3 : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  %b4 = nd.reduce %a4 {kind = "sum", dims = [0]} : (!nd.tensor<8 x f32>) -> !nd.tensor<f32>
  %c0 = nd.add %v0, %b0 : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  %c1 = nd.add %v1, %b1 : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  %c2 = nd.add %v2, %b2 : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  %c3 = nd.add %v3, %b3 : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  func.return %b4, %c0, %c1, %c2, %c3 : !nd.tensor<f32>, !nd.tensor<8 x f32>, !nd.tensor<8 x f32>, !nd.tensor<8 x f32>, !nd.tensor<8 x f32>
}
