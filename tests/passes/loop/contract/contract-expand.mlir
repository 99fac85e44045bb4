// RUN: opt-tool %s -p contract-expand | filecheck %s
// RUN: opt-tool %s -p contract-expand,loop-fuse,stepwell-cpu{from=mem}

// CHECK-LABEL: func.func @forward
// CHECK: loop.nest (%{{.*}} = 6, %{{.*}} = 5)
// CHECK: arith.mulf
// CHECK: %[[P:.*]] = loop.contract (%{{.*}} = 6, %{{.*}} = 4) reduce (5)
// CHECK-NEXT: loop.store
// CHECK: loop.nest (%{{.*}} = 6, %{{.*}} = 4)
// CHECK: loop.load %[[P]]
// CHECK: arith.addf
func.func @forward(%a : !nd.tensor<6 x 5 x f32>, %b : !nd.tensor<5 x 4 x f32>, %bias : !nd.tensor<4 x f32>) -> !nd.tensor<6 x 4 x f32> {
  %e = loop.empty : !nd.tensor<6 x 4 x f32>
  %y = loop.contract (%m = 6, %n = 4) reduce (5) %a at #nd.map<(d0, d1, d2) -> (d0, d2)> : !nd.tensor<6 x 5 x f32> * %b at #nd.map<(d0, d1, d2) -> (d2, d1)> : !nd.tensor<5 x 4 x f32> into %acc : f32 outs(%o = %e : !nd.tensor<6 x 4 x f32>) {
    %v = loop.load %bias[%n] : !nd.tensor<4 x f32> -> f32
    %s = arith.addf %acc, %v : f32
    loop.store %s, %o[%m, %n] : f32, !nd.tensor<6 x 4 x f32>
  } lhs {
  ^bb0(%i : index, %j : index, %k : index, %x : f32):
    %q = arith.mulf %x, %x : f32
    loop.yield %q : f32
  }
  func.return %y : !nd.tensor<6 x 4 x f32>
}
