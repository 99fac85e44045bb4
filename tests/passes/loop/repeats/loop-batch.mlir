// RUN: opt-tool %s -p loop-batch | filecheck %s
// RUN: opt-tool %s -p loop-batch,nd-to-loop,loop-fuse,loop-to-mem,mem-plan | filecheck %s --check-prefix=MEM
// RUN: opt-tool %s -p loop-batch | opt-tool | filecheck %s

// CHECK:       %y, %y1, %y3, %y2 = loop.batch @batch0 [
// CHECK-NEXT:    (%x0 : !nd.tensor<4 x 5 x f32>) sizes [20] -> (!nd.tensor<4 x 5 x f32>),
// CHECK-NEXT:    (%x1 : !nd.tensor<7 x f32>) sizes [7] -> (!nd.tensor<7 x f32>),
// CHECK-NEXT:    (%x3 : !nd.tensor<3 x 0 x f32>) sizes [0] -> (!nd.tensor<3 x 0 x f32>),
// CHECK-NEXT:    (%x2 : !nd.tensor<f32>) sizes [1] -> (!nd.tensor<f32>)
// CHECK-NEXT:  ]
// CHECK:       func.func private @batch0(%x0: !nd.tensor<b0 x f32>) -> !nd.tensor<b0 x f32>
// CHECK:         nd.relu %x0 : !nd.tensor<b0 x f32>

// MEM:         loop.batch @batch0 [
// MEM-NEXT:      (%x0 : !mem.buffer<4 x 5 x f32>) sizes [20],
// MEM:         func.func private @batch0(%x0: !mem.buffer<b0 x f32>)
// MEM:           loop.nest (%i = b0) outs(%out = %x0 : !mem.buffer<b0 x f32>)
func.func @forward(%x0: !nd.tensor<4 x 5 x f32>, %x1: !nd.tensor<7 x f32>, %x2: !nd.tensor<f32>, %x3: !nd.tensor<3 x 0 x f32>) {
  %y = nd.relu %x0 : !nd.tensor<4 x 5 x f32>
  %y1 = nd.relu %x1 : !nd.tensor<7 x f32>
  %y2 = nd.relu %x2 : !nd.tensor<f32>
  %y3 = nd.relu %x3 : !nd.tensor<3 x 0 x f32>
  nd.update %x0, %y : (!nd.tensor<4 x 5 x f32>, !nd.tensor<4 x 5 x f32>) -> ()
  nd.update %x1, %y1 : (!nd.tensor<7 x f32>, !nd.tensor<7 x f32>) -> ()
  nd.update %x2, %y2 : (!nd.tensor<f32>, !nd.tensor<f32>) -> ()
  nd.update %x3, %y3 : (!nd.tensor<3 x 0 x f32>, !nd.tensor<3 x 0 x f32>) -> ()
  func.return
}
