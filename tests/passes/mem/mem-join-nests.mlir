// RUN: opt-tool %s -p "mem-join-nests" | filecheck %s
// RUN: opt-tool %s -p "mem-join-nests" --remarks 2>&1 | filecheck %s --check-prefix=WHY
// RUN: opt-tool %s --machine cpu,threads=1 -p "mem-join-nests" | filecheck %s --check-prefix=ALONE
// RUN: opt-tool %s -p "mem-join-nests{always=true},mem-to-cpu" | filecheck %s --check-prefix=CPU

// WHY: 2 nests joined: {{.*}} us one after the other, {{.*}} us in one region, 2 threads
// WHY: 2 nests not joined: {{.*}} us one after the other, {{.*}} us in one region

// ALONE-NOT: join =

// The second nest needs the first one; the third one does not, nor do the memory and the view that it names.
// CHECK-LABEL: func.func @moved
// CHECK: %first = mem.alloc
// CHECK-NEXT: %third = mem.alloc
// CHECK-NEXT: %whole = mem.view
// CHECK-NEXT: loop.nest (%{{.*}} = 64, %{{.*}} = 512)
// CHECK: join = 0 : i64
// CHECK: loop.nest (%{{.*}} = 512, %{{.*}} = 64)
// CHECK: join = 0 : i64
// CHECK: loop.nest (%{{.*}} = 32768)
// CHECK-NOT: join

// CPU-LABEL: func.func @moved
// CPU: host.launch @[[TWO:k[0-9]+]](%first : !mem.buffer<64 x 512 x f32>, %x : !mem.buffer<64 x 512 x f32>, %whole
// CPU: host.launch @[[ONE:k[0-9]+]](
// CPU: cpu.kernel private @[[A:k[0-9]+]](
// CPU: cpu.kernel private @[[B:k[0-9]+]](
// CPU: cpu.kernel @[[TWO]](
// CPU: cpu.parallel
// CPU: cpu.call @[[A]](
// CPU: cpu.call @[[B]](
func.func @moved(%x : !mem.buffer<64 x 512 x f32>) {
  %first = mem.alloc {kind = "arena", at = 0} : !mem.buffer<64 x 512 x f32>
  loop.nest (%i = 64, %j = 512) outs(%o = %first : !mem.buffer<64 x 512 x f32>) {
    %v = loop.load %x[%i, %j] : !mem.buffer<64 x 512 x f32> -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i, %j] : f32, !mem.buffer<64 x 512 x f32>
  }
  %second = mem.alloc {kind = "arena", at = 131072} : !mem.buffer<64 x 512 x f32>
  %f = mem.view %first : (!mem.buffer<64 x 512 x f32>) -> !mem.buffer<32768 x f32>
  %s = mem.view %second : (!mem.buffer<64 x 512 x f32>) -> !mem.buffer<32768 x f32>
  loop.nest (%i = 32768) outs(%o = %s : !mem.buffer<32768 x f32>) {
    %v = loop.load %f[%i] : !mem.buffer<32768 x f32> -> f32
    loop.store %v, %o[%i] : f32, !mem.buffer<32768 x f32>
  }
  %third = mem.alloc {kind = "arena", at = 262144} : !mem.buffer<512 x 64 x f32>
  %whole = mem.view %third : (!mem.buffer<512 x 64 x f32>) -> !mem.buffer<512 x 64 x f32>
  loop.nest (%j = 512, %i = 64) outs(%o = %whole : !mem.buffer<512 x 64 x f32>) {
    %v = loop.load %x[%i, %j] : !mem.buffer<64 x 512 x f32> -> f32
    %w = math.sin %v : f32
    loop.store %w, %o[%j, %i] : f32, !mem.buffer<512 x 64 x f32>
  }
  func.return
}

// What is overwritten, and two buffers in one place. An output is not allocated before another step.
// CHECK-LABEL: func.func @apart
// CHECK-NOT: join
func.func @apart(%x : !mem.buffer<65536 x f32>, %y : !mem.buffer<65536 x f32>) -> !mem.buffer<65536 x f32> {
  %a = mem.alloc {kind = "arena", at = 0} : !mem.buffer<65536 x f32>
  loop.nest (%i = 65536) outs(%o = %a : !mem.buffer<65536 x f32>) {
    %v = loop.load %x[%i] : !mem.buffer<65536 x f32> -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i] : f32, !mem.buffer<65536 x f32>
  }
  loop.nest (%i = 65536) outs(%o = %x : !mem.buffer<65536 x f32>) {
    %v = loop.load %y[%i] : !mem.buffer<65536 x f32> -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i] : f32, !mem.buffer<65536 x f32>
  }
  %b = mem.alloc {kind = "arena", at = 0} : !mem.buffer<65536 x f32>
  loop.nest (%i = 65536) outs(%o = %b : !mem.buffer<65536 x f32>) {
    %v = loop.load %x[%i] : !mem.buffer<65536 x f32> -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i] : f32, !mem.buffer<65536 x f32>
  }
  loop.nest (%i = 16) outs(%o = %x : !mem.buffer<65536 x f32>) {
    %v = loop.load %b[%i] : !mem.buffer<65536 x f32> -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i] : f32, !mem.buffer<65536 x f32>
  }
  %c = mem.alloc {kind = "output"} : !mem.buffer<65536 x f32>
  loop.nest (%i = 65536) outs(%o = %c : !mem.buffer<65536 x f32>) {
    %v = loop.load %y[%i] : !mem.buffer<65536 x f32> -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i] : f32, !mem.buffer<65536 x f32>
  }
  func.return %c : !mem.buffer<65536 x f32>
}

