// RUN: opt-tool %s -p loop-recompute --split-input-file | filecheck %s

// what the readers need of a row is stored instead, whatever indices they read at

// CHECK-LABEL: @rows
// CHECK: [[S:%.*]], [[M:%.*]] = loop.nest
// CHECK-NOT: loop.store {{.*}} 16 x 256
// CHECK: loop.store [[MAX:%.*]], {{.*}} : f32, !nd.tensor<16 x f32>
// CHECK: loop.nest ([[I:%.*]] = 256, [[J:%.*]] = 16)
// CHECK: [[ROW:%.*]] = loop.load {{%.*}}[[[J]]] : !nd.tensor<16 x f32>
// CHECK: [[X:%.*]] = loop.load %x[[[J]], [[I]]]
// CHECK: arith.subf [[X]], [[ROW]]
func.func @rows(%x: !nd.tensor<16 x 256 x f32>) -> (!nd.tensor<16 x f32>, !nd.tensor<256 x 16 x f32>) {
  %0 = loop.empty : !nd.tensor<16 x 256 x f32>
  %1 = loop.empty : !nd.tensor<16 x f32>
  %t, %s = loop.nest (%i = 16) outs(%a = %0 : !nd.tensor<16 x 256 x f32>, %b = %1 : !nd.tensor<16 x f32>) {
    %m = loop.reduce (%j = 256) max {
      %v = loop.load %x[%i, %j] : !nd.tensor<16 x 256 x f32> -> f32
      loop.yield %v : f32
    } -> f32
    %sum = loop.reduce (%j = 256) sum {
      %v = loop.load %x[%i, %j] : !nd.tensor<16 x 256 x f32> -> f32
      %d = arith.subf %v, %m : f32
      loop.store %d, %a[%i, %j] : f32, !nd.tensor<16 x 256 x f32>
      loop.yield %d : f32
    } -> f32
    loop.store %sum, %b[%i] : f32, !nd.tensor<16 x f32>
  }
  %2 = loop.empty : !nd.tensor<256 x 16 x f32>
  %r = loop.nest (%i = 256, %j = 16) outs(%o = %2 : !nd.tensor<256 x 16 x f32>) {
    %v = loop.load %t[%j, %i] : !nd.tensor<16 x 256 x f32> -> f32
    %e = math.exp %v : f32
    loop.store %e, %o[%i, %j] : f32, !nd.tensor<256 x 16 x f32>
  }
  func.return %s, %r : !nd.tensor<16 x f32>, !nd.tensor<256 x 16 x f32>
}

// -----

// exponentials, two tensors, results of the function and short rows stay as they are

// CHECK-LABEL: @stay
// CHECK-COUNT-4: loop.store {{.*}} : f32, !nd.tensor<16 x
func.func @stay(%x: !nd.tensor<16 x 256 x f32>, %y: !nd.tensor<16 x 256 x f32>) -> (!nd.tensor<16 x 256 x f32>, !nd.tensor<16 x 256 x f32>) {
  %0 = loop.empty : !nd.tensor<16 x 256 x f32>
  %t, %u, %w = loop.nest (%i = 16) outs(%a = %0 : !nd.tensor<16 x 256 x f32>, %b = %0 : !nd.tensor<16 x 256 x f32>, %c = %0 : !nd.tensor<16 x 256 x f32>) {
    loop.for (%j = 256) {
      %v = loop.load %x[%i, %j] : !nd.tensor<16 x 256 x f32> -> f32
      %e = math.exp %v : f32
      loop.store %e, %a[%i, %j] : f32, !nd.tensor<16 x 256 x f32>
      %z = loop.load %y[%i, %j] : !nd.tensor<16 x 256 x f32> -> f32
      %d = arith.subf %v, %z : f32
      loop.store %d, %b[%i, %j] : f32, !nd.tensor<16 x 256 x f32>
      %q = arith.addf %v, %v : f32
      loop.store %q, %c[%i, %j] : f32, !nd.tensor<16 x 256 x f32>
    }
  }
  %r = loop.nest (%i = 16, %j = 256) outs(%o = %0 : !nd.tensor<16 x 256 x f32>) {
    %v = loop.load %t[%i, %j] : !nd.tensor<16 x 256 x f32> -> f32
    %z = loop.load %u[%i, %j] : !nd.tensor<16 x 256 x f32> -> f32
    %d = arith.addf %v, %z : f32
    loop.store %d, %o[%i, %j] : f32, !nd.tensor<16 x 256 x f32>
  }
  func.return %r, %w : !nd.tensor<16 x 256 x f32>, !nd.tensor<16 x 256 x f32>
}

