// RUN: opt-tool %s -p nd-narrow-factors | filecheck %s

// A weight of bytes with a scale for each row: the sums are scaled, in f32, and rounded once.
// CHECK-LABEL: func.func @weights
// CHECK: [[Q:%.*]] = nd.permute %q {dims = [1, 0]} : (!nd.tensor<64 x 32 x i8>)
// CHECK: [[S:%.*]] = nd.permute {{.*}} -> !nd.tensor<1 x 64 x bf16>
// CHECK: [[P:%.*]] = nd.matmul %x, [[Q]] : (!nd.tensor<4 x 32 x bf16>, !nd.tensor<32 x 64 x i8>) -> !nd.tensor<4 x 64 x f32>
// CHECK: [[T:%.*]] = nd.cast [[S]]
// CHECK: [[Y:%.*]] = nd.mul [[P]], [[T]]
// CHECK: nd.cast [[Y]] : (!nd.tensor<4 x 64 x f32>) -> !nd.tensor<4 x 64 x bf16>
func.func @weights(%x : !nd.tensor<4 x 32 x bf16>, %q : !nd.tensor<64 x 32 x i8>, %s : !nd.tensor<64 x 1 x bf16>) -> !nd.tensor<4 x 64 x bf16> {
  %0 = nd.cast %q : (!nd.tensor<64 x 32 x i8>) -> !nd.tensor<64 x 32 x bf16>
  %1 = nd.mul %0, %s : (!nd.tensor<64 x 32 x bf16>, !nd.tensor<64 x 1 x bf16>) -> !nd.tensor<64 x 32 x bf16>
  %2 = nd.permute %1 {dims = [1, 0]} : (!nd.tensor<64 x 32 x bf16>) -> !nd.tensor<32 x 64 x bf16>
  %3 = nd.matmul %x, %2 : (!nd.tensor<4 x 32 x bf16>, !nd.tensor<32 x 64 x bf16>) -> !nd.tensor<4 x 64 x bf16>
  func.return %3 : !nd.tensor<4 x 64 x bf16>
}

// Both factors are bytes: sums of integers, less what the zero point adds.
// CHECK-LABEL: func.func @both
// CHECK: nd.matmul %a, %b : (!nd.tensor<4 x 32 x ui8>, !nd.tensor<32 x 64 x i8>) -> !nd.tensor<4 x 64 x i32>
// CHECK: nd.reduce {{.*}} {kind = "sum", dims = [0]}
// CHECK: nd.sub {{.*}} !nd.tensor<4 x 64 x i32>
func.func @both(%a : !nd.tensor<4 x 32 x ui8>, %b : !nd.tensor<32 x 64 x i8>) -> !nd.tensor<4 x 64 x f32> {
  %z = nd.full {value = 3.0 : f32} : !nd.tensor<f32>
  %s = nd.full {value = 0.5 : f32} : !nd.tensor<f32>
  %0 = nd.cast %a : (!nd.tensor<4 x 32 x ui8>) -> !nd.tensor<4 x 32 x f32>
  %1 = nd.sub %0, %z : (!nd.tensor<4 x 32 x f32>, !nd.tensor<f32>) -> !nd.tensor<4 x 32 x f32>
  %2 = nd.mul %1, %s : (!nd.tensor<4 x 32 x f32>, !nd.tensor<f32>) -> !nd.tensor<4 x 32 x f32>
  %3 = nd.cast %b : (!nd.tensor<32 x 64 x i8>) -> !nd.tensor<32 x 64 x f32>
  %4 = nd.matmul %2, %3 : (!nd.tensor<4 x 32 x f32>, !nd.tensor<32 x 64 x f32>) -> !nd.tensor<4 x 64 x f32>
  func.return %4 : !nd.tensor<4 x 64 x f32>
}

// A matrix of bytes times a vector is computed as a row; a scale that varies along the sum stays with its factor, as do 16-bit products.
// CHECK-LABEL: func.func @column
// CHECK: nd.matmul {{.*}} : (!nd.tensor<1 x 32 x f32>, !nd.tensor<32 x 64 x i8>)
func.func @column(%q : !nd.tensor<64 x 32 x i8>, %x : !nd.tensor<32 x 1 x f32>) -> !nd.tensor<64 x 1 x f32> {
  %0 = nd.cast %q : (!nd.tensor<64 x 32 x i8>) -> !nd.tensor<64 x 32 x f32>
  %1 = nd.matmul %0, %x : (!nd.tensor<64 x 32 x f32>, !nd.tensor<32 x 1 x f32>) -> !nd.tensor<64 x 1 x f32>
  func.return %1 : !nd.tensor<64 x 1 x f32>
}

// CHECK-LABEL: func.func @along
// CHECK: nd.matmul {{.*}} : (!nd.tensor<4 x 32 x f32>, !nd.tensor<32 x 64 x f32>)
func.func @along(%x : !nd.tensor<4 x 32 x f32>, %q : !nd.tensor<32 x 64 x i8>, %s : !nd.tensor<32 x 1 x f32>) -> !nd.tensor<4 x 64 x f32> {
  %0 = nd.cast %q : (!nd.tensor<32 x 64 x i8>) -> !nd.tensor<32 x 64 x f32>
  %1 = nd.mul %0, %s : (!nd.tensor<32 x 64 x f32>, !nd.tensor<32 x 1 x f32>) -> !nd.tensor<32 x 64 x f32>
  %2 = nd.matmul %x, %1 : (!nd.tensor<4 x 32 x f32>, !nd.tensor<32 x 64 x f32>) -> !nd.tensor<4 x 64 x f32>
  func.return %2 : !nd.tensor<4 x 64 x f32>
}
