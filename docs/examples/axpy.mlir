// x * w + z.
func.func @axpy(%x: !nd.tensor<8 x 64 x f32>, %w: !nd.tensor<64 x f32>, %z: !nd.tensor<8 x 64 x f32>) -> !nd.tensor<8 x 64 x f32> {
  %p = nd.mul %x, %w : (!nd.tensor<8 x 64 x f32>, !nd.tensor<64 x f32>) -> !nd.tensor<8 x 64 x f32>
  %y = nd.add %p, %z : !nd.tensor<8 x 64 x f32>
  func.return %y : !nd.tensor<8 x 64 x f32>
}
