// The logarithm of the gamma function of erf: summed down the columns, and the largest of each row.
func.func @forward(%x: !nd.tensor<4096 x 512 x f32> {nd.layout = #nd.layout<[512, 1], 0>}) -> (!nd.tensor<512 x f32> {nd.layout = #nd.layout<[1], 0>}, !nd.tensor<4096 x f32> {nd.layout = #nd.layout<[1], 0>}) {
  %e = nd.erf %x : !nd.tensor<4096 x 512 x f32>
  %l = nd.lgamma %e : !nd.tensor<4096 x 512 x f32>
  %a = nd.reduce %l {kind = "sum", dims = [0]} : (!nd.tensor<4096 x 512 x f32>) -> !nd.tensor<512 x f32>
  %b = nd.reduce %l {kind = "max", dims = [1]} : (!nd.tensor<4096 x 512 x f32>) -> !nd.tensor<4096 x f32>
  func.return %a, %b : !nd.tensor<512 x f32>, !nd.tensor<4096 x f32>
}
