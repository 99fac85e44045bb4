; Where no OpenMP runtime is found, parallel regions run their whole range on the calling thread.

; Runs the region.
define void @GOMP_parallel(ptr %f, ptr %context, i32 %threads, i32 %flags) {
  call void %f(ptr %context)
  ret void
}

; One thread runs a region.
define i32 @omp_get_max_threads() {
  ret i32 1
}

; One thread runs this one.
define i32 @omp_get_num_threads() {
  ret i32 1
}

; It is the first.
define i32 @omp_get_thread_num() {
  ret i32 0
}