// -----

// a bias is added by everyone who reads the sum; nothing is left of the nest that did

// CHECK-LABEL: @bias
// CHECK-COUNT-1: loop.nest
// CHECK: loop.reduce
// CHECK: [[X:%.*]] = loop.load %x[{{.*}}] : !nd.tensor<8 x 64 x 1024 x bf16> -> f32
// CHECK: [[B:%.*]] = loop.load %b[{{.*}}] : !nd.tensor<64 x f32> -> f32
// CHECK: arith.addf [[X]], [[B]]
// CHECK: loop.nest
// CHECK: loop.load %x[{{.*}}] : !nd.tensor<8 x 64 x 1024 x bf16> -> f32
// CHECK: loop.load %b[{{.*}}] : !nd.tensor<64 x f32> -> f32
// CHECK: arith.addf
// CHECK: math.exp
// CHECK-NOT: loop.nest
func.func @bias(%x: !nd.tensor<8 x 64 x 1024 x bf16>, %b: !nd.tensor<64 x f32>) -> (!nd.tensor<8 x 64 x f32>, !nd.tensor<8 x 64 x 1024 x f32>) {
  %0 = loop.empty : !nd.tensor<8 x 64 x 1024 x f32>
  %t = loop.nest (%i = 8, %j = 64, %k = 1024) outs(%a = %0 : !nd.tensor<8 x 64 x 1024 x f32>) {
    %v = loop.load %x[%i, %j, %k] : !nd.tensor<8 x 64 x 1024 x bf16> -> f32
    %w = loop.load %b[%j] : !nd.tensor<64 x f32> -> f32
    %d = arith.addf %v, %w : f32
    loop.store %d, %a[%i, %j, %k] : f32, !nd.tensor<8 x 64 x 1024 x f32>
  }
  %1 = loop.empty : !nd.tensor<8 x 64 x f32>
  %s = loop.nest (%i = 8, %j = 64) outs(%o = %1 : !nd.tensor<8 x 64 x f32>) {
    %sum = loop.reduce (%k = 1024) sum {
      %v = loop.load %t[%i, %j, %k] : !nd.tensor<8 x 64 x 1024 x f32> -> f32
      loop.yield %v : f32
    } -> f32
    loop.store %sum, %o[%i, %j] : f32, !nd.tensor<8 x 64 x f32>
  }
  %2 = loop.empty : !nd.tensor<8 x 64 x 1024 x f32>
  %r = loop.nest (%i = 8, %j = 64, %k = 1024) outs(%o = %2 : !nd.tensor<8 x 64 x 1024 x f32>) {
    %v = loop.load %t[%i, %j, %k] : !nd.tensor<8 x 64 x 1024 x f32> -> f32
    %e = math.exp %v : f32
    loop.store %e, %o[%i, %j, %k] : f32, !nd.tensor<8 x 64 x 1024 x f32>
  }
  func.return %s, %r : !nd.tensor<8 x 64 x f32>, !nd.tensor<8 x 64 x 1024 x f32>
}

// -----

// of a tensor that a nest stores a part of the rest comes from where it began

