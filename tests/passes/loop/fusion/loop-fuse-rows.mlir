// RUN: opt-tool %s -p nd-to-loop,loop-fuse,loop-fuse-rows --split-input-file | filecheck %s
// RUN: opt-tool %s -p nd-to-loop,loop-fuse,loop-fuse-rows --split-input-file --remarks 2>&1 | filecheck %s --check-prefix=REMARK

// Sums of the columns and of the rows of one tensor: the columns are accumulated while the rows go by.
// CHECK: loop.nest () outs(
// CHECK: loop.for ([[J:%[a-z0-9_]+]] = 7)
// CHECK-NEXT: loop.store {{%[a-z0-9_]+}}, [[O:%[a-z0-9_]+]][[[J]]]
// CHECK: loop.for ([[I:%[a-z0-9_]+]] = 40) {
// CHECK-NEXT: loop.reduce ([[K:%[a-z0-9_]+]] = 7) sum {
// CHECK: loop.for ([[C:%[a-z0-9_]+]] = 7) {
// CHECK: loop.store {{%[a-z0-9_]+}}, [[O]][[[C]]] add
// REMARK: [loop-fuse-rows] applied: {{.*}}runs in the rows of rows
func.func @forward(%x: !nd.tensor<40 x 7 x f32>) -> (!nd.tensor<40 x f32>, !nd.tensor<7 x f32>) {
  %rows = nd.reduce %x {kind = "sum", dims = [1]} : (!nd.tensor<40 x 7 x f32>) -> !nd.tensor<40 x f32>
  %columns = nd.reduce %x {kind = "sum", dims = [0]} : (!nd.tensor<40 x 7 x f32>) -> !nd.tensor<7 x f32>
  func.return %rows, %columns : !nd.tensor<40 x f32>, !nd.tensor<7 x f32>
}

// -----

// A reduction of what each row reduces to: the row's result is not stored.
// CHECK: loop.nest () outs({{%[a-z0-9_]+}} = {{%[a-z0-9_]+}} : !nd.tensor<f32>)
// CHECK: loop.reduce ({{%[a-z0-9_]+}} = 40) max {
// CHECK-NEXT: loop.reduce ({{%[a-z0-9_]+}} = 7) sum {
// CHECK: func.return
func.func @forward(%x: !nd.tensor<40 x 7 x f32>) -> !nd.tensor<f32> {
  %rows = nd.reduce %x {kind = "sum", dims = [1]} : (!nd.tensor<40 x 7 x f32>) -> !nd.tensor<40 x f32>
  %most = nd.reduce %rows {kind = "max", dims = [0]} : (!nd.tensor<40 x f32>) -> !nd.tensor<f32>
  func.return %most : !nd.tensor<f32>
}

// -----

// The rows need the sums themselves.
// CHECK: loop.nest
// CHECK: loop.nest
// REMARK: missed: {{.*}}not run in the rows of rows: the rows need what is reduced over all of them
func.func @forward(%x: !nd.tensor<40 x 7 x f32>) -> (!nd.tensor<40 x f32>, !nd.tensor<7 x f32>) {
  %columns = nd.reduce %x {kind = "sum", dims = [0]} : (!nd.tensor<40 x 7 x f32>) -> !nd.tensor<7 x f32>
  %wide = nd.reshape %columns : (!nd.tensor<7 x f32>) -> !nd.tensor<1 x 7 x f32>
  %d = nd.sub %x, %wide : (!nd.tensor<40 x 7 x f32>, !nd.tensor<1 x 7 x f32>) -> !nd.tensor<40 x 7 x f32>
  %rows = nd.reduce %d {kind = "sum", dims = [1]} : (!nd.tensor<40 x 7 x f32>) -> !nd.tensor<40 x f32>
  func.return %rows, %columns : !nd.tensor<40 x f32>, !nd.tensor<7 x f32>
}

// -----

// Too many columns for the nearest caches.
// REMARK: missed: {{.*}}the columns take 131072 bytes, which would not stay in the cache from row to row
func.func @forward(%x: !nd.tensor<40 x 32768 x f32>) -> (!nd.tensor<40 x f32>, !nd.tensor<32768 x f32>) {
  %rows = nd.reduce %x {kind = "sum", dims = [1]} : (!nd.tensor<40 x 32768 x f32>) -> !nd.tensor<40 x f32>
  %columns = nd.reduce %x {kind = "sum", dims = [0]} : (!nd.tensor<40 x 32768 x f32>) -> !nd.tensor<32768 x f32>
  func.return %rows, %columns : !nd.tensor<40 x f32>, !nd.tensor<32768 x f32>
}

// -----

// The elements that a row needs do not lie side by side.
// REMARK: missed: {{.*}}the elements of a row do not lie side by side
func.func @forward(%x: !nd.tensor<400 x 700 x f32>) -> (!nd.tensor<400 x f32>, !nd.tensor<700 x f32>) {
  %t = nd.permute %x {dims = [1, 0]} : (!nd.tensor<400 x 700 x f32>) -> !nd.tensor<700 x 400 x f32>
  %e = nd.exp %t : !nd.tensor<700 x 400 x f32>
  %rows = nd.scan %e {kind = "sum", dim = [1]} : (!nd.tensor<700 x 400 x f32>) -> !nd.tensor<700 x 400 x f32>
  %last = nd.reduce %rows {kind = "max", dims = [1]} : (!nd.tensor<700 x 400 x f32>) -> !nd.tensor<700 x f32>
  %columns = nd.reduce %x {kind = "sum", dims = [1]} : (!nd.tensor<400 x 700 x f32>) -> !nd.tensor<400 x f32>
  func.return %columns, %last : !nd.tensor<400 x f32>, !nd.tensor<700 x f32>
}

// -----

// Nor do those of a column: its loop runs along the lanes, which a number over all columns would take away (Adafactor's update and its norm).
// CHECK-LABEL: func.func @columns
// CHECK: loop.nest ({{%[a-z0-9_]+}} = 700)
// CHECK: loop.nest ()
// REMARK: missed: {{.*}}the elements of a row do not lie side by side
func.func @columns(%x: !nd.tensor<400 x 700 x f32>) -> (!nd.tensor<400 x 700 x f32>, !nd.tensor<f32>) {
  %s = nd.reduce %x {kind = "sum", dims = [0]} : (!nd.tensor<400 x 700 x f32>) -> !nd.tensor<700 x f32>
  %wide = nd.reshape %s : (!nd.tensor<700 x f32>) -> !nd.tensor<1 x 700 x f32>
  %u = nd.mul %x, %wide : (!nd.tensor<400 x 700 x f32>, !nd.tensor<1 x 700 x f32>) -> !nd.tensor<400 x 700 x f32>
  %norm = nd.reduce %u {kind = "sum", dims = [0, 1]} : (!nd.tensor<400 x 700 x f32>) -> !nd.tensor<f32>
  func.return %u, %norm : !nd.tensor<400 x 700 x f32>, !nd.tensor<f32>
}
