// RUN: opt-tool %s -p nd-small-convolutions | filecheck %s

// CHECK-LABEL: func.func @filter
// CHECK: nd.pad
// CHECK: nd.view
// CHECK: nd.mul
// CHECK: nd.reduce
// CHECK-NOT: nd.conv
func.func @filter(%x : !nd.tensor<4 x 1 x 20 x 33 x f32>, %w : !nd.tensor<1 x 1 x 3 x 3 x f32>) -> !nd.tensor<4 x 1 x 20 x 33 x f32> {
  %0 = nd.conv %x, %w {stride = [1, 1], padding = [1, 1], dilation = [1, 1], output_padding = [0, 0], groups = [1],
    layout = #nd.layout<[660, 1, 33, 1], 0>} : (!nd.tensor<4 x 1 x 20 x 33 x f32>, !nd.tensor<1 x 1 x 3 x 3 x f32>) -> !nd.tensor<4 x 1 x 20 x 33 x f32>
  func.return %0 : !nd.tensor<4 x 1 x 20 x 33 x f32>
}

// Many channels, channels-last memory and steps along the row stay with the library.
// CHECK-LABEL: func.func @others
// CHECK-COUNT-3: nd.conv
func.func @others(%x : !nd.tensor<2 x 3 x 8 x 8 x f32>, %w : !nd.tensor<16 x 3 x 3 x 3 x f32>, %v : !nd.tensor<3 x 3 x 3 x 3 x f32>)
    -> (!nd.tensor<2 x 16 x 6 x 6 x f32>, !nd.tensor<2 x 3 x 6 x 6 x f32>, !nd.tensor<2 x 3 x 6 x 2 x f32>) {
  %0 = nd.conv %x, %w {stride = [1, 1], padding = [0, 0], dilation = [1, 1], output_padding = [0, 0], groups = [1]}
    : (!nd.tensor<2 x 3 x 8 x 8 x f32>, !nd.tensor<16 x 3 x 3 x 3 x f32>) -> !nd.tensor<2 x 16 x 6 x 6 x f32>
  %1 = nd.conv %x, %v {stride = [1, 1], padding = [0, 0], dilation = [1, 1], output_padding = [0, 0], groups = [1],
    layout = #nd.layout<[108, 1, 18, 3], 0>} : (!nd.tensor<2 x 3 x 8 x 8 x f32>, !nd.tensor<3 x 3 x 3 x 3 x f32>) -> !nd.tensor<2 x 3 x 6 x 6 x f32>
  %2 = nd.conv %x, %v {stride = [1, 3], padding = [0, 0], dilation = [1, 1], output_padding = [0, 0], groups = [1]}
    : (!nd.tensor<2 x 3 x 8 x 8 x f32>, !nd.tensor<3 x 3 x 3 x 3 x f32>) -> !nd.tensor<2 x 3 x 6 x 2 x f32>
  func.return %0, %1, %2 : !nd.tensor<2 x 16 x 6 x 6 x f32>, !nd.tensor<2 x 3 x 6 x 6 x f32>, !nd.tensor<2 x 3 x 6 x 2 x f32>
}

// A depthwise convolution of many channels is a nest where that costs less than the library's call between row-major tensors.
// CHECK-LABEL: func.func @depthwise
// CHECK: nd.reduce
// CHECK-NOT: nd.conv
func.func @depthwise(%x : !nd.tensor<1 x 96 x 32 x 32 x f32>, %w : !nd.tensor<96 x 1 x 3 x 3 x f32>) -> !nd.tensor<1 x 96 x 32 x 32 x f32> {
  %0 = nd.conv %x, %w {stride = [1, 1], padding = [1, 1], dilation = [1, 1], output_padding = [0, 0], groups = [96]}
    : (!nd.tensor<1 x 96 x 32 x 32 x f32>, !nd.tensor<96 x 1 x 3 x 3 x f32>) -> !nd.tensor<1 x 96 x 32 x 32 x f32>
  func.return %0 : !nd.tensor<1 x 96 x 32 x 32 x f32>
}

// Large windows stay with it, and steps along the rows.
// CHECK-LABEL: func.func @windows
// CHECK: nd.conv
// CHECK: nd.conv
func.func @windows(%x : !nd.tensor<1 x 96 x 56 x 56 x f32>, %w : !nd.tensor<96 x 1 x 9 x 9 x f32>, %v : !nd.tensor<96 x 1 x 3 x 3 x f32>)
    -> (!nd.tensor<1 x 96 x 48 x 48 x f32>, !nd.tensor<1 x 96 x 27 x 27 x f32>) {
  %0 = nd.conv %x, %w {stride = [1, 1], padding = [0, 0], dilation = [1, 1], output_padding = [0, 0], groups = [96]}
    : (!nd.tensor<1 x 96 x 56 x 56 x f32>, !nd.tensor<96 x 1 x 9 x 9 x f32>) -> !nd.tensor<1 x 96 x 48 x 48 x f32>
  %1 = nd.conv %x, %v {stride = [2, 2], padding = [0, 0], dilation = [1, 1], output_padding = [0, 0], groups = [96]}
    : (!nd.tensor<1 x 96 x 56 x 56 x f32>, !nd.tensor<96 x 1 x 3 x 3 x f32>) -> !nd.tensor<1 x 96 x 27 x 27 x f32>
  func.return %0, %1 : !nd.tensor<1 x 96 x 48 x 48 x f32>, !nd.tensor<1 x 96 x 27 x 27 x f32>
}

// Beside another convolution of the library, both may be channels-last, and the nest would need copies.
// CHECK-LABEL: func.func @separable
// CHECK: nd.conv
// CHECK: nd.conv
func.func @separable(%x : !nd.tensor<1 x 96 x 32 x 32 x f32>, %w : !nd.tensor<96 x 1 x 3 x 3 x f32>, %p : !nd.tensor<192 x 96 x 1 x 1 x f32>)
    -> !nd.tensor<1 x 192 x 32 x 32 x f32> {
  %0 = nd.conv %x, %w {stride = [1, 1], padding = [1, 1], dilation = [1, 1], output_padding = [0, 0], groups = [96]}
    : (!nd.tensor<1 x 96 x 32 x 32 x f32>, !nd.tensor<96 x 1 x 3 x 3 x f32>) -> !nd.tensor<1 x 96 x 32 x 32 x f32>
  %1 = nd.conv %0, %p {stride = [1, 1], padding = [0, 0], dilation = [1, 1], output_padding = [0, 0], groups = [1]}
    : (!nd.tensor<1 x 96 x 32 x 32 x f32>, !nd.tensor<192 x 96 x 1 x 1 x f32>) -> !nd.tensor<1 x 192 x 32 x 32 x f32>
  func.return %1 : !nd.tensor<1 x 192 x 32 x 32 x f32>
}

// A signal has one layout.
// CHECK-LABEL: func.func @signal
// CHECK: nd.reduce
// CHECK-NOT: nd.conv
func.func @signal(%x : !nd.tensor<2 x 64 x 128 x f32>, %w : !nd.tensor<64 x 1 x 4 x f32>) -> !nd.tensor<2 x 64 x 125 x f32> {
  %0 = nd.conv %x, %w {stride = [1], padding = [0], dilation = [1], output_padding = [0], groups = [64]}
    : (!nd.tensor<2 x 64 x 128 x f32>, !nd.tensor<64 x 1 x 4 x f32>) -> !nd.tensor<2 x 64 x 125 x f32>
  func.return %0 : !nd.tensor<2 x 64 x 125 x f32>
}
