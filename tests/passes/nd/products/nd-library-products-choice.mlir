// RUN: opt-tool %s --machine sm_90 -p nd-library-products | filecheck %s
// RUN: opt-tool %s --machine sm_90 -p 'nd-library-products{library=never}' | filecheck %s --check-prefix=NEVER
// RUN: opt-tool %s --machine sm_90 -p 'nd-library-products{library=always}' | filecheck %s --check-prefix=ALWAYS
// RUN: opt-tool %s --machine sm_75 -p 'nd-library-products{library=never}' | filecheck %s --check-prefix=ALWAYS

// An activation behind short sums is worth a generated product.
// CHECK-LABEL: func.func @activation
// CHECK: nd.mul {{.*}}contract
// CHECK: nd.reduce
// CHECK-NOT: nd.extern
// NEVER-LABEL: func.func @activation
// NEVER-NOT: nd.extern
// ALWAYS-LABEL: func.func @activation
// ALWAYS: aten.mm.default
func.func @activation(%a : !nd.tensor<16384 x 512 x bf16>, %b : !nd.tensor<512 x 8192 x bf16>) -> !nd.tensor<16384 x 8192 x bf16> {
  %0 = nd.matmul %a, %b : (!nd.tensor<16384 x 512 x bf16>, !nd.tensor<512 x 8192 x bf16>) -> !nd.tensor<16384 x 8192 x bf16>
  %1 = nd.relu %0 : (!nd.tensor<16384 x 8192 x bf16>) -> !nd.tensor<16384 x 8192 x bf16>
  func.return %1 : !nd.tensor<16384 x 8192 x bf16>
}

// With nothing to fuse, or a bias alone, the library is as good.
// CHECK-LABEL: func.func @plain
// CHECK: aten.mm.default
// CHECK: aten.addmm.default
// NEVER-LABEL: func.func @plain
// NEVER-NOT: nd.extern
// ALWAYS-LABEL: func.func @plain
func.func @plain(%a : !nd.tensor<4096 x 512 x f16>, %b : !nd.tensor<512 x 8192 x f16>, %d : !nd.tensor<512 x 8192 x f16>, %c : !nd.tensor<8192 x f16>)
    -> (!nd.tensor<4096 x 8192 x f16>, !nd.tensor<4096 x 8192 x f16>) {
  %0 = nd.matmul %a, %b : (!nd.tensor<4096 x 512 x f16>, !nd.tensor<512 x 8192 x f16>) -> !nd.tensor<4096 x 8192 x f16>
  %p = nd.matmul %a, %d : (!nd.tensor<4096 x 512 x f16>, !nd.tensor<512 x 8192 x f16>) -> !nd.tensor<4096 x 8192 x f16>
  %1 = nd.add %p, %c : (!nd.tensor<4096 x 8192 x f16>, !nd.tensor<8192 x f16>) -> !nd.tensor<4096 x 8192 x f16>
  func.return %0, %1 : !nd.tensor<4096 x 8192 x f16>, !nd.tensor<4096 x 8192 x f16>
}

// A gate and its values, of the same rows, are two sums of one kernel; here only as far as the price of both says so.
// CHECK-LABEL: func.func @gate
// CHECK-COUNT-2: nd.mul {{.*}}contract
// CHECK-NOT: nd.extern
// NEVER-LABEL: func.func @gate
// ALWAYS-LABEL: func.func @gate
func.func @gate(%x : !nd.tensor<8192 x 4096 x bf16>, %w : !nd.tensor<4096 x 11008 x bf16>, %v : !nd.tensor<4096 x 11008 x bf16>) -> !nd.tensor<8192 x 11008 x bf16> {
  %0 = nd.matmul %x, %w : (!nd.tensor<8192 x 4096 x bf16>, !nd.tensor<4096 x 11008 x bf16>) -> !nd.tensor<8192 x 11008 x bf16>
  %1 = nd.matmul %x, %v : (!nd.tensor<8192 x 4096 x bf16>, !nd.tensor<4096 x 11008 x bf16>) -> !nd.tensor<8192 x 11008 x bf16>
  %2 = nd.sigmoid %0 : (!nd.tensor<8192 x 11008 x bf16>) -> !nd.tensor<8192 x 11008 x bf16>
  %3 = nd.mul %2, %1 : (!nd.tensor<8192 x 11008 x bf16>, !nd.tensor<8192 x 11008 x bf16>) -> !nd.tensor<8192 x 11008 x bf16>
  func.return %3 : !nd.tensor<8192 x 11008 x bf16>
}

