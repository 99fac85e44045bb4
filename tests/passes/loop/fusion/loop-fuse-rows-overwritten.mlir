// RUN: opt-tool %s -p loop-fuse-rows | filecheck %s

// What a later store of the row overwrites is not passed on as a value (TWELVE-12): the sum reads the row after both stores.
// CHECK-LABEL: func.func @f
// CHECK: loop.store
// CHECK: loop.store
// CHECK: loop.load %{{.*}}[%{{.*}}, %{{.*}}] : !nd.tensor<4 x 16 x f64> -> f64
func.func @f(%x: !nd.tensor<4 x 16 x f64>) -> (!nd.tensor<4 x 16 x f64>, !nd.tensor<f64>) {
  %e = loop.empty : !nd.tensor<4 x 16 x f64>
  %y = loop.nest (%i = 4) outs(%o = %e : !nd.tensor<4 x 16 x f64>) {
    loop.for (%j = 16) {
      %v = loop.load %x[%i, %j] : !nd.tensor<4 x 16 x f64> -> f64
      %n = arith.negf %v : f64
      loop.store %n, %o[%i, %j] : f64, !nd.tensor<4 x 16 x f64>
    }
    %z = arith.constant 0.000000e+00 : f64
    loop.store %z, %o[%i, 1] : f64, !nd.tensor<4 x 16 x f64>
  }
  %es = loop.empty : !nd.tensor<f64>
  %s = loop.nest () outs(%o = %es : !nd.tensor<f64>) {
    %r = loop.reduce (%i = 4, %j = 16) sum {
      %v = loop.load %y[%i, %j] : !nd.tensor<4 x 16 x f64> -> f64
      loop.yield %v : f64
    } -> f64
    loop.store %r, %o[] : f64, !nd.tensor<f64>
  }
  func.return %y, %s : !nd.tensor<4 x 16 x f64>, !nd.tensor<f64>
}
