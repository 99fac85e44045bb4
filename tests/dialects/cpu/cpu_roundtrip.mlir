// RUN: opt-tool %s | filecheck %s

// CHECK-LABEL: cpu.kernel @memory(
cpu.kernel @memory(%p : !cpu.ptr, %q : !cpu.ptr, %n : i64, %s : f32) attributes {reads = [0 : i64], note = "user.py:3"} {
  %zero = arith.constant 0 : i64
  %m = cpu.lanes %n : i64 to vector<16xi1>
  // CHECK: cpu.load %{{.*}}[%{{.*}}] : vector<16xf32>
  %a = cpu.load %p[%zero] : vector<16xf32>
  // CHECK: cpu.load %{{.*}}[%{{.*}}], mask %{{.*}} : vector<16xf32>
  %b = cpu.load %p[%zero], mask %m : vector<16xf32>
  // CHECK: cpu.load %{{.*}}[%{{.*}}], mask %{{.*}} else %{{.*}} {alignment = 64 : i64, nontemporal} : vector<16xf32>
  %c = cpu.load %p[%zero], mask %m else %a {alignment = 64 : i64, nontemporal} : vector<16xf32>
  // CHECK: cpu.load %{{.*}}[%{{.*}}] : bf16
  %d = cpu.load %p[%zero] : bf16
  %i = cpu.iota : vector<16xi64>
  // CHECK: cpu.iota %{{.*}} : vector<16xi64>
  %i2 = cpu.iota %n : vector<16xi64>
  %i3 = cpu.cast trunci %i2 : vector<16xi64> to vector<16xi32>
  // CHECK: cpu.gather %{{.*}}[%{{.*}}] : vector<16xf32>
  %g = cpu.gather %p[%i] : vector<16xf32>
  // CHECK: cpu.gather %{{.*}}[%{{.*}} : vector<16xi32>], mask %{{.*}} else %{{.*}} : vector<16xf32>
  %h = cpu.gather %p[%i3 : vector<16xi32>], mask %m else %g : vector<16xf32>
  // CHECK: cpu.store %{{.*}}, %{{.*}}[%{{.*}}], mask %{{.*}} {nontemporal} : vector<16xf32>
  cpu.store %b, %q[%zero], mask %m {nontemporal} : vector<16xf32>
  // CHECK: cpu.scatter %{{.*}}, %{{.*}}[%{{.*}}], mask %{{.*}} : vector<16xf32>
  cpu.scatter %c, %q[%i], mask %m : vector<16xf32>
  // CHECK: cpu.atomic_add %{{.*}}, %{{.*}}[%{{.*}}] : f32
  cpu.atomic_add %s, %q[%n] : f32
  // CHECK: cpu.local {bytes = 4096 : i64, align = 64 : i64}
  %t = cpu.local {bytes = 4096 : i64, align = 64 : i64}
  // CHECK: cpu.ptr_add %{{.*}}[%{{.*}}] : f32
  %u = cpu.ptr_add %t[%n] : f32
  // CHECK: cpu.copy %{{.*}}, %{{.*}}, %{{.*}} : i64
  cpu.copy %u, %q, %n : i64
  // CHECK: cpu.prefetch %{{.*}}[%{{.*}}] {locality = 3 : i64} : f32
  cpu.prefetch %u[%n] {locality = 3 : i64} : f32
  cpu.return
}

