// RUN: opt-tool %s -p nd-canonicalize | filecheck %s

// CHECK-LABEL: func.func @views
// CHECK-NEXT: %a = nd.permute %x {dims = [1, 0]}
// CHECK-NEXT: func.return %a
func.func @views(%x : !nd.tensor<4 x 8 x f32>) -> !nd.tensor<8 x 4 x f32> {
  %a = nd.permute %x {dims = [1, 0]} : (!nd.tensor<4 x 8 x f32>) -> !nd.tensor<8 x 4 x f32>
  %b = nd.permute %a {dims = [1, 0]} : (!nd.tensor<8 x 4 x f32>) -> !nd.tensor<4 x 8 x f32>
  %c = nd.reshape %b : !nd.tensor<4 x 8 x f32>
  %d = nd.permute %c {dims = [1, 0]} : (!nd.tensor<4 x 8 x f32>) -> !nd.tensor<8 x 4 x f32>
  func.return %d : !nd.tensor<8 x 4 x f32>
}

// CHECK-LABEL: func.func @slices
// CHECK-NEXT: nd.slice %x {starts = [7], steps = [6]}
func.func @slices(%x : !nd.tensor<40 x f32>) -> !nd.tensor<3 x f32> {
  %a = nd.slice %x {starts = [1], steps = [2]} : (!nd.tensor<40 x f32>) -> !nd.tensor<18 x f32>
  %b = nd.slice %a {starts = [3], steps = [3]} : (!nd.tensor<18 x f32>) -> !nd.tensor<3 x f32>
  func.return %b : !nd.tensor<3 x f32>
}

