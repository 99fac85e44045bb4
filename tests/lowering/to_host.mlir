// RUN: opt-tool %s -p to-host | filecheck %s

// A view is an offset of the launch, a library call writes into the arena, symbols come from the arguments.
// CHECK:      host.program @forward(%x: !host.tensor<f32>, %w: !host.tensor<f32>) arena s0 * 32
// CHECK-NEXT:   host.bind s0 = size %x 0 : !host.tensor<f32>
// CHECK-NEXT:   host.check %x [s0, 8] strides [8, 1] "argument 0 (x)" : !host.tensor<f32>
// CHECK-NEXT:   host.check %w [2, 8, 8] strides [64, 8, 1] "argument 1 (w)" : !host.tensor<f32>
// CHECK-NEXT:   %[[P:.*]] = host.arena_ptr 0
// CHECK-NEXT:   %[[V:.*]] = host.view %w [8, 8] strides [8, 1] offset 64 : !host.tensor<f32> -> !host.tensor<f32>
// CHECK-NEXT:   %[[T:.*]] = host.from_arena %[[P]] [s0, 8] strides [8, 1] : !host.ptr -> !host.tensor<f32>
// CHECK-NEXT:   host.extern #nd.call<"aten.mm.out", [arg(0), arg(1)], {out = arg(2)}>(%x, %[[V]], %[[T]])
// CHECK-NEXT:   host.release(%x : !host.tensor<f32>, %[[V]] : !host.tensor<f32>, %[[T]] : !host.tensor<f32>)
// CHECK-NEXT:   %[[Y:.*]] = host.empty_output [s0, 8] strides [8, 1] : !host.tensor<f32>
// CHECK-NEXT:   host.launch @k0(%[[P]] : !host.ptr, %w : !host.tensor<f32>, %[[Y]] : !host.tensor<f32>) [s0]
// CHECK-SAME:     offsets [0, 256, 0]
// CHECK-NEXT:   host.release(%w : !host.tensor<f32>)
// CHECK-NEXT:   host.return(%[[Y]] : !host.tensor<f32>) [arg(0)]
builtin.module {
  cpu.kernel @k0(%a : !cpu.ptr, %w : !cpu.ptr, %y : !cpu.ptr, %n : i64) {
    cpu.return
  }
  func.func @forward(%x: !mem.buffer<s0 x 8 x f32> {nd.name = "x"}, %w: !mem.buffer<2 x 8 x 8 x f32> {nd.name = "w"})
      -> !mem.buffer<s0 x 8 x f32> {
    %m = mem.alloc {kind = "arena"} : !mem.buffer<s0 x 8 x f32>
    %v = mem.view %w : (!mem.buffer<2 x 8 x 8 x f32>) -> !mem.buffer<8 x 8 x f32, [8, 1], 64>
    mem.extern %x, %v, %m {call = #nd.call<"aten.mm.default", [arg(0), arg(1)]>, out = [2]}
      : (!mem.buffer<s0 x 8 x f32>, !mem.buffer<8 x 8 x f32, [8, 1], 64>, !mem.buffer<s0 x 8 x f32>) -> ()
    %y = mem.alloc {kind = "output"} : !mem.buffer<s0 x 8 x f32>
    host.launch @k0(%m : !mem.buffer<s0 x 8 x f32>, %v : !mem.buffer<8 x 8 x f32, [8, 1], 64>,
      %y : !mem.buffer<s0 x 8 x f32>) [s0]
    func.return %y : !mem.buffer<s0 x 8 x f32>
  }
}
