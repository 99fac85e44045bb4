// RUN: opt-tool %s -p nd-to-loop,loop-fuse{no-fuse=a} | filecheck %s --check-prefix=APART
// RUN: opt-tool %s -p nd-to-loop,loop-fuse{fuse=s+c} | filecheck %s --check-prefix=ONE
// RUN: opt-tool %s -p nd-to-loop,loop-fuse{no-fuse=loop-fuse-directives.mlir:24} | filecheck %s --check-prefix=LINE
// RUN: opt-tool %s -p "nd-to-loop,loop-fuse{no-fuse=nosuch,s fuse=s+c,a+zz,a+s}" --remarks 2>&1 | filecheck %s --check-prefix=REFUSED

// APART: %a = loop.nest
// APART: %s = loop.nest
// APART: math.exp
// APART: %c = loop.nest

// ONE: %s, %c = loop.nest
// ONE-NOT: loop.nest

// LINE: %b = loop.nest
// LINE: %s = loop.nest

// REFUSED: computed in its reader: b
// REFUSED: no_fuse 'nosuch': refused, 'nosuch' names nothing that is computed here; named are: a, b, s, c
// REFUSED: no_fuse 's': granted, kept apart: s
// REFUSED: fuse 's' with 'c': refused, no_fuse 's' forbids it
// REFUSED: fuse 'a' with 'zz': refused, 'zz' names nothing that is computed here; named are: a, b, s, c
func.func @f(%x : !nd.tensor<64 x 32 x f32>, %y : !nd.tensor<64 x 32 x f32>) -> (!nd.tensor<64 x f32>, !nd.tensor<64 x 32 x f32>) {
  %a = nd.add %x, %y : !nd.tensor<64 x 32 x f32>
  %b = nd.exp %a : !nd.tensor<64 x 32 x f32>
  %s = nd.reduce %b {kind = "sum", dims = [1]} : (!nd.tensor<64 x 32 x f32>) -> !nd.tensor<64 x f32>
  %c = nd.cos %y : !nd.tensor<64 x 32 x f32>
  func.return %s, %c : !nd.tensor<64 x f32>, !nd.tensor<64 x 32 x f32>
}