// Both in one matrix: blocks of its columns are products of their own, as their elements meet.
// CHECK-LABEL: func.func @halves
// CHECK: nd.slice %w {{.*}}starts = [0, 0]{{.*}} -> !nd.tensor<4096 x 11008 x bf16>
// CHECK: nd.reduce
// CHECK: nd.slice %w {{.*}}starts = [0, 11008]{{.*}} -> !nd.tensor<4096 x 11008 x bf16>
// CHECK: nd.reduce
// CHECK-NOT: nd.extern
// NEVER-LABEL: func.func @halves
// ALWAYS-LABEL: func.func @halves
func.func @halves(%x : !nd.tensor<8192 x 4096 x bf16>, %w : !nd.tensor<4096 x 22016 x bf16>) -> !nd.tensor<8192 x 11008 x bf16> {
  %0 = nd.matmul %x, %w : (!nd.tensor<8192 x 4096 x bf16>, !nd.tensor<4096 x 22016 x bf16>) -> !nd.tensor<8192 x 22016 x bf16>
  %1 = nd.slice %0 {starts = [0, 0], steps = [1, 1]} : (!nd.tensor<8192 x 22016 x bf16>) -> !nd.tensor<8192 x 11008 x bf16>
  %2 = nd.slice %0 {starts = [0, 11008], steps = [1, 1]} : (!nd.tensor<8192 x 22016 x bf16>) -> !nd.tensor<8192 x 11008 x bf16>
  %3 = nd.sigmoid %1 : (!nd.tensor<8192 x 11008 x bf16>) -> !nd.tensor<8192 x 11008 x bf16>
  %4 = nd.mul %3, %2 : (!nd.tensor<8192 x 11008 x bf16>, !nd.tensor<8192 x 11008 x bf16>) -> !nd.tensor<8192 x 11008 x bf16>
  func.return %4 : !nd.tensor<8192 x 11008 x bf16>
}

// Columns that do not meet stay one product.
// CHECK-LABEL: func.func @apart
// CHECK: aten.mm.default{{.*}} -> !nd.tensor<8192 x 22016 x bf16>
// NEVER-LABEL: func.func @apart
// NEVER-COUNT-1: nd.reduce
// NEVER-NOT: nd.reduce
// ALWAYS-LABEL: func.func @apart
func.func @apart(%x : !nd.tensor<8192 x 4096 x bf16>, %w : !nd.tensor<4096 x 22016 x bf16>) -> (!nd.tensor<8192 x 11008 x bf16>, !nd.tensor<8192 x 11008 x bf16>) {
  %0 = nd.matmul %x, %w : (!nd.tensor<8192 x 4096 x bf16>, !nd.tensor<4096 x 22016 x bf16>) -> !nd.tensor<8192 x 22016 x bf16>
  %1 = nd.slice %0 {starts = [0, 0], steps = [1, 1]} : (!nd.tensor<8192 x 22016 x bf16>) -> !nd.tensor<8192 x 11008 x bf16>
  %2 = nd.slice %0 {starts = [0, 11008], steps = [1, 1]} : (!nd.tensor<8192 x 22016 x bf16>) -> !nd.tensor<8192 x 11008 x bf16>
  func.return %1, %2 : !nd.tensor<8192 x 11008 x bf16>, !nd.tensor<8192 x 11008 x bf16>
}

// With more elements than 32 bits count: always the library's. Of f32, what generated products reach must have been measured.
// CHECK-LABEL: func.func @never
// NEVER-LABEL: func.func @never
// NEVER-COUNT-1: nd.extern
// ALWAYS-LABEL: func.func @never
func.func @never(%a : !nd.tensor<512 x 512 x f32>, %b : !nd.tensor<0 x 512 x bf16>, %c : !nd.tensor<512 x 512 x bf16>,
    %d : !nd.tensor<8388608 x 512 x bf16>) -> (!nd.tensor<512 x 512 x f32>, !nd.tensor<0 x 512 x bf16>, !nd.tensor<8388608 x 512 x bf16>) {
  %0 = nd.matmul %a, %a : (!nd.tensor<512 x 512 x f32>, !nd.tensor<512 x 512 x f32>) -> !nd.tensor<512 x 512 x f32>
  %1 = nd.matmul %b, %c : (!nd.tensor<0 x 512 x bf16>, !nd.tensor<512 x 512 x bf16>) -> !nd.tensor<0 x 512 x bf16>
  %2 = nd.matmul %d, %c : (!nd.tensor<8388608 x 512 x bf16>, !nd.tensor<512 x 512 x bf16>) -> !nd.tensor<8388608 x 512 x bf16>
  func.return %0, %1, %2 : !nd.tensor<512 x 512 x f32>, !nd.tensor<0 x 512 x bf16>, !nd.tensor<8388608 x 512 x bf16>
}

// What a product says of itself comes first.
// CHECK-LABEL: func.func @said
// CHECK: aten.mm.default
// CHECK: nd.reduce
// NEVER-LABEL: func.func @said
// NEVER: aten.mm.default
// ALWAYS-LABEL: func.func @said
func.func @said(%a : !nd.tensor<512 x 512 x bf16>, %b : !nd.tensor<512 x 512 x bf16>) -> !nd.tensor<512 x 512 x bf16> {
  %0 = nd.matmul %a, %b {schedule = "library"} : (!nd.tensor<512 x 512 x bf16>, !nd.tensor<512 x 512 x bf16>) -> !nd.tensor<512 x 512 x bf16>
  %1 = nd.matmul %b, %0 {schedule = "generated"} : (!nd.tensor<512 x 512 x bf16>, !nd.tensor<512 x 512 x bf16>) -> !nd.tensor<512 x 512 x bf16>
  func.return %1 : !nd.tensor<512 x 512 x bf16>
}
