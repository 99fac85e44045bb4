// RUN: opt-tool %s -p loop-fuse --split-input-file | filecheck %s

// a GPU's iteration has its row on chip, and computes the exponentials again; a CPU's keeps them in the result

// CHECK-LABEL: @gpu
// CHECK-COUNT-2: math.exp
// CHECK-COUNT-1: loop.store
// CHECK-NOT: loop.store
builtin.module attributes {stepwell.machine = #stepwell.machine<"sm_90", multiprocessors = 132>} {
  func.func @gpu(%x: !nd.tensor<64 x 2048 x f32>) -> !nd.tensor<64 x 2048 x f32> {
    %0 = loop.empty : !nd.tensor<64 x 2048 x f32>
    %e = loop.nest (%i = 64, %j = 2048) outs(%o = %0 : !nd.tensor<64 x 2048 x f32>) {
      %v = loop.load %x[%i, %j] : !nd.tensor<64 x 2048 x f32> -> f32
      %w = math.exp %v : f32
      loop.store %w, %o[%i, %j] : f32, !nd.tensor<64 x 2048 x f32>
    }
    %1 = loop.empty : !nd.tensor<64 x f32>
    %s = loop.nest (%i = 64) outs(%o = %1 : !nd.tensor<64 x f32>) {
      %sum = loop.reduce (%j = 2048) sum {
        %v = loop.load %e[%i, %j] : !nd.tensor<64 x 2048 x f32> -> f32
        loop.yield %v : f32
      } -> f32
      loop.store %sum, %o[%i] : f32, !nd.tensor<64 x f32>
    }
    %2 = loop.empty : !nd.tensor<64 x 2048 x f32>
    %y = loop.nest (%i = 64, %j = 2048) outs(%o = %2 : !nd.tensor<64 x 2048 x f32>) {
      %v = loop.load %e[%i, %j] : !nd.tensor<64 x 2048 x f32> -> f32
      %sum = loop.load %s[%i] : !nd.tensor<64 x f32> -> f32
      %w = arith.divf %v, %sum : f32
      loop.store %w, %o[%i, %j] : f32, !nd.tensor<64 x 2048 x f32>
    }
    func.return %y : !nd.tensor<64 x 2048 x f32>
  }
}

// -----

// CHECK-LABEL: @cpu
// CHECK-COUNT-1: math.exp
// CHECK-NOT: math.exp
// CHECK-COUNT-2: loop.store
builtin.module {
  func.func @cpu(%x: !nd.tensor<64 x 2048 x f32>) -> !nd.tensor<64 x 2048 x f32> {
    %0 = loop.empty : !nd.tensor<64 x 2048 x f32>
    %e = loop.nest (%i = 64, %j = 2048) outs(%o = %0 : !nd.tensor<64 x 2048 x f32>) {
      %v = loop.load %x[%i, %j] : !nd.tensor<64 x 2048 x f32> -> f32
      %w = math.exp %v : f32
      loop.store %w, %o[%i, %j] : f32, !nd.tensor<64 x 2048 x f32>
    }
    %1 = loop.empty : !nd.tensor<64 x f32>
    %s = loop.nest (%i = 64) outs(%o = %1 : !nd.tensor<64 x f32>) {
      %sum = loop.reduce (%j = 2048) sum {
        %v = loop.load %e[%i, %j] : !nd.tensor<64 x 2048 x f32> -> f32
        loop.yield %v : f32
      } -> f32
      loop.store %sum, %o[%i] : f32, !nd.tensor<64 x f32>
    }
    %2 = loop.empty : !nd.tensor<64 x 2048 x f32>
    %y = loop.nest (%i = 64, %j = 2048) outs(%o = %2 : !nd.tensor<64 x 2048 x f32>) {
      %v = loop.load %e[%i, %j] : !nd.tensor<64 x 2048 x f32> -> f32
      %sum = loop.load %s[%i] : !nd.tensor<64 x f32> -> f32
      %w = arith.divf %v, %sum : f32
      loop.store %w, %o[%i, %j] : f32, !nd.tensor<64 x 2048 x f32>
    }
    func.return %y : !nd.tensor<64 x 2048 x f32>
  }
}