// Too little for two threads.
// CHECK-LABEL: func.func @small
// CHECK-NOT: join
func.func @small(%x : !mem.buffer<4096 x f32>, %y : !mem.buffer<4096 x f32>) {
  loop.nest (%i = 4096) outs(%o = %x : !mem.buffer<4096 x f32>) {
    %v = loop.load %o[%i] : !mem.buffer<4096 x f32> -> f32
    %a = arith.addf %v, %v : f32
    %b = arith.addf %a, %a : f32
    loop.store %b, %o[%i] : f32, !mem.buffer<4096 x f32>
  }
  loop.nest (%i = 64, %j = 64) outs(%o = %y : !mem.buffer<4096 x f32>) {
    %v = loop.load %o[%i * 64 + %j] : !mem.buffer<4096 x f32> -> f32
    %a = arith.mulf %v, %v : f32
    %b = arith.addf %a, %a : f32
    loop.store %b, %o[%i * 64 + %j] : f32, !mem.buffer<4096 x f32>
  }
  func.return
}

// An output is not written before what lives in its memory is read.
// CHECK-LABEL: func.func @inside_of_an_output
// CHECK-NOT: join
func.func @inside_of_an_output(%x : !mem.buffer<32768 x f32>) -> (!mem.buffer<32768 x f32>, !mem.buffer<32768 x f32>) {
  %y = mem.alloc {kind = "output"} : !mem.buffer<32768 x f32>
  %a = mem.alloc %y {kind = "arena", at = 0} : (!mem.buffer<32768 x f32>) -> !mem.buffer<32768 x f32>
  loop.nest (%i = 32768) outs(%o = %a : !mem.buffer<32768 x f32>) {
    %v = loop.load %x[%i] : !mem.buffer<32768 x f32> -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i] : f32, !mem.buffer<32768 x f32>
  }
  %z = mem.alloc {kind = "output"} : !mem.buffer<32768 x f32>
  loop.nest (%i = 32768) outs(%o = %z : !mem.buffer<32768 x f32>) {
    %v = loop.load %a[32767 - %i] : !mem.buffer<32768 x f32> -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i] : f32, !mem.buffer<32768 x f32>
  }
  loop.nest (%i = 32768) outs(%o = %y : !mem.buffer<32768 x f32>) {
    %v = loop.load %x[%i] : !mem.buffer<32768 x f32> -> f32
    %w = math.sin %v : f32
    loop.store %w, %o[%i] : f32, !mem.buffer<32768 x f32>
  }
  func.return %y, %z : !mem.buffer<32768 x f32>, !mem.buffer<32768 x f32>
}

// Nothing goes past a call that finds out a size.
// CHECK-LABEL: func.func @size
// CHECK-NOT: join
func.func @size(%x : !mem.buffer<32768 x f32>, %y : !mem.buffer<32768 x f32>, %z : !mem.buffer<32768 x f32>) {
  loop.nest (%i = 32768) outs(%o = %y : !mem.buffer<32768 x f32>) {
    %v = loop.load %x[%i] : !mem.buffer<32768 x f32> -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i] : f32, !mem.buffer<32768 x f32>
  }
  %n = mem.extern %x {call = #nd.call<"aten.nonzero.default", [arg(0)]>} : (!mem.buffer<32768 x f32>) -> !mem.buffer<u0 x 1 x i64, [1, u0]>
  loop.nest (%i = 32768) outs(%o = %z : !mem.buffer<32768 x f32>) {
    %v = loop.load %x[%i] : !mem.buffer<32768 x f32> -> f32
    %k = loop.index u0 : i64
    %f = arith.sitofp %k : i64 to f32
    %w = arith.mulf %v, %f : f32
    %e = math.exp %w : f32
    loop.store %e, %o[%i] : f32, !mem.buffer<32768 x f32>
  }
  func.return
}
