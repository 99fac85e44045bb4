// RUN: opt-tool %s -p gpu-split-scan --split-input-file | filecheck %s
// RUN: opt-tool %s -p gpu-split-scan --split-input-file --remarks 2>&1 | filecheck %s --check-prefix=WHY

// WHY: [gpu-split-scan] applied: 'loop.nest' op: scan split: 64 parts of 8192
// WHY: [gpu-split-scan] applied: 'loop.nest' op: scan split: 123 parts of 8192
// WHY: [gpu-split-scan] missed: 'loop.nest' op: scan not split: it reads or stores elsewhere what it stores to

// Parts of whole blocks: 128 programs of 8192 elements, which reduce the parts before their own.

// CHECK-LABEL: func.func @even
// CHECK:      loop.nest (%i = 2, %{{.*}} = 63) outs(%[[P:.*]] = %running_parts : !mem.buffer<2 x 63 x f64>) {
// CHECK-NEXT:   %[[T:.*]] = loop.reduce (%j = 8192) sum {
// CHECK-NEXT:     %[[X:.*]] = loop.load %x[%i, %j + %{{.*}} * 8192]
// CHECK-NEXT:     %[[W:.*]] = arith.extf %[[X]] : f32 to f64
// CHECK-NEXT:     loop.yield %[[W]] : f64
// CHECK-NEXT:   } -> f64
// CHECK-NEXT:   loop.store %[[T]], %[[P]][%i, %{{.*}}]
// CHECK-NEXT: } attributes {label = "running_parts"}
// CHECK-NEXT: loop.nest (%{{.*}} = 2, %[[Q:.*]] = 64) outs(%o = %y : !mem.buffer<2 x 524288 x f32>) {
// CHECK-NEXT:   %[[B:.*]] = loop.reduce (%[[K:.*]] = 63) sum {
// CHECK-NEXT:     %[[C:.*]] = arith.cmpi slt, %[[K]], %[[Q]] : index
// CHECK-NEXT:     %[[Z:.*]] = arith.constant 0.000000e+00 : f64
// CHECK-NEXT:     %{{.*}} = loop.load %running_parts[%{{.*}}, %[[K]]] if %[[C]] else %[[Z]]
// CHECK:        loop.scan (%{{.*}} = 8192) sum {
// CHECK:        } do (%{{.*}}, %[[R:.*]] : f64) {
// CHECK-NEXT:     %[[S:.*]] = arith.addf %[[B]], %[[R]] : f64
// CHECK-NEXT:     %[[N:.*]] = arith.truncf %[[S]] : f64 to f32
// CHECK-NEXT:     loop.store %[[N]], %o[%{{.*}}, %{{.*}} + %[[Q]] * 8192]
func.func @even(%x: !mem.buffer<2 x 524288 x f32>) -> !mem.buffer<2 x 524288 x f32> {
  %y = mem.alloc {kind = "output"} : !mem.buffer<2 x 524288 x f32>
  loop.nest (%i = 2) outs(%o = %y : !mem.buffer<2 x 524288 x f32>) {
    loop.scan (%j = 524288) sum {
      %a = loop.load %x[%i, %j] : !mem.buffer<2 x 524288 x f32> -> f32
      loop.yield %a : f32
    } do (%k, %r : f32) {
      loop.store %r, %o[%i, %k] : f32, !mem.buffer<2 x 524288 x f32>
    }
  } attributes {label = "running"}
  func.return %y : !mem.buffer<2 x 524288 x f32>
}

// -----

// The last part is shorter, under a mask; of equal extremes the last one counts: indices are counted from the end.

// CHECK-LABEL: func.func @extremes
// CHECK:      loop.nest (%{{.*}} = 122) outs(%[[P:.*]] = %running_parts : !mem.buffer<122 x f32>, %[[I:.*]] = %running_parts_1 : !mem.buffer<122 x i64>) {
// CHECK-NEXT:   %{{.*}}, %{{.*}} = loop.reduce (%j = 8192) argmax {
// CHECK:          loop.index -%j - %{{.*}} * 8192 + 999999 : i64
// CHECK:      loop.nest (%[[Q:.*]] = 123)
// CHECK:        loop.load %running_parts_1[%{{.*}}] if %{{.*}} else %{{.*}} : !mem.buffer<122 x i64> -> i64
// CHECK:        loop.scan (%[[J:.*]] = 8192) max {
// CHECK-NEXT:     %[[N:.*]] = loop.index %[[J]] + %[[Q]] * 8192 : index
// CHECK-NEXT:     %[[E:.*]] = arith.constant 1000000 : index
// CHECK-NEXT:     %[[C:.*]] = arith.cmpi slt, %[[N]], %[[E]] : index
// CHECK:          loop.load %x[%{{.*}}] if %[[C]] else
// CHECK:        } do (%{{.*}}, %[[V:.*]] : f32, %[[L:.*]] : i64) {
// CHECK:          arith.cmpf oge, %[[V]], %{{.*}} : f32
// CHECK:          loop.store %{{.*}}, %o[%{{.*}}] if
func.func @extremes(%x: !mem.buffer<1000000 x f32>) -> !mem.buffer<1000000 x i64> {
  %y = mem.alloc {kind = "output"} : !mem.buffer<1000000 x i64>
  loop.nest () outs(%o = %y : !mem.buffer<1000000 x i64>) {
    loop.scan (%j = 1000000) max {
      %a = loop.load %x[%j] : !mem.buffer<1000000 x f32> -> f32
      %n = loop.index %j : i64
      loop.yield %a, %n : f32, i64
    } do (%k, %r : f32, %w : i64) {
      loop.store %w, %o[%k] : i64, !mem.buffer<1000000 x i64>
    }
  } attributes {label = "running"}
  func.return %y : !mem.buffer<1000000 x i64>
}

// -----

// CHECK-LABEL: func.func @shifted
// CHECK-NOT: _parts
func.func @shifted(%x: !mem.buffer<1000001 x f32>) {
  loop.nest () outs(%o = %x : !mem.buffer<1000001 x f32>) {
    loop.scan (%j = 1000000) sum {
      %a = loop.load %x[%j + 1] : !mem.buffer<1000001 x f32> -> f32
      loop.yield %a : f32
    } do (%k, %r : f32) {
      loop.store %r, %o[%k] : f32, !mem.buffer<1000001 x f32>
    }
  }
  func.return
}

// -----

// Rows that are many, or short, stay whole.

// CHECK-LABEL: func.func @rows
// CHECK-NOT: _parts
func.func @rows(%x: !mem.buffer<512 x 131072 x f32>, %z: !mem.buffer<16384 x f32>) {
  loop.nest (%i = 512) outs(%o = %x : !mem.buffer<512 x 131072 x f32>) {
    loop.scan (%j = 131072) sum {
      %a = loop.load %o[%i, %j] : !mem.buffer<512 x 131072 x f32> -> f32
      loop.yield %a : f32
    } do (%k, %r : f32) {
      loop.store %r, %o[%i, %k] : f32, !mem.buffer<512 x 131072 x f32>
    }
  }
  loop.nest () outs(%o = %z : !mem.buffer<16384 x f32>) {
    loop.scan (%j = 16384) sum {
      %a = loop.load %o[%j] : !mem.buffer<16384 x f32> -> f32
      loop.yield %a : f32
    } do (%k, %r : f32) {
      loop.store %r, %o[%k] : f32, !mem.buffer<16384 x f32>
    }
  }
  func.return
}
