// RUN: opt-tool %s -p nd-small-products | filecheck %s
// RUN: opt-tool %s -p nd-small-products{deepest=2} | filecheck %s --check-prefix=SHALLOW

// Many products of small matrices; sixteen-bit numbers are added up in f32.
// CHECK-LABEL: func.func @rotations
// CHECK: nd.mul {{.*}} -> !nd.tensor<500 x 3 x 3 x 3 x f32>
// CHECK: nd.reduce {{.*}} {kind = "sum", dims = [3]} {{.*}} -> !nd.tensor<500 x 3 x 3 x f32>
// CHECK: nd.cast {{.*}} -> !nd.tensor<500 x 3 x 3 x bf16>
// CHECK-NOT: nd.matmul
// SHALLOW-LABEL: func.func @rotations
// SHALLOW: nd.matmul
func.func @rotations(%a : !nd.tensor<500 x 3 x 3 x bf16>, %b : !nd.tensor<500 x 3 x 3 x bf16>) -> !nd.tensor<500 x 3 x 3 x bf16> {
  %0 = nd.matmul %a, %b : (!nd.tensor<500 x 3 x 3 x bf16>, !nd.tensor<500 x 3 x 3 x bf16>) -> !nd.tensor<500 x 3 x 3 x bf16>
  func.return %0 : !nd.tensor<500 x 3 x 3 x bf16>
}

// One product of few rows, and one with many columns.
// CHECK-LABEL: func.func @few
// CHECK-COUNT-2: nd.matmul
func.func @few(%a : !nd.tensor<8 x 3 x f32>, %b : !nd.tensor<3 x 3 x f32>, %c : !nd.tensor<4096 x 8 x f32>, %d : !nd.tensor<8 x 100 x f32>)
    -> (!nd.tensor<8 x 3 x f32>, !nd.tensor<4096 x 100 x f32>) {
  %0 = nd.matmul %a, %b : (!nd.tensor<8 x 3 x f32>, !nd.tensor<3 x 3 x f32>) -> !nd.tensor<8 x 3 x f32>
  %1 = nd.matmul %c, %d : (!nd.tensor<4096 x 8 x f32>, !nd.tensor<8 x 100 x f32>) -> !nd.tensor<4096 x 100 x f32>
  func.return %0, %1 : !nd.tensor<8 x 3 x f32>, !nd.tensor<4096 x 100 x f32>
}

// A right matrix whose rows lie apart is taken where it is smaller.
// CHECK-LABEL: func.func @transposed
// CHECK: nd.matmul
// CHECK: nd.reduce
// CHECK-NOT: nd.matmul
func.func @transposed(%a : !nd.tensor<512 x 16 x 16 x f32>, %b : !nd.tensor<512 x 16 x 16 x f32>, %c : !nd.tensor<512 x 8 x 8 x f32>,
                      %d : !nd.tensor<512 x 8 x 8 x f32>) -> (!nd.tensor<512 x 16 x 16 x f32>, !nd.tensor<512 x 8 x 8 x f32>) {
  %bt = nd.permute %b {dims = [0, 2, 1]} : (!nd.tensor<512 x 16 x 16 x f32>) -> !nd.tensor<512 x 16 x 16 x f32>
  %0 = nd.matmul %a, %bt : (!nd.tensor<512 x 16 x 16 x f32>, !nd.tensor<512 x 16 x 16 x f32>) -> !nd.tensor<512 x 16 x 16 x f32>
  %dt = nd.permute %d {dims = [0, 2, 1]} : (!nd.tensor<512 x 8 x 8 x f32>) -> !nd.tensor<512 x 8 x 8 x f32>
  %1 = nd.matmul %c, %dt : (!nd.tensor<512 x 8 x 8 x f32>, !nd.tensor<512 x 8 x 8 x f32>) -> !nd.tensor<512 x 8 x 8 x f32>
  func.return %0, %1 : !nd.tensor<512 x 16 x 16 x f32>, !nd.tensor<512 x 8 x 8 x f32>
}

