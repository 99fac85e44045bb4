// RUN: opt-tool %s -p gpu-neighbours --split-input-file | filecheck %s
// RUN: opt-tool %s -p gpu-neighbours --split-input-file --remarks 2>&1 | filecheck %s --check-prefix=WHY

// WHY: [gpu-neighbours] applied: 'loop.nest' op: two neighbours of 64 are computed at once
// WHY-NOT: [gpu-neighbours] applied

// A pixel shuffle: what is stored side by side comes from two planes.

// CHECK-LABEL: func.func @shuffle
// CHECK:      loop.nest (%c = 3, %h = 64, %w = 32) outs(%o = %y : !mem.buffer<3 x 64 x 64 x f32>) {
// CHECK-NEXT:   %[[A:.*]] = loop.load %x[%c * 4 + (%h mod 2) * 2, %h floordiv 2, %w] : !mem.buffer<12 x 32 x 32 x f32> -> f32
// CHECK-NEXT:   %[[B:.*]] = loop.load %x[%c * 4 + (%h mod 2) * 2 + 1, %h floordiv 2, %w] : !mem.buffer<12 x 32 x 32 x f32> -> f32
// CHECK-NEXT:   loop.store %[[A]], %o[%c, %h, %w * 2] : f32, !mem.buffer<3 x 64 x 64 x f32>
// CHECK-NEXT:   loop.store %[[B]], %o[%c, %h, %w * 2 + 1] : f32, !mem.buffer<3 x 64 x 64 x f32>
// CHECK-NEXT: } attributes {label = "shuffle"}
func.func @shuffle(%x: !mem.buffer<12 x 32 x 32 x f32>) -> !mem.buffer<3 x 64 x 64 x f32> {
  %y = mem.alloc {kind = "output"} : !mem.buffer<3 x 64 x 64 x f32>
  loop.nest (%c = 3, %h = 64, %w = 64) outs(%o = %y : !mem.buffer<3 x 64 x 64 x f32>) {
    %a = loop.load %x[%c * 4 + (%h mod 2) * 2 + %w mod 2, %h floordiv 2, %w floordiv 2] : !mem.buffer<12 x 32 x 32 x f32> -> f32
    loop.store %a, %o[%c, %h, %w] : f32, !mem.buffer<3 x 64 x 64 x f32>
  } attributes {label = "shuffle"}
  func.return %y : !mem.buffer<3 x 64 x 64 x f32>
}

// -----

// A row twice: nothing alternates.

// CHECK-LABEL: func.func @twice
// CHECK: loop.nest (%h = 64, %w = 64)
func.func @twice(%x: !mem.buffer<32 x 32 x f32>) -> !mem.buffer<64 x 64 x f32> {
  %y = mem.alloc {kind = "output"} : !mem.buffer<64 x 64 x f32>
  loop.nest (%h = 64, %w = 64) outs(%o = %y : !mem.buffer<64 x 64 x f32>) {
    %a = loop.load %x[%h floordiv 2, %w mod 32] : !mem.buffer<32 x 32 x f32> -> f32
    loop.store %a, %o[%h, %w] : f32, !mem.buffer<64 x 64 x f32>
  } attributes {label = "twice"}
  func.return %y : !mem.buffer<64 x 64 x f32>
}

// -----

// It reads what it stores to.

// CHECK-LABEL: func.func @in_place
// CHECK: loop.nest (%w = 64)
func.func @in_place(%x: !mem.buffer<2 x 64 x f32>) -> !mem.buffer<2 x 64 x f32> {
  loop.nest (%w = 64) outs(%o = %x : !mem.buffer<2 x 64 x f32>) {
    %a = loop.load %o[%w mod 2, %w floordiv 2] : !mem.buffer<2 x 64 x f32> -> f32
    loop.store %a, %o[0, %w] : f32, !mem.buffer<2 x 64 x f32>
  } attributes {label = "in_place"}
  func.return %x : !mem.buffer<2 x 64 x f32>
}

// -----

// A tile that somebody chose stays.

// CHECK-LABEL: func.func @chosen
// CHECK: loop.nest (%w = 64)
func.func @chosen(%x: !mem.buffer<2 x 32 x f32>) -> !mem.buffer<64 x f32> {
  %y = mem.alloc {kind = "output"} : !mem.buffer<64 x f32>
  loop.nest (%w = 64) outs(%o = %y : !mem.buffer<64 x f32>) {
    %a = loop.load %x[%w mod 2, %w floordiv 2] : !mem.buffer<2 x 32 x f32> -> f32
    loop.store %a, %o[%w] : f32, !mem.buffer<64 x f32>
  } attributes {label = "chosen", schedule = {gpu = {axes = [[0]], blocks = [64], grid_loops = [], reduction_block = 0, chunks = 1, stages = 0, warps = 1}}}
  func.return %y : !mem.buffer<64 x f32>
}
