// RUN: opt-tool %s -p nd-stack-products | filecheck %s
// RUN: opt-tool %s -p nd-stack-products --remarks 2>&1 | filecheck %s --check-prefix=WHY

// WHY: its 3 products are one: {{.*}} us one by one, {{.*}} us stacked
// WHY: its 2 products stay apart: {{.*}} us one by one, {{.*}} us stacked

// Of transposes their sources are stacked; other terms of the sum stay.
// CHECK-LABEL: func.func @steps
// CHECK: %[[A:.*]] = nd.cat %a, %b, %c {dim = [0]} {{.*}} -> !nd.tensor<12 x 256 x f32>
// CHECK: %[[T:.*]] = nd.permute %[[A]] {dims = [1, 0]}
// CHECK: %[[X:.*]] = nd.cat %x, %y, %z {dim = [0]} {{.*}} -> !nd.tensor<12 x 64 x f32>
// CHECK: %[[P:.*]] = nd.matmul %[[T]], %[[X]]
// CHECK: nd.add %[[P]], %w
// CHECK-NOT: nd.matmul
func.func @steps(%a : !nd.tensor<4 x 256 x f32>, %b : !nd.tensor<4 x 256 x f32>, %c : !nd.tensor<4 x 256 x f32>, %x : !nd.tensor<4 x 64 x f32>,
                 %y : !nd.tensor<4 x 64 x f32>, %z : !nd.tensor<4 x 64 x f32>, %w : !nd.tensor<256 x 64 x f32>) -> !nd.tensor<256 x 64 x f32> {
  %at = nd.permute %a {dims = [1, 0]} : (!nd.tensor<4 x 256 x f32>) -> !nd.tensor<256 x 4 x f32>
  %bt = nd.permute %b {dims = [1, 0]} : (!nd.tensor<4 x 256 x f32>) -> !nd.tensor<256 x 4 x f32>
  %ct = nd.permute %c {dims = [1, 0]} : (!nd.tensor<4 x 256 x f32>) -> !nd.tensor<256 x 4 x f32>
  %0 = nd.matmul %at, %x : (!nd.tensor<256 x 4 x f32>, !nd.tensor<4 x 64 x f32>) -> !nd.tensor<256 x 64 x f32>
  %1 = nd.matmul %bt, %y : (!nd.tensor<256 x 4 x f32>, !nd.tensor<4 x 64 x f32>) -> !nd.tensor<256 x 64 x f32>
  %2 = nd.matmul %ct, %z : (!nd.tensor<256 x 4 x f32>, !nd.tensor<4 x 64 x f32>) -> !nd.tensor<256 x 64 x f32>
  %3 = nd.add %0, %1 : !nd.tensor<256 x 64 x f32>
  %4 = nd.add %3, %w : !nd.tensor<256 x 64 x f32>
  %5 = nd.add %4, %2 : !nd.tensor<256 x 64 x f32>
  func.return %5 : !nd.tensor<256 x 64 x f32>
}

// Deep products of few elements: storing the operands again would cost more.
// CHECK-LABEL: func.func @deep
// CHECK-NOT: nd.cat
// CHECK-COUNT-2: nd.matmul
func.func @deep(%a : !nd.tensor<8 x 9000 x f32>, %b : !nd.tensor<8 x 9000 x f32>, %x : !nd.tensor<9000 x 8 x f32>, %y : !nd.tensor<9000 x 8 x f32>)
    -> !nd.tensor<8 x 8 x f32> {
  %0 = nd.matmul %a, %x : (!nd.tensor<8 x 9000 x f32>, !nd.tensor<9000 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %1 = nd.matmul %b, %y : (!nd.tensor<8 x 9000 x f32>, !nd.tensor<9000 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %2 = nd.add %0, %1 : !nd.tensor<8 x 8 x f32>
  func.return %2 : !nd.tensor<8 x 8 x f32>
}