// CHECK-LABEL: cpu.kernel private @vectors(
cpu.kernel private @vectors(%p : !cpu.ptr, %s : f32) {
  // CHECK: cpu.splat %{{.*}} : vector<4xf32>
  %a = cpu.splat %s : vector<4xf32>
  // CHECK: cpu.reduce add %{{.*}} : vector<4xf32>
  %r = cpu.reduce add %a : vector<4xf32>
  // CHECK: cpu.shuffle %{{.*}}, %{{.*}} [0, 4, 1, -1] : vector<4xf32>
  %b = cpu.shuffle %a, %a [0, 4, 1, -1] : vector<4xf32>
  // CHECK: cpu.shuffle %{{.*}} [3, 2] : vector<4xf32>
  %c = cpu.shuffle %a [3, 2] : vector<4xf32>
  // CHECK: cpu.extract %{{.*}}[1] : vector<2xf32>
  %d = cpu.extract %c[1] : vector<2xf32>
  // CHECK: cpu.insert %{{.*}}, %{{.*}}[0] : vector<2xf32>
  %e = cpu.insert %d, %c[0] : vector<2xf32>
  // CHECK: cpu.concat %{{.*}}, %{{.*}} : vector<2xf32>
  %f = cpu.concat %c, %e : vector<2xf32>
  // CHECK: cpu.slice %{{.*}} {start = 2 : i64} : vector<4xf32> to vector<2xf32>
  %g = cpu.slice %f {start = 2 : i64} : vector<4xf32> to vector<2xf32>
  // CHECK: %{{.*}}, %{{.*}} = cpu.transpose %{{.*}}, %{{.*}} : vector<2xf32>
  %h, %i = cpu.transpose %g, %c : vector<2xf32>
  // CHECK: cpu.cmpf olt %{{.*}}, %{{.*}} : vector<2xf32>
  %m = cpu.cmpf olt %h, %i : vector<2xf32>
  // CHECK: cpu.select %{{.*}}, %{{.*}}, %{{.*}} : vector<2xf32>
  %j = cpu.select %m, %h, %i : vector<2xf32>
  %k = cpu.cmpf uno %s, %s : f32
  // CHECK: cpu.select %{{.*}} : i1, %{{.*}}, %{{.*}} : vector<2xf32>
  %l = cpu.select %k : i1, %j, %i : vector<2xf32>
  // CHECK: cpu.cast fptosi %{{.*}} : vector<2xf32> to vector<2xi32>
  %n = cpu.cast fptosi %l : vector<2xf32> to vector<2xi32>
  // CHECK: cpu.cmpi slt %{{.*}}, %{{.*}} : vector<2xi32>
  %o = cpu.cmpi slt %n, %n : vector<2xi32>
  // CHECK: cpu.math hypot %{{.*}}, %{{.*}} : vector<2xf32>
  %q = cpu.math hypot %l, %i : vector<2xf32>
  // CHECK: cpu.assert %{{.*}}, "index out of range" : vector<2xi1>
  cpu.assert %o, "index out of range" : vector<2xi1>
  // CHECK: cpu.assert %{{.*}}, "index {0}"(%{{.*}}) : vector<2xi1>, vector<2xi64>
  %wide = cpu.cast extsi %n : vector<2xi32> to vector<2xi64>
  cpu.assert %o, "index {0}"(%wide) : vector<2xi1>, vector<2xi64>
  cpu.return
}

// CHECK-LABEL: cpu.kernel @threads(
cpu.kernel @threads(%p : !cpu.ptr, %n : i64, %k : index) {
  %grain = arith.constant 1024 : i64
  // CHECK: cpu.num_threads : i64
  %t = cpu.num_threads : i64
  // CHECK: cpu.parallel (%{{.*}}, %{{.*}}) = %{{.*}}, %{{.*}} : i64 {
  cpu.parallel (%b, %e) = %n, %grain : i64 {
    // CHECK-NEXT: cpu.call @vectors(%{{.*}}) : (!cpu.ptr) -> ()
    cpu.call @vectors(%p) : (!cpu.ptr) -> ()
    // CHECK-NEXT: }
  }
  // CHECK: cpu.parallel (%{{.*}}, %{{.*}}, %{{.*}}) = %{{.*}}, %{{.*}} : index {
  cpu.parallel (%b2, %e2, %c2) = %k, %k : index {
    // CHECK: cpu.load %{{.*}}[%{{.*}} : index] : f32
    %x = cpu.load %p[%b2 : index] : f32
  }
  %v = cpu.iota %n : vector<8xi64>
  // CHECK: %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} = cpu.philox %{{.*}}, %{{.*}}, %{{.*}} : vector<8xi64>
  %w0, %w1, %w2, %w3 = cpu.philox %n, %v, %v : vector<8xi64>
  cpu.return
}
// CHECK: cpu.gemm @gemm_f32_nn_panels64 {dtype = "f32", out = "f32", panels = 64 : i64}
cpu.gemm @gemm_f32_nn_panels64 {dtype = "f32", out = "f32", panels = 64 : i64}
