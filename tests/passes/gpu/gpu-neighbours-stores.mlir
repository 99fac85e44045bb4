// RUN: opt-tool %s -p gpu-neighbours --split-input-file | filecheck %s
// RUN: opt-tool %s -p gpu-neighbours --split-input-file --remarks 2>&1 | filecheck %s --check-prefix=WHY

// WHY: [gpu-neighbours] applied: 'loop.nest' op: 3 values side by side are stored at once
// WHY-NOT: [gpu-neighbours] applied

// A stack of three: what one of them alone needs is loaded for its places alone.

// CHECK-LABEL: func.func @three
// CHECK:      loop.nest (%i = 1000, %[[K:.*]] = 3) outs(%o = %y : !mem.buffer<1000 x 3 x f32>) {
// CHECK:        %[[FIRST:.*]] = arith.cmpi eq, %[[K]], %{{.*}} : index
// CHECK:        %[[SECOND:.*]] = arith.cmpi eq, %[[K]], %{{.*}} : index
// CHECK:        %[[THIRD:.*]] = arith.cmpi eq, %[[K]], %{{.*}} : index
// CHECK:        %[[A:.*]] = loop.load %p[%i] : !mem.buffer<1000 x f32> -> f32
// CHECK:        %[[B:.*]] = loop.load %q[%i] if %[[SECOND]] else %{{.*}} : !mem.buffer<1000 x f32> -> f32
// CHECK:        %[[C:.*]] = loop.load %r[%i] if %[[THIRD]] else %{{.*}} : !mem.buffer<1000 x f32> -> f32
// CHECK:        %[[S:.*]] = arith.addf %[[A]], %[[C]] : f32
// CHECK-NEXT:   %[[V:.*]] = arith.select %[[SECOND]], %[[B]], %[[S]] : f32
// CHECK-NEXT:   %[[W:.*]] = arith.select %[[FIRST]], %[[A]], %[[V]] : f32
// CHECK-NEXT:   loop.store %[[W]], %o[%i, %[[K]]] : f32, !mem.buffer<1000 x 3 x f32>
// CHECK-NEXT: } attributes {label = "three"}
func.func @three(%p: !mem.buffer<1000 x f32>, %q: !mem.buffer<1000 x f32>, %r: !mem.buffer<1000 x f32>) -> !mem.buffer<1000 x 3 x f32> {
  %y = mem.alloc {kind = "output"} : !mem.buffer<1000 x 3 x f32>
  loop.nest (%i = 1000) outs(%o = %y : !mem.buffer<1000 x 3 x f32>) {
    %a = loop.load %p[%i] : !mem.buffer<1000 x f32> -> f32
    loop.store %a, %o[%i, 0] : f32, !mem.buffer<1000 x 3 x f32>
    %b = loop.load %q[%i] : !mem.buffer<1000 x f32> -> f32
    loop.store %b, %o[%i, 1] : f32, !mem.buffer<1000 x 3 x f32>
    %c = loop.load %r[%i] : !mem.buffer<1000 x f32> -> f32
    %s = arith.addf %a, %c : f32
    loop.store %s, %o[%i, 2] : f32, !mem.buffer<1000 x 3 x f32>
  } attributes {label = "three"}
  func.return %y : !mem.buffer<1000 x 3 x f32>
}

// -----

// Two are laid side by side in registers.

// CHECK-LABEL: func.func @two
// CHECK: loop.nest (%i = 1000) outs
func.func @two(%p: !mem.buffer<1000 x f32>) -> !mem.buffer<1000 x 2 x f32> {
  %y = mem.alloc {kind = "output"} : !mem.buffer<1000 x 2 x f32>
  loop.nest (%i = 1000) outs(%o = %y : !mem.buffer<1000 x 2 x f32>) {
    %a = loop.load %p[%i] : !mem.buffer<1000 x f32> -> f32
    loop.store %a, %o[%i, 0] : f32, !mem.buffer<1000 x 2 x f32>
    loop.store %a, %o[%i, 1] : f32, !mem.buffer<1000 x 2 x f32>
  } attributes {label = "two"}
  func.return %y : !mem.buffer<1000 x 2 x f32>
}

// -----

// Three planes: each is contiguous by itself.

// CHECK-LABEL: func.func @planes
// CHECK: loop.nest (%i = 1000) outs
func.func @planes(%p: !mem.buffer<1000 x f32>) -> !mem.buffer<3 x 1000 x f32> {
  %y = mem.alloc {kind = "output"} : !mem.buffer<3 x 1000 x f32>
  loop.nest (%i = 1000) outs(%o = %y : !mem.buffer<3 x 1000 x f32>) {
    %a = loop.load %p[%i] : !mem.buffer<1000 x f32> -> f32
    loop.store %a, %o[0, %i] : f32, !mem.buffer<3 x 1000 x f32>
    loop.store %a, %o[1, %i] : f32, !mem.buffer<3 x 1000 x f32>
    loop.store %a, %o[2, %i] : f32, !mem.buffer<3 x 1000 x f32>
  } attributes {label = "planes"}
  func.return %y : !mem.buffer<3 x 1000 x f32>
}

// -----

// What they are computed from lies as they do: three accesses to each line of memory there, too.

// CHECK-LABEL: func.func @points
// CHECK: loop.nest (%i = 1000) outs
func.func @points(%p: !mem.buffer<1000 x 3 x f32>) -> !mem.buffer<1000 x 3 x f32> {
  %y = mem.alloc {kind = "output"} : !mem.buffer<1000 x 3 x f32>
  loop.nest (%i = 1000) outs(%o = %y : !mem.buffer<1000 x 3 x f32>) {
    %a = loop.load %p[%i, 0] : !mem.buffer<1000 x 3 x f32> -> f32
    %b = loop.load %p[%i, 1] : !mem.buffer<1000 x 3 x f32> -> f32
    %s = arith.addf %a, %b : f32
    loop.store %a, %o[%i, 0] : f32, !mem.buffer<1000 x 3 x f32>
    loop.store %b, %o[%i, 1] : f32, !mem.buffer<1000 x 3 x f32>
    loop.store %s, %o[%i, 2] : f32, !mem.buffer<1000 x 3 x f32>
  } attributes {label = "points"}
  func.return %y : !mem.buffer<1000 x 3 x f32>
}
