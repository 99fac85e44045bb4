// A model as torch.compile hands it to the compiler, at the tensor level: the exact GELU.
func.func @forward(%x: !nd.tensor<s0 x 64 x f32>) -> !nd.tensor<s0 x 64 x f32> {
  %half = nd.full {value = 0.5 : f32} : !nd.tensor<f32>
  %one = nd.full {value = 1.0 : f32} : !nd.tensor<f32>
  %scale = nd.full {value = 0.70710678 : f32} : !nd.tensor<f32>
  %z = nd.mul %x, %scale : (!nd.tensor<s0 x 64 x f32>, !nd.tensor<f32>) -> !nd.tensor<s0 x 64 x f32>
  %e = nd.erf %z : !nd.tensor<s0 x 64 x f32>
  %f = nd.add %e, %one : (!nd.tensor<s0 x 64 x f32>, !nd.tensor<f32>) -> !nd.tensor<s0 x 64 x f32>
  %h = nd.mul %x, %half : (!nd.tensor<s0 x 64 x f32>, !nd.tensor<f32>) -> !nd.tensor<s0 x 64 x f32>
  %y = nd.mul %h, %f : !nd.tensor<s0 x 64 x f32>
  func.return %y : !nd.tensor<s0 x 64 x f32>
}
