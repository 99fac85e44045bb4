// gelu(x @ w + b), as the importer writes it: the program of the tutorial.
func.func @layer(%x: !nd.tensor<64 x 256 x f32>, %w: !nd.tensor<256 x 512 x f32>, %b: !nd.tensor<512 x f32>)
    -> !nd.tensor<64 x 512 x f32> {
  %mm = nd.matmul %x, %w : (!nd.tensor<64 x 256 x f32>, !nd.tensor<256 x 512 x f32>) -> !nd.tensor<64 x 512 x f32>
  %s = nd.add %mm, %b : (!nd.tensor<64 x 512 x f32>, !nd.tensor<512 x f32>) -> !nd.tensor<64 x 512 x f32>
  %half = nd.full {value = 0.5 : f32} : !nd.tensor<f32>
  %h = nd.mul %s, %half : (!nd.tensor<64 x 512 x f32>, !nd.tensor<f32>) -> !nd.tensor<64 x 512 x f32>
  %root = nd.full {value = 0.70710678 : f32} : !nd.tensor<f32>
  %z = nd.mul %s, %root : (!nd.tensor<64 x 512 x f32>, !nd.tensor<f32>) -> !nd.tensor<64 x 512 x f32>
  %e = nd.erf %z : !nd.tensor<64 x 512 x f32>
  %one = nd.full {value = 1.0 : f32} : !nd.tensor<f32>
  %f = nd.add %e, %one : (!nd.tensor<64 x 512 x f32>, !nd.tensor<f32>) -> !nd.tensor<64 x 512 x f32>
  %y = nd.mul %h, %f : !nd.tensor<64 x 512 x f32>
  func.return %y : !nd.tensor<64 x 512 x f32>
}
