// RUN: opt-tool %s -p "nd-to-loop,loop-fuse,loop-fuse-tables" --split-input-file | filecheck %s
// RUN: opt-tool %s -p "nd-to-loop,loop-fuse,loop-fuse-tables" --split-input-file --remarks 2>&1 | filecheck %s --check-prefix=REMARK
// RUN: opt-tool %s -p "stepwell-cpu{to=cpu}" --split-input-file | filecheck %s --check-prefix=CPU

// A table behind a border, which the rows of a running sum read: memory of the iteration, filled once before the loops of a thread.
// CHECK-NOT: loop.nest ({{.*}} = 64)
// CHECK: loop.nest ([[I:%[a-z0-9_]+]] = 256) outs(
// CHECK: [[S:%[a-z0-9_]+]] = loop.local : !nd.tensor<64 x f32>
// CHECK: loop.for ([[J:%[a-z0-9_]+]] = 64) {
// CHECK: math.sin
// CHECK: loop.store {{%[a-z0-9_]+}}, [[S]][[[J]]]
// CHECK: loop.scan ([[K:%[a-z0-9_]+]] = 64) sum {
// CHECK: loop.load [[S]][[[K]]]
// REMARK: [loop-fuse-tables] applied: {{.*}} a table of its reader z, computed once for each thread
// CPU: cpu.local {bytes = 256 : i64
// CPU: math.sin
// CPU: cpu.store
// CPU: scf.for
// CPU-NOT: math.sin
// CPU: cpu.return
func.func @forward(%x: !nd.tensor<256 x 64 x f32>) -> !nd.tensor<256 x 64 x f32> {
  %i = nd.iota {dim = [0]} : !nd.tensor<64 x f32>
  %s = nd.sin %i : !nd.tensor<64 x f32>
  %t = nd.barrier %s : !nd.tensor<64 x f32>
  %y = nd.mul %x, %t : (!nd.tensor<256 x 64 x f32>, !nd.tensor<64 x f32>) -> !nd.tensor<256 x 64 x f32>
  %z = nd.scan %y {kind = "sum", dim = [1]} : (!nd.tensor<256 x 64 x f32>) -> !nd.tensor<256 x 64 x f32>
  func.return %z : !nd.tensor<256 x 64 x f32>
}

// -----

// A table of a table: both.
// CHECK: loop.nest ({{%[a-z0-9_]+}} = 256) outs(
// CHECK: [[S:%[a-z0-9_]+]] = loop.local
// CHECK: loop.store {{%[a-z0-9_]+}}, [[S]]
// CHECK: [[U:%[a-z0-9_]+]] = loop.local
// CHECK: loop.load [[S]]
// CHECK: loop.store {{%[a-z0-9_]+}}, [[U]]
// CHECK: loop.scan
// REMARK: [loop-fuse-tables] applied: {{.*}} a table of its reader z
// REMARK: [loop-fuse-tables] applied: {{.*}} a table of its reader z
func.func @forward(%x: !nd.tensor<256 x 64 x f32>) -> !nd.tensor<256 x 64 x f32> {
  %i = nd.iota {dim = [0]} : !nd.tensor<64 x f32>
  %s = nd.sin %i : !nd.tensor<64 x f32>
  %t = nd.barrier %s : !nd.tensor<64 x f32>
  %c = nd.cos %t : !nd.tensor<64 x f32>
  %u = nd.barrier %c : !nd.tensor<64 x f32>
  %a = nd.mul %x, %t : (!nd.tensor<256 x 64 x f32>, !nd.tensor<64 x f32>) -> !nd.tensor<256 x 64 x f32>
  %b = nd.add %a, %u : (!nd.tensor<256 x 64 x f32>, !nd.tensor<64 x f32>) -> !nd.tensor<256 x 64 x f32>
  %z = nd.scan %b {kind = "sum", dim = [1]} : (!nd.tensor<256 x 64 x f32>) -> !nd.tensor<256 x 64 x f32>
  func.return %z : !nd.tensor<256 x 64 x f32>
}

// -----

// A nest whose own loops run along the lanes reads its table from memory.
// CHECK-NOT: loop.local
// CHECK: func.return
// REMARK: [loop-fuse-tables] missed: {{.*}} not a table of y: the loops of y run along the lanes
func.func @forward(%x: !nd.tensor<256 x 64 x f32>) -> !nd.tensor<256 x 64 x f32> {
  %i = nd.iota {dim = [0]} : !nd.tensor<64 x f32>
  %s = nd.sin %i : !nd.tensor<64 x f32>
  %t = nd.barrier %s : !nd.tensor<64 x f32>
  %y = nd.mul %x, %t : (!nd.tensor<256 x 64 x f32>, !nd.tensor<64 x f32>) -> !nd.tensor<256 x 64 x f32>
  func.return %y : !nd.tensor<256 x 64 x f32>
}

// -----

// What is returned, or read from an argument, is no table.
// CHECK-NOT: loop.local
// CHECK: func.return
// REMARK-NOT: [loop-fuse-tables]
func.func @forward(%x: !nd.tensor<256 x 64 x f32>, %w: !nd.tensor<64 x f32>) -> (!nd.tensor<256 x 64 x f32>, !nd.tensor<64 x f32>) {
  %i = nd.iota {dim = [0]} : !nd.tensor<64 x f32>
  %s = nd.sin %i : !nd.tensor<64 x f32>
  %e = nd.exp %w : !nd.tensor<64 x f32>
  %t = nd.barrier %e : !nd.tensor<64 x f32>
  %a = nd.mul %x, %t : (!nd.tensor<256 x 64 x f32>, !nd.tensor<64 x f32>) -> !nd.tensor<256 x 64 x f32>
  %b = nd.mul %a, %s : (!nd.tensor<256 x 64 x f32>, !nd.tensor<64 x f32>) -> !nd.tensor<256 x 64 x f32>
  %z = nd.scan %b {kind = "sum", dim = [1]} : (!nd.tensor<256 x 64 x f32>) -> !nd.tensor<256 x 64 x f32>
  func.return %z, %s : !nd.tensor<256 x 64 x f32>, !nd.tensor<64 x f32>
}
