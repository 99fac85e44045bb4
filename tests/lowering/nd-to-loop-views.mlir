// RUN: opt-tool %s -p nd-to-loop | filecheck %s

// A result that no strides of what a nest computes can express is a nest of its own, which loop-fuse may compute the elements in.
// CHECK-LABEL: func.func @shuffled
// CHECK: loop.nest
// CHECK: %[[S:.*]] = loop.nest
// CHECK: loop.load %{{.*}}[%{{.*}}, %{{.*}} floordiv 4 + (%{{.*}} mod 4) * 8]
// CHECK: func.return %[[S]]
func.func @shuffled(%x : !nd.tensor<8 x 32 x f32>) -> !nd.tensor<8 x 32 x f32> {
  %y = nd.neg %x : !nd.tensor<8 x 32 x f32>
  %a = nd.reshape %y : (!nd.tensor<8 x 32 x f32>) -> !nd.tensor<8 x 4 x 8 x f32>
  %b = nd.permute %a {dims = [0, 2, 1]} : (!nd.tensor<8 x 4 x 8 x f32>) -> !nd.tensor<8 x 8 x 4 x f32>
  %c = nd.reshape %b : (!nd.tensor<8 x 8 x 4 x f32>) -> !nd.tensor<8 x 32 x f32>
  func.return %c : !nd.tensor<8 x 32 x f32>
}

// One that strides can express is a view, whether of row-major elements or so that it is row-major itself.
// CHECK-LABEL: func.func @turned
// CHECK: loop.nest
// CHECK-NOT: loop.nest
// CHECK: nd.view
func.func @turned(%x : !nd.tensor<8 x 32 x f32>) -> !nd.tensor<4 x 8 x 8 x f32> {
  %y = nd.neg %x : !nd.tensor<8 x 32 x f32>
  %a = nd.reshape %y : (!nd.tensor<8 x 32 x f32>) -> !nd.tensor<8 x 4 x 8 x f32>
  %b = nd.permute %a {dims = [1, 0, 2]} : (!nd.tensor<8 x 4 x 8 x f32>) -> !nd.tensor<4 x 8 x 8 x f32>
  func.return %b : !nd.tensor<4 x 8 x 8 x f32>
}
