// RUN: opt-tool %s -p loop-batch --remarks --split-input-file 2>&1 | filecheck %s

// Strides that differ within an entry.
// CHECK-NOT: loop.batch @
// CHECK: [loop-batch] missed: 'nd.add' op: not in a list with 3 equal parts: its tensors lie in memory in different orders
func.func @orders(%a: !nd.tensor<4 x 5 x f32> {nd.layout = #nd.layout<[1, 4], 0>}, %b: !nd.tensor<4 x 5 x f32>, %c: !nd.tensor<7 x f32>, %c1: !nd.tensor<7 x f32>, %d: !nd.tensor<8 x f32>, %d1: !nd.tensor<8 x f32>, %e: !nd.tensor<9 x f32>, %e1: !nd.tensor<9 x f32>) -> (!nd.tensor<4 x 5 x f32>, !nd.tensor<7 x f32>, !nd.tensor<8 x f32>, !nd.tensor<9 x f32>) {
  %y0 = nd.add %a, %b : !nd.tensor<4 x 5 x f32>
  %y1 = nd.add %c, %c1 : !nd.tensor<7 x f32>
  %y2 = nd.add %d, %d1 : !nd.tensor<8 x f32>
  %y3 = nd.add %e, %e1 : !nd.tensor<9 x f32>
  func.return %y0, %y1, %y2, %y3 : !nd.tensor<4 x 5 x f32>, !nd.tensor<7 x f32>, !nd.tensor<8 x f32>, !nd.tensor<9 x f32>
}
