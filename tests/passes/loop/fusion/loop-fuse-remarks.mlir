// RUN: opt-tool %s -p nd-to-loop,loop-fuse --remarks 2>&1 | filecheck %s

// CHECK: remark: [loop-fuse] missed: {{.*}}not fused with s: their loops do not match
func.func @neighbours(%x : !nd.tensor<64 x 32 x f32>) -> !nd.tensor<63 x f32> {
  %s = nd.reduce %x {kind = "sum", dims = [1]} : (!nd.tensor<64 x 32 x f32>) -> !nd.tensor<64 x f32>
  %a = nd.slice %s {starts = [0], steps = [1]} : (!nd.tensor<64 x f32>) -> !nd.tensor<63 x f32>
  %b = nd.slice %s {starts = [1], steps = [1]} : (!nd.tensor<64 x f32>) -> !nd.tensor<63 x f32>
  %y = nd.add %a, %b : !nd.tensor<63 x f32>
  func.return %y : !nd.tensor<63 x f32>
}

// Lanes along the shared loops would leave 2 of 64 columns to the loop inside.
// CHECK: remark: [loop-fuse] missed: {{.*}}2 iterations of the last loop would be left inside, less than a vector
func.func @interleaved(%a : !nd.tensor<64 x 32 x f32>, %x : !nd.tensor<8 x 64 x 64 x f32>) -> !nd.tensor<8 x 64 x 64 x f32> {
  %sin = nd.sin %a : !nd.tensor<64 x 32 x f32>
  %cos = nd.cos %a : !nd.tensor<64 x 32 x f32>
  %s = nd.reshape %sin : (!nd.tensor<64 x 32 x f32>) -> !nd.tensor<64 x 32 x 1 x f32>
  %c = nd.reshape %cos : (!nd.tensor<64 x 32 x f32>) -> !nd.tensor<64 x 32 x 1 x f32>
  %both = nd.cat %s, %c {dim = [2]} : (!nd.tensor<64 x 32 x 1 x f32>, !nd.tensor<64 x 32 x 1 x f32>) -> !nd.tensor<64 x 32 x 2 x f32>
  %row = nd.reshape %both : (!nd.tensor<64 x 32 x 2 x f32>) -> !nd.tensor<1 x 64 x 64 x f32>
  %y = nd.add %x, %row : (!nd.tensor<8 x 64 x 64 x f32>, !nd.tensor<1 x 64 x 64 x f32>) -> !nd.tensor<8 x 64 x 64 x f32>
  func.return %y : !nd.tensor<8 x 64 x 64 x f32>
}