// Inner products, of any length, and batches of a matrix times a vector.
// CHECK-LABEL: func.func @vectors
// CHECK-COUNT-2: nd.reduce
// CHECK-NOT: nd.matmul
func.func @vectors(%a : !nd.tensor<1 x 9000 x f32>, %b : !nd.tensor<9000 x 1 x f32>, %c : !nd.tensor<300 x 4 x 100 x f32>,
                   %d : !nd.tensor<300 x 100 x 1 x f32>) -> (!nd.tensor<1 x 1 x f32>, !nd.tensor<300 x 4 x 1 x f32>) {
  %0 = nd.matmul %a, %b : (!nd.tensor<1 x 9000 x f32>, !nd.tensor<9000 x 1 x f32>) -> !nd.tensor<1 x 1 x f32>
  %1 = nd.matmul %c, %d : (!nd.tensor<300 x 4 x 100 x f32>, !nd.tensor<300 x 100 x 1 x f32>) -> !nd.tensor<300 x 4 x 1 x f32>
  func.return %0, %1 : !nd.tensor<1 x 1 x f32>, !nd.tensor<300 x 4 x 1 x f32>
}

// What is dear is stored once, not computed for each element that it meets.
// CHECK-LABEL: func.func @dear
// CHECK: nd.matmul
func.func @dear(%a : !nd.tensor<500 x 8 x 8 x f32>, %b : !nd.tensor<500 x 8 x 8 x f32>) -> !nd.tensor<500 x 8 x 8 x f32> {
  %0 = nd.exp %a : !nd.tensor<500 x 8 x 8 x f32>
  %1 = nd.matmul %0, %b : (!nd.tensor<500 x 8 x 8 x f32>, !nd.tensor<500 x 8 x 8 x f32>) -> !nd.tensor<500 x 8 x 8 x f32>
  func.return %1 : !nd.tensor<500 x 8 x 8 x f32>
}

// A matrix that is computed for one product with a vector is not stored; for several rows, or where another op reads it too, it is.
// CHECK-LABEL: func.func @computed
// CHECK: nd.reduce
// CHECK-NOT: nd.matmul
func.func @computed(%q : !nd.tensor<8 x 1 x 64 x f32>, %k : !nd.tensor<100 x 128 x 64 x f32>, %at : !nd.tensor<8 x i64>) -> !nd.tensor<8 x 1 x 128 x f32> {
  %0 = nd.index %k, %at {dims = [0], wrap} : (!nd.tensor<100 x 128 x 64 x f32>, !nd.tensor<8 x i64>) -> !nd.tensor<8 x 128 x 64 x f32>
  %1 = nd.permute %0 {dims = [0, 2, 1]} : (!nd.tensor<8 x 128 x 64 x f32>) -> !nd.tensor<8 x 64 x 128 x f32>
  %2 = nd.matmul %q, %1 : (!nd.tensor<8 x 1 x 64 x f32>, !nd.tensor<8 x 64 x 128 x f32>) -> !nd.tensor<8 x 1 x 128 x f32>
  func.return %2 : !nd.tensor<8 x 1 x 128 x f32>
}

// CHECK-LABEL: func.func @stored
// CHECK-COUNT-2: nd.matmul
func.func @stored(%q : !nd.tensor<16 x 64 x f32>, %v : !nd.tensor<1 x 64 x f32>, %k : !nd.tensor<64 x 128 x i8>)
    -> (!nd.tensor<16 x 128 x f32>, !nd.tensor<1 x 128 x f32>, !nd.tensor<64 x 128 x f32>) {
  %0 = nd.cast %k : (!nd.tensor<64 x 128 x i8>) -> !nd.tensor<64 x 128 x f32>
  %1 = nd.matmul %q, %0 : (!nd.tensor<16 x 64 x f32>, !nd.tensor<64 x 128 x f32>) -> !nd.tensor<16 x 128 x f32>
  %2 = nd.add %0, %0 : !nd.tensor<64 x 128 x f32>
  %3 = nd.matmul %v, %2 : (!nd.tensor<1 x 64 x f32>, !nd.tensor<64 x 128 x f32>) -> !nd.tensor<1 x 128 x f32>
  func.return %1, %3, %2 : !nd.tensor<16 x 128 x f32>, !nd.tensor<1 x 128 x f32>, !nd.tensor<64 x 128 x f32>
}
