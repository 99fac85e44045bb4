// RUN: opt-tool %s | filecheck %s
// RUN: opt-tool %s -p canonicalize --mlir-print-ir-after-all 2>&1 | filecheck %s --check-prefix=DUMP
// RUN: opt-tool %s --pass-pipeline='builtin.module(func.func(canonicalize,cse))' -o %t
// RUN: opt-tool %s -p canonicalize > %t && opt-tool %t | filecheck %s --check-prefix=CANON
// RUN: not opt-tool %s -p no-such-pass 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: opt-tool %s --mlir-print-op-generic \
// RUN:   --mlir-print-debuginfo | filecheck %s --check-prefix=GENERIC

// CHECK-LABEL: func.func @f
// CHECK-NEXT: arith.constant 0
// CHECK-NEXT: arith.addi
// DUMP: // -----// IR Dump After CanonicalizePass (canonicalize) //----- //
// DUMP: func.func @f
// CANON: func.func @f
// CANON-NEXT: func.return
// UNKNOWN: pass-pipeline:1:1: error: 'no-such-pass' does not refer to a registered pass or pass pipeline
// GENERIC: "arith.addi"({{.*}}) {{.*}} loc("{{.*}}opt_tool.mlir":23:8)
func.func @f(%a: i32) -> i32 {


  %c = arith.constant 0 : i32

  %b = arith.addi %a, %c : i32
  func.return %b : i32
}