// CHECK-LABEL: @part
// CHECK: [[T:%.*]] = loop.nest ({{.*}} = 4)
// CHECK: loop.load [[T]]
func.func @part(%x: !nd.tensor<9 x f32>, %y: !nd.tensor<4 x f32>) -> !nd.tensor<9 x f32> {
  %t = loop.nest (%i = 4) outs(%a = %x : !nd.tensor<9 x f32>) {
    %v = loop.load %y[%i] : !nd.tensor<4 x f32> -> f32
    loop.store %v, %a[%i] : f32, !nd.tensor<9 x f32>
  }
  %0 = loop.empty : !nd.tensor<9 x f32>
  %r = loop.nest (%i = 9) outs(%o = %0 : !nd.tensor<9 x f32>) {
    %v = loop.load %t[%i] : !nd.tensor<9 x f32> -> f32
    %e = math.exp %v : f32
    loop.store %e, %o[%i] : f32, !nd.tensor<9 x f32>
  }
  func.return %r : !nd.tensor<9 x f32>
}

// -----

// what is read at an index that was loaded stays where the index is

// CHECK-LABEL: @gathered
// CHECK: [[T:%.*]] = loop.nest ({{.*}} = 70)
// CHECK: loop.load [[T]]
func.func @gathered(%x: !nd.tensor<5 x 100 x f32>, %at: !nd.tensor<70 x i64>) -> !nd.tensor<70 x 100 x f32> {
  %0 = loop.empty : !nd.tensor<70 x 100 x f32>
  %t = loop.nest (%i = 70) outs(%a = %0 : !nd.tensor<70 x 100 x f32>) {
    %n = loop.load %at[%i] : !nd.tensor<70 x i64> -> i64
    %p = loop.bound %n, 5 "index" : i64
    loop.for (%j = 100) {
      %v = loop.load %x[%p, %j] : !nd.tensor<5 x 100 x f32> -> f32
      loop.store %v, %a[%i, %j] : f32, !nd.tensor<70 x 100 x f32>
    }
  }
  %r = loop.nest (%i = 70, %j = 100) outs(%o = %0 : !nd.tensor<70 x 100 x f32>) {
    %v = loop.load %t[%i, %j] : !nd.tensor<70 x 100 x f32> -> f32
    %e = math.exp %v : f32
    loop.store %e, %o[%i, %j] : f32, !nd.tensor<70 x 100 x f32>
  }
  func.return %r : !nd.tensor<70 x 100 x f32>
}

// -----

// a factor of products stays in memory: each block of products would compute it again

// CHECK-LABEL: @factor
// CHECK: [[T:%.*]] = loop.nest ({{.*}} = 128, {{.*}} = 256)
// CHECK: loop.load [[T]]
func.func @factor(%x: !nd.tensor<128 x 256 x bf16>, %w: !nd.tensor<512 x 256 x bf16>) -> !nd.tensor<128 x 512 x f32> {
  %0 = loop.empty : !nd.tensor<128 x 256 x bf16>
  %t = loop.nest (%i = 128, %j = 256) outs(%a = %0 : !nd.tensor<128 x 256 x bf16>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<128 x 256 x bf16> -> f32
    %d = arith.addf %v, %v : f32
    %h = arith.truncf %d : f32 to bf16
    %e = arith.extf %h : bf16 to f32
    loop.store %e, %a[%i, %j] : f32, !nd.tensor<128 x 256 x bf16>
  }
  %1 = loop.empty : !nd.tensor<128 x 512 x f32>
  %r = loop.nest (%i = 128, %n = 512) outs(%o = %1 : !nd.tensor<128 x 512 x f32>) {
    %p = loop.reduce (%k = 256) sum {
      %v = loop.load %t[%i, %k] : !nd.tensor<128 x 256 x bf16> -> f32
      %u = loop.load %w[%n, %k] : !nd.tensor<512 x 256 x bf16> -> f32
      %term = arith.mulf %v, %u fastmath<contract> : f32
      loop.yield %term : f32
    } -> f32
    loop.store %p, %o[%i, %n] : f32, !nd.tensor<128 x 512 x f32>
  }
  func.return %r : !nd.tensor<128 x 512 x f32>
}
