// y = x + w.t() and the sum of each row of z, as the importer writes them.
func.func @forward(%x: !nd.tensor<1024 x 1024 x f32>, %w: !nd.tensor<1024 x 1024 x f32>, %z: !nd.tensor<4 x 500000 x f32>) -> (!nd.tensor<1024 x 1024 x f32>, !nd.tensor<4 x f32>) {
  %t = nd.permute %w {dims = [1, 0]} : !nd.tensor<1024 x 1024 x f32>
  %y = nd.add %x, %t : !nd.tensor<1024 x 1024 x f32>
  %total = nd.reduce %z {kind = "sum", dims = [1]} : (!nd.tensor<4 x 500000 x f32>) -> !nd.tensor<4 x f32>
  func.return %y, %total : !nd.tensor<1024 x 1024 x f32>, !nd.tensor<4 x f32>
}
