// RUN: not opt-tool %s -p 'stepwell-cpu{from=cpu}' 2>&1 | filecheck %s

// A contraction that was edited by hand, and is no matrix product any more, is named with its line.

// CHECK: contract-refused.mlir:10:3: error: pass 'mem-to-cpu' failed: 'loop.contract' op: only matrix products reach this pass

func.func @f(%x: !mem.buffer<8 x 16 x f32>, %w: !mem.buffer<4 x 16 x f32>) -> !mem.buffer<8 x 4 x f32> {
  %e = mem.alloc {kind = "output"} : !mem.buffer<8 x 4 x f32>
  %z = arith.constant 1.0 : f32
  loop.contract (%i = 8, %j = 4) reduce (16) %x at #nd.map<(d0, d1, d2) -> (d0, d2)> : !mem.buffer<8 x 16 x f32> *
    %w at #nd.map<(d0, d1, d2) -> (d1, d0)> : !mem.buffer<4 x 16 x f32> into %a : f32 outs(%o = %e : !mem.buffer<8 x 4 x f32>) {
    loop.store %a, %o[%i, %j] : f32, !mem.buffer<8 x 4 x f32>
  }
  func.return %e : !mem.buffer<8 x 4 x f32>
}
