; The parts of a model that differ between processors and GPUs, on a processor: weights are where they lie in the program.

@stepwell_c_package = external hidden constant i8
declare void @free(ptr)
declare ptr @stepwell_c_take(ptr, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1 immarg)

; Memory for updated buffers, with the values that they were exported with: 1, and an error, where there is none.
define i32 @stepwell_c_begin(ptr %model) {
entry:
  %statesp = getelementptr i8, ptr @stepwell_c_package, i64 40
  %bytes = load i64, ptr %statesp
  %stateless = icmp eq i64 %bytes, 0
  br i1 %stateless, label %done, label %keep
keep:
  %state = call ptr @stepwell_c_take(ptr %model, i64 %bytes)
  %statep = getelementptr i8, ptr %model, i64 40
  store ptr %state, ptr %statep
  %none = icmp eq ptr %state, null
  br i1 %none, label %failed, label %restore
failed:
  ret i32 1
restore:
  %r = call i32 @stepwell_c_restore(ptr %model)
  br label %done
done:
  ret i32 0
}

; Frees what a model keeps.
define void @stepwell_c_end(ptr %model) {
  %arenap = getelementptr i8, ptr %model, i64 24
  %arena = load ptr, ptr %arenap
  call void @free(ptr %arena)
  %statep = getelementptr i8, ptr %model, i64 40
  %state = load ptr, ptr %statep
  call void @free(ptr %state)
  ret void
}

; Before a call.
define i32 @stepwell_c_enter(ptr %model) {
  ret i32 0
}

; After a call.
define void @stepwell_c_leave(ptr %model) {
  ret void
}

; Gives updated buffers the values that they were exported with.
define i32 @stepwell_c_restore(ptr %model) {
entry:
  %statesp = getelementptr i8, ptr @stepwell_c_package, i64 40
  %bytes = load i64, ptr %statesp
  %statep = getelementptr i8, ptr %model, i64 40
  %state = load ptr, ptr %statep
  %firstp = getelementptr i8, ptr @stepwell_c_package, i64 48
  %first = load ptr, ptr %firstp
  call void @llvm.memcpy.p0.p0.i64(ptr %state, ptr %first, i64 %bytes, i1 false)
  ret i32 0
}

; Memory of a result that the caller deletes; null, and an error, where there is none.
define ptr @stepwell_c_memory_of(ptr %model, ptr %tensor, i64 %bytes) {
  %new = call ptr @stepwell_c_take(ptr %model, i64 %bytes)
  ret ptr %new
}

; Frees it.
define void @stepwell_c_free(ptr %memory) {
  call void @free(ptr %memory)
  ret void
}
