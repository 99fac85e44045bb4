// x / sqrt(mean(x * x)), over rows of any length.
func.func @norm(%x: !nd.tensor<s0 x s1 x f32>) -> !nd.tensor<s0 x s1 x f32> {
  %square = nd.mul %x, %x : !nd.tensor<s0 x s1 x f32>
  %sum = nd.reduce %square {kind = "sum", dims = [1]} : (!nd.tensor<s0 x s1 x f32>) -> !nd.tensor<s0 x f32>
  %column = nd.reshape %sum : (!nd.tensor<s0 x f32>) -> !nd.tensor<s0 x 1 x f32>
  %size = nd.size {value = s1} : !nd.tensor<i64>
  %n = nd.cast %size : (!nd.tensor<i64>) -> !nd.tensor<f32>
  %mean = nd.div %column, %n : (!nd.tensor<s0 x 1 x f32>, !nd.tensor<f32>) -> !nd.tensor<s0 x 1 x f32>
  %root = nd.sqrt %mean : !nd.tensor<s0 x 1 x f32>
  %y = nd.div %x, %root : (!nd.tensor<s0 x s1 x f32>, !nd.tensor<s0 x 1 x f32>) -> !nd.tensor<s0 x s1 x f32>
  func.return %y : !nd.tensor<s0 x s1 x f32>
}
