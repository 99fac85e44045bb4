// RUN: opt-tool %s -p "loop-outline{smallest=3}" --remarks 2>&1 | filecheck %s
// RUN: opt-tool %s -p "loop-outline{smallest=3},nd-to-loop,loop-fuse" | filecheck %s --check-prefix=LOOP
// RUN: opt-tool %s -p "loop-outline{smallest=3},nd-to-loop,loop-fuse,loop-inline" | filecheck %s --check-prefix=INLINE
// RUN: opt-tool %s -p "loop-outline{smallest=3}" | opt-tool | filecheck %s --check-prefix=AGAIN
// RUN: opt-tool %s -p "loop-outline{fewest=5 smallest=3}" | filecheck %s --check-prefix=FEW

// The sum is cut off before the product that reads it: nothing could be fused there. The first layer has no sum of another before it, but
// equals the others.

// CHECK:       [loop-outline] applied: {{.*}}4 equal parts of 4 operations are planned once
// CHECK:       func.func @forward(
// CHECK-NEXT:    %a = func.call @layer0(%x, %w0)
// CHECK-NEXT:    %b = func.call @layer0(%a, %w1)
// CHECK-NEXT:    %c = func.call @layer0(%b, %w2)
// CHECK-NEXT:    %d = func.call @layer0(%c, %w3)
// CHECK-NEXT:    func.return %d
// CHECK:       func.func private @layer0(%x: !nd.tensor<8 x 8 x f32>, %w0: !nd.tensor<8 x 8 x f32>) ->
// CHECK-NEXT:    %t = nd.permute %w0

// AGAIN:       func.call @layer0(%a, %w1)

// LOOP:        func.call @layer0(%a, %w1)
// LOOP:        func.func private @layer0
// LOOP:          loop.contract
// LOOP:          loop.nest
// LOOP-NOT:      loop.nest

// INLINE:      func.func @forward
// INLINE-COUNT-4: loop.contract
// INLINE-NOT:  @layer0

// FEW-NOT:     func.call
func.func @forward(
  %x: !nd.tensor<8 x 8 x f32> {nd.layout = #nd.layout<[8, 1], 0>}, %w0: !nd.tensor<8 x 8 x f32>, %w1: !nd.tensor<8 x 8 x f32>,
  %w2: !nd.tensor<8 x 8 x f32>, %w3: !nd.tensor<8 x 8 x f32>
) -> !nd.tensor<8 x 8 x f32> {
  %t = nd.permute %w0 {dims = [1, 0]} : (!nd.tensor<8 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %p = nd.matmul %x, %t : (!nd.tensor<8 x 8 x f32>, !nd.tensor<8 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %q = nd.tanh %p : !nd.tensor<8 x 8 x f32>
  %r = nd.mul %q, %q : !nd.tensor<8 x 8 x f32>
  %a = nd.add %r, %x : !nd.tensor<8 x 8 x f32>
  %t1 = nd.permute %w1 {dims = [1, 0]} : (!nd.tensor<8 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %p1 = nd.matmul %a, %t1 : (!nd.tensor<8 x 8 x f32>, !nd.tensor<8 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %q1 = nd.tanh %p1 : !nd.tensor<8 x 8 x f32>
  %r1 = nd.mul %q1, %q1 : !nd.tensor<8 x 8 x f32>
  %b = nd.add %r1, %a : !nd.tensor<8 x 8 x f32>
  %t2 = nd.permute %w2 {dims = [1, 0]} : (!nd.tensor<8 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %p2 = nd.matmul %b, %t2 : (!nd.tensor<8 x 8 x f32>, !nd.tensor<8 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %q2 = nd.tanh %p2 : !nd.tensor<8 x 8 x f32>
  %r2 = nd.mul %q2, %q2 : !nd.tensor<8 x 8 x f32>
  %c = nd.add %r2, %b : !nd.tensor<8 x 8 x f32>
  %t3 = nd.permute %w3 {dims = [1, 0]} : (!nd.tensor<8 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %p3 = nd.matmul %c, %t3 : (!nd.tensor<8 x 8 x f32>, !nd.tensor<8 x 8 x f32>) -> !nd.tensor<8 x 8 x f32>
  %q3 = nd.tanh %p3 : !nd.tensor<8 x 8 x f32>
  %r3 = nd.mul %q3, %q3 : !nd.tensor<8 x 8 x f32>
  %d = nd.add %r3, %c : !nd.tensor<8 x 8 x f32>
  func.return %d : !nd.tensor<8 x 8 x f32>
}
