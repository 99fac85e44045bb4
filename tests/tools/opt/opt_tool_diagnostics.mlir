// RUN: opt-tool %s --split-input-file --verify-diagnostics --allow-unregistered-dialect

func.func @f() -> i32 {
  // expected-error @below {{value '%x' is used but never defined}}
  func.return %x : i32
}

// -----

func.func @g(%a: i32) {
  // expected-error @+1 {{operand #0 (a result of 'arith.addi') does not dominate this use}}
  %b = arith.addi %c, %a : i32
  %c = arith.addi %a, %a : i32
  func.return
}

// -----

// Nothing is wrong here.
"anything.goes"() : () -> ()

// -----

func.func @h() {
  // expected-error-re @+1 {{dialect 'arith' has no operation 'arith.{{[a-z]+}}'}}
  arith.nothing
}
