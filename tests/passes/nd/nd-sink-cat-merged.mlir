// RUN: opt-tool %s -p 'nd-sink-cat{merged}' | filecheck %s

// What is computed behind a reshape that lays pieces side by side is computed of each piece; an operand that has the joined rows is cut into
// what meets each piece, one that is the same along them stays as it is.
// CHECK-LABEL: func.func @nibbles
// CHECK: %{{.*}} = nd.mul %lo, %{{.*}} : {{.*}}!nd.tensor<8 x 32 x 1 x f32>, !nd.tensor<8 x 1 x 1 x f32>
// CHECK: nd.slice {{.*}} {starts = [0, 0, 1]
// CHECK: nd.cat %{{.*}}, %{{.*}} {dim = [2]}
// CHECK-NEXT: nd.reshape
// CHECK-NEXT: func.return
func.func @nibbles(%lo : !nd.tensor<8 x 32 x 1 x f32>, %hi : !nd.tensor<8 x 32 x 1 x f32>, %s : !nd.tensor<8 x 1 x f32>, %z : !nd.tensor<8 x 64 x f32>) -> !nd.tensor<8 x 64 x f32> {
  %c = nd.cat %lo, %hi {dim = [2]} : (!nd.tensor<8 x 32 x 1 x f32>, !nd.tensor<8 x 32 x 1 x f32>) -> !nd.tensor<8 x 32 x 2 x f32>
  %r = nd.reshape %c : (!nd.tensor<8 x 32 x 2 x f32>) -> !nd.tensor<8 x 64 x f32>
  %m = nd.mul %r, %s : (!nd.tensor<8 x 64 x f32>, !nd.tensor<8 x 1 x f32>) -> !nd.tensor<8 x 64 x f32>
  %y = nd.add %m, %z : !nd.tensor<8 x 64 x f32>
  func.return %y : !nd.tensor<8 x 64 x f32>
}

// A reshape that cuts rows elsewhere stays where it is.
// CHECK-LABEL: func.func @elsewhere
// CHECK: nd.cat
// CHECK-NEXT: nd.reshape
// CHECK-NEXT: nd.neg
func.func @elsewhere(%a : !nd.tensor<6 x 4 x f32>, %b : !nd.tensor<6 x 4 x f32>) -> !nd.tensor<4 x 12 x f32> {
  %c = nd.cat %a, %b {dim = [1]} : (!nd.tensor<6 x 4 x f32>, !nd.tensor<6 x 4 x f32>) -> !nd.tensor<6 x 8 x f32>
  %r = nd.reshape %c : (!nd.tensor<6 x 8 x f32>) -> !nd.tensor<4 x 12 x f32>
  %y = nd.neg %r : !nd.tensor<4 x 12 x f32>
  func.return %y : !nd.tensor<4 x 12 x f32>
}

// A dimension that was not concatenated may be cut into groups, through several reshapes: scales of nibbles.
// CHECK-LABEL: func.func @groups
// CHECK: nd.mul {{.*}} : (!nd.tensor<8 x 4 x 8 x 1 x f32>, !nd.tensor<8 x 4 x 1 x 1 x f32>) -> !nd.tensor<8 x 4 x 8 x 1 x f32>
// CHECK: %[[C:.*]] = nd.cat %{{.*}}, %{{.*}} {dim = [3]} : {{.*}} -> !nd.tensor<8 x 4 x 8 x 2 x f32>
// CHECK-NEXT: nd.reshape %[[C]] : (!nd.tensor<8 x 4 x 8 x 2 x f32>) -> !nd.tensor<8 x 4 x 16 x f32>
func.func @groups(%lo : !nd.tensor<8 x 32 x 1 x f32>, %hi : !nd.tensor<8 x 32 x 1 x f32>, %s : !nd.tensor<8 x 4 x 1 x f32>) -> !nd.tensor<8 x 4 x 16 x f32> {
  %c = nd.cat %lo, %hi {dim = [2]} : (!nd.tensor<8 x 32 x 1 x f32>, !nd.tensor<8 x 32 x 1 x f32>) -> !nd.tensor<8 x 32 x 2 x f32>
  %r = nd.reshape %c : (!nd.tensor<8 x 32 x 2 x f32>) -> !nd.tensor<8 x 64 x f32>
  %g = nd.reshape %r : (!nd.tensor<8 x 64 x f32>) -> !nd.tensor<8 x 4 x 16 x f32>
  %y = nd.mul %g, %s : (!nd.tensor<8 x 4 x 16 x f32>, !nd.tensor<8 x 4 x 1 x f32>) -> !nd.tensor<8 x 4 x 16 x f32>
  func.return %y : !nd.tensor<8 x 4 x 16 x f32>
}

// Several operations may need the pieces, and elements of a table may be looked up by them: 4-bit floats.
// CHECK-LABEL: func.func @decoded
// CHECK: nd.index %table, %lo
// CHECK: nd.index %table, %hi
// CHECK: nd.add {{.*}} : !nd.tensor<8 x 32 x 1 x f32>
// CHECK-NEXT: nd.add {{.*}} : !nd.tensor<8 x 32 x 1 x f32>
// CHECK-NEXT: nd.cat {{.*}} -> !nd.tensor<8 x 32 x 2 x f32>
// CHECK-NEXT: nd.reshape
// CHECK-NEXT: func.return
func.func @decoded(%lo : !nd.tensor<8 x 32 x 1 x i64>, %hi : !nd.tensor<8 x 32 x 1 x i64>, %table : !nd.tensor<16 x f32>) -> !nd.tensor<8 x 64 x f32> {
  %c = nd.cat %lo, %hi {dim = [2]} : (!nd.tensor<8 x 32 x 1 x i64>, !nd.tensor<8 x 32 x 1 x i64>) -> !nd.tensor<8 x 32 x 2 x i64>
  %r = nd.reshape %c : (!nd.tensor<8 x 32 x 2 x i64>) -> !nd.tensor<8 x 64 x i64>
  %v = nd.index %table, %r {dims = [0]} : (!nd.tensor<16 x f32>, !nd.tensor<8 x 64 x i64>) -> !nd.tensor<8 x 64 x f32>
  %f = nd.cast %r : (!nd.tensor<8 x 64 x i64>) -> !nd.tensor<8 x 64 x f32>
  %y = nd.add %v, %f : !nd.tensor<8 x 64 x f32>
  func.return %y : !nd.tensor<8 x 64 x f32>
}
