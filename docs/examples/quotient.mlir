// x / y, with one y for each row.
func.func @forward(%x: !nd.tensor<s0 x 64 x f32>, %y: !nd.tensor<s0 x 1 x f32>) -> !nd.tensor<s0 x 64 x f32> {
  %q = nd.div %x, %y : (!nd.tensor<s0 x 64 x f32>, !nd.tensor<s0 x 1 x f32>) -> !nd.tensor<s0 x 64 x f32>
  func.return %q : !nd.tensor<s0 x 64 x f32>
}
