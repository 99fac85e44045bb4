// RUN: opt-tool %s -p nd-to-loop,loop-fuse --remarks 2>&1 | filecheck %s

// CHECK: remark: [loop-fuse] missed: {{.*}}not fused with s: their loops do not match
func.func @neighbours(%x : !nd.tensor<64 x 32 x f32>) -> !nd.tensor<63 x f32> {
  %s = nd.reduce %x {kind = "sum", dims = [1]} : (!nd.tensor<64 x 32 x f32>) -> !nd.tensor<64 x f32>
  %a = nd.slice %s {starts = [0], steps = [1]} : (!nd.tensor<64 x f32>) -> !nd.tensor<63 x f32>
  %b = nd.slice %s {starts = [1], steps = [1]} : (!nd.tensor<64 x f32>) -> !nd.tensor<63 x f32>
  %y = nd.add %a, %b : !nd.tensor<63 x f32>
  func.return %y : !nd.tensor<63 x f32>
}