// x + 0.0 is kept, it changes -0.0; x * 1.0 and x - 0.0 are x.
// CHECK-LABEL: func.func @zeros
// CHECK: %d = nd.add %x, %zero
// CHECK-NEXT: func.return %d
func.func @zeros(%x : !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32> {
  %zero = nd.full {value = 0.0 : f32} : !nd.tensor<f32>
  %one = nd.full {value = 1.0 : f32} : !nd.tensor<f32>
  %a = nd.mul %x, %one : (!nd.tensor<4 x f32>, !nd.tensor<f32>) -> !nd.tensor<4 x f32>
  %b = nd.sub %a, %zero : (!nd.tensor<4 x f32>, !nd.tensor<f32>) -> !nd.tensor<4 x f32>
  %d = nd.add %b, %zero : (!nd.tensor<4 x f32>, !nd.tensor<f32>) -> !nd.tensor<4 x f32>
  func.return %d : !nd.tensor<4 x f32>
}

// CHECK-LABEL: func.func @shared
// CHECK-NEXT: %a = nd.exp %x
// CHECK-NEXT: %c = nd.mul %a, %a
// CHECK-NEXT: func.return %c
func.func @shared(%x : !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32> {
  %a = nd.exp %x : !nd.tensor<4 x f32>
  %b = nd.exp %x : !nd.tensor<4 x f32>
  %unused = nd.sin %x : !nd.tensor<4 x f32>
  %c = nd.mul %a, %b : !nd.tensor<4 x f32>
  func.return %c : !nd.tensor<4 x f32>
}

// A cast up and down again is nothing; down and up rounds and stays.
// CHECK-LABEL: func.func @casts
// CHECK-NEXT: %c = nd.cast %y
// CHECK-NEXT: %d = nd.cast %c
// CHECK-NEXT: func.return %x, %d
func.func @casts(%x : !nd.tensor<4 x bf16>, %y : !nd.tensor<4 x f32>) -> (!nd.tensor<4 x bf16>, !nd.tensor<4 x f32>) {
  %a = nd.cast %x : (!nd.tensor<4 x bf16>) -> !nd.tensor<4 x f32>
  %b = nd.cast %a : (!nd.tensor<4 x f32>) -> !nd.tensor<4 x bf16>
  %c = nd.cast %y : (!nd.tensor<4 x f32>) -> !nd.tensor<4 x bf16>
  %d = nd.cast %c : (!nd.tensor<4 x bf16>) -> !nd.tensor<4 x f32>
  func.return %b, %d : !nd.tensor<4 x bf16>, !nd.tensor<4 x f32>
}

// CHECK-LABEL: func.func @powers
// CHECK-NEXT: nd.mul %x, %x
// CHECK-NEXT: nd.rsqrt %x
func.func @powers(%x : !nd.tensor<4 x f32>) -> (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>) {
  %two = nd.full {value = 2.0 : f32} : !nd.tensor<f32>
  %half = nd.full {value = -0.5 : f32} : !nd.tensor<f32>
  %a = nd.pow %x, %two : (!nd.tensor<4 x f32>, !nd.tensor<f32>) -> !nd.tensor<4 x f32>
  %b = nd.pow %x, %half : (!nd.tensor<4 x f32>, !nd.tensor<f32>) -> !nd.tensor<4 x f32>
  func.return %a, %b : !nd.tensor<4 x f32>, !nd.tensor<4 x f32>
}

// CHECK-LABEL: func.func @roots
// CHECK-NEXT: %negative = nd.full
// CHECK-NEXT: %a = nd.full {value = 4.000000e+00 : f64}
// CHECK-NEXT: %b = nd.sqrt %negative
func.func @roots() -> (!nd.tensor<f64>, !nd.tensor<f64>) {
  %number = nd.full {value = 16.0 : f64} : !nd.tensor<f64>
  %negative = nd.full {value = -1.0 : f64} : !nd.tensor<f64>
  %a = nd.sqrt %number : !nd.tensor<f64>
  %b = nd.sqrt %negative : !nd.tensor<f64>
  func.return %a, %b : !nd.tensor<f64>, !nd.tensor<f64>
}

// CHECK-LABEL: func.func @heads
// CHECK: nd.matmul {{.*}} -> !nd.tensor<2 x 4 x 16 x 16 x f32>
func.func @heads(%q : !nd.tensor<2 x 4 x 16 x 8 x f32>, %k : !nd.tensor<8 x 8 x 16 x f32>) -> !nd.tensor<8 x 16 x 16 x f32> {
  %a = nd.reshape %q : (!nd.tensor<2 x 4 x 16 x 8 x f32>) -> !nd.tensor<8 x 16 x 8 x f32>
  %y = nd.matmul %a, %k : (!nd.tensor<8 x 16 x 8 x f32>, !nd.tensor<8 x 8 x 16 x f32>) -> !nd.tensor<8 x 16 x 16 x f32>
  func.return %y : !nd.tensor<8 x 16 x 16 x f32>
}

// A bias gradient is reduced over the dimensions in which its operand is computed; rows of the result keep their shape.
// CHECK-LABEL: func.func @reduce_joined
// CHECK: nd.reduce %y {kind = "sum", dims = [0, 1]} : (!nd.tensor<2 x 32 x 64 x f32>) -> !nd.tensor<64 x f32>
// CHECK: %r = nd.reduce %b {kind = "sum", dims = [1]}
func.func @reduce_joined(%x : !nd.tensor<2 x 32 x 64 x f32>) -> (!nd.tensor<64 x f32>, !nd.tensor<64 x f32>) {
  %y = nd.exp %x : !nd.tensor<2 x 32 x 64 x f32>
  %t = nd.permute %y {dims = [1, 0, 2]} : (!nd.tensor<2 x 32 x 64 x f32>) -> !nd.tensor<32 x 2 x 64 x f32>
  %a = nd.reshape %t : (!nd.tensor<32 x 2 x 64 x f32>) -> !nd.tensor<64 x 64 x f32>
  %s = nd.reduce %a {kind = "sum", dims = [0]} : (!nd.tensor<64 x 64 x f32>) -> !nd.tensor<64 x f32>
  %b = nd.reshape %y : (!nd.tensor<2 x 32 x 64 x f32>) -> !nd.tensor<64 x 64 x f32>
  %r = nd.reduce %b {kind = "sum", dims = [1]} : (!nd.tensor<64 x 64 x f32>) -> !nd.tensor<64 x f32>
  func.return %s, %r : !nd.tensor<64 x f32>, !nd.tensor<64 x f32>
}

// The sum over a concatenation is that of the sums, along a dimension that is kept; not one that is reduced.
// CHECK-LABEL: func.func @reduce_cat
// CHECK: %[[P:.*]] = nd.reduce %a {kind = "sum", dims = [0]} : (!nd.tensor<4 x 3 x f32>) -> !nd.tensor<3 x f32>
// CHECK: %[[Q:.*]] = nd.reduce %b {kind = "sum", dims = [0]} : (!nd.tensor<4 x 5 x f32>) -> !nd.tensor<5 x f32>
// CHECK: nd.cat %[[P]], %[[Q]] {dim = [0]}
// CHECK: nd.reduce %c {kind = "sum", dims = [1]}
func.func @reduce_cat(%x : !nd.tensor<4 x 3 x f32>, %y : !nd.tensor<4 x 5 x f32>) -> (!nd.tensor<8 x f32>, !nd.tensor<4 x f32>) {
  %a = nd.exp %x : !nd.tensor<4 x 3 x f32>
  %b = nd.exp %y : !nd.tensor<4 x 5 x f32>
  %c = nd.cat %a, %b {dim = [1]} : (!nd.tensor<4 x 3 x f32>, !nd.tensor<4 x 5 x f32>) -> !nd.tensor<4 x 8 x f32>
  %s = nd.reduce %c {kind = "sum", dims = [0]} : (!nd.tensor<4 x 8 x f32>) -> !nd.tensor<8 x f32>
  %r = nd.reduce %c {kind = "sum", dims = [1]} : (!nd.tensor<4 x 8 x f32>) -> !nd.tensor<4 x f32>
  func.return %s, %r : !nd.tensor<8 x f32>, !nd.tensor<4 x f32>
}

// What is computed from the view goes through its rows, and so does the reduction.
// CHECK-LABEL: func.func @reduce_with_view
// CHECK: nd.reduce %a {kind = "sum", dims = [0]}
func.func @reduce_with_view(%x : !nd.tensor<2 x 32 x 64 x f32>) -> (!nd.tensor<64 x f32>, !nd.tensor<64 x 64 x f32>) {
  %y = nd.exp %x : !nd.tensor<2 x 32 x 64 x f32>
  %a = nd.reshape %y : (!nd.tensor<2 x 32 x 64 x f32>) -> !nd.tensor<64 x 64 x f32>
  %s = nd.reduce %a {kind = "sum", dims = [0]} : (!nd.tensor<64 x 64 x f32>) -> !nd.tensor<64 x f32>
  %z = nd.exp %a : !nd.tensor<64 x 64 x f32>
  func.return %s, %z : !nd.tensor<64 x f32>, !nd.tensor<64 x 64 x f32>
}

// Equal values are one, those of several results too.
// CHECK-LABEL: func.func @deviations
// CHECK-COUNT-1: nd.var_mean
// CHECK-NOT: nd.var_mean
// CHECK: func.return
func.func @deviations(%x : !nd.tensor<4 x 8 x f32>) -> (!nd.tensor<f32>, !nd.tensor<f32>) {
  %v, %m = nd.var_mean %x {dims = [0, 1], correction = 1.000000e+00 : f64} : (!nd.tensor<4 x 8 x f32>) -> (!nd.tensor<f32>, !nd.tensor<f32>)
  %w, %n = nd.var_mean %x {dims = [0, 1], correction = 1.000000e+00 : f64} : (!nd.tensor<4 x 8 x f32>) -> (!nd.tensor<f32>, !nd.tensor<f32>)
  %y = nd.add %v, %w : !nd.tensor<f32>
  func.return %y, %n : !nd.tensor<f32>, !nd.tensor<f32>
}

// All elements are -inf where their maximum is, which a softmax of them has anyway; any is not inf where the minimum is not.
// CHECK-LABEL: func.func @compare_extreme
// CHECK: %[[M:.*]] = nd.reduce %x {kind = "max", dims = [1]}
// CHECK: nd.cmp %[[M]], %{{.*}} {predicate = "eq"}
// CHECK: %[[N:.*]] = nd.reduce %x {kind = "min", dims = [1]}
// CHECK: nd.cmp %[[N]], %{{.*}} {predicate = "ne"}
// CHECK-NEXT: nd.reduce %{{.*}} {kind = "any", dims = [1]}
// CHECK-NEXT: nd.reduce %{{.*}} {kind = "all", dims = [1]}
// CHECK-NEXT: func.return %{{.*}}, %{{.*}}, %[[M]]
func.func @compare_extreme(%x : !nd.tensor<4 x 8 x f32>) -> (!nd.tensor<4 x i1>, !nd.tensor<4 x i1>, !nd.tensor<4 x f32>, !nd.tensor<4 x i1>, !nd.tensor<4 x i1>) {
  %low = nd.full {value = 0xff800000 : f32} : !nd.tensor<f32>
  %high = nd.full {value = 0x7f800000 : f32} : !nd.tensor<f32>
  %a = nd.cmp %x, %low {predicate = "eq"} : (!nd.tensor<4 x 8 x f32>, !nd.tensor<f32>) -> !nd.tensor<4 x 8 x i1>
  %b = nd.cmp %high, %x {predicate = "ne"} : (!nd.tensor<f32>, !nd.tensor<4 x 8 x f32>) -> !nd.tensor<4 x 8 x i1>
  %all = nd.reduce %a {kind = "all", dims = [1]} : (!nd.tensor<4 x 8 x i1>) -> !nd.tensor<4 x i1>
  %any = nd.reduce %b {kind = "any", dims = [1]} : (!nd.tensor<4 x 8 x i1>) -> !nd.tensor<4 x i1>
  %top = nd.reduce %x {kind = "max", dims = [1]} : (!nd.tensor<4 x 8 x f32>) -> !nd.tensor<4 x f32>
  %some = nd.reduce %a {kind = "any", dims = [1]} : (!nd.tensor<4 x 8 x i1>) -> !nd.tensor<4 x i1>
  %every = nd.reduce %b {kind = "all", dims = [1]} : (!nd.tensor<4 x 8 x i1>) -> !nd.tensor<4 x i1>
  func.return %all, %any, %top, %some, %every : !nd.tensor<4 x i1>, !nd.tensor<4 x i1>, !nd.tensor<4 x f32>, !nd.tensor<4 x i1>, !nd.tensor<4 x i1>
}

// What is computed of parts by a quotient, of which no expression says that they are all, is computed of the whole.
// CHECK-LABEL: func.func @parts
// CHECK-NEXT: %0 = nd.expand %mask
// CHECK-NEXT: %1 = nd.reshape %0
// CHECK-NEXT: %{{.*}} = nd.add %x, %1 : !nd.tensor<s0 x 8 x f32>
// CHECK-NEXT: func.return
func.func @parts(%x : !nd.tensor<s0 x 8 x f32>, %mask : !nd.tensor<16 x 1 x f32>) -> !nd.tensor<s0 x 8 x f32> {
  %p = nd.reshape %x : (!nd.tensor<s0 x 8 x f32>) -> !nd.tensor<(s0 floordiv 16) x 16 x 8 x f32>
  %q = nd.add %p, %mask : (!nd.tensor<(s0 floordiv 16) x 16 x 8 x f32>, !nd.tensor<16 x 1 x f32>) -> !nd.tensor<(s0 floordiv 16) x 16 x 8 x f32>
  %y = nd.reshape %q : (!nd.tensor<(s0 floordiv 16) x 16 x 8 x f32>) -> !nd.tensor<s0 x 8 x f32>
  func.return %y : !nd.tensor<s0 x 8 x f32>
}
