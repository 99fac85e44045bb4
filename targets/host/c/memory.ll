; Memory of a model: blocks that live until the end of a call, and the arena, which stays and grows.
;
; A model is { ptr package, i32 level, i32, ptr blocks, ptr arena, i64 arena_bytes, ptr state, [$ERROR_BYTES x i8] error }. One thread
; at a time uses it.

declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
declare i32 @snprintf(ptr, i64, ptr, ...)

@no_memory_text = internal constant [27 x i8] c"cannot allocate %lld bytes\00"

; Where the text of the last error of a model is.
define ptr @stepwell_c_text(ptr %model) {
  %text = getelementptr i8, ptr %model, i64 $ERROR_AT
  ret ptr %text
}

; Memory of at least so many bytes, at a multiple of 64; null, and an error, where there is none.
define ptr @stepwell_c_take(ptr %model, i64 %bytes) {
entry:
  %more = add i64 %bytes, 127
  %whole = and i64 %more, -64
  %new = call ptr @aligned_alloc(i64 64, i64 %whole)
  %none = icmp eq ptr %new, null
  br i1 %none, label %failed, label %done
failed:
  %text = call ptr @stepwell_c_text(ptr %model)
  %n = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr @no_memory_text, i64 %bytes)
  ret ptr null
done:
  ret ptr %new
}

; Memory that lives until the end of the call; null, and an error, where there is none.
define ptr @stepwell_c_block(ptr %model, i64 %bytes) {
entry:
  %room = add i64 %bytes, 64
  %new = call ptr @stepwell_c_take(ptr %model, i64 %room)
  %none = icmp eq ptr %new, null
  br i1 %none, label %failed, label %done
failed:
  ret ptr null
done:
  %list = getelementptr i8, ptr %model, i64 16
  %next = load ptr, ptr %list
  store ptr %next, ptr %new
  store ptr %new, ptr %list
  %block = getelementptr i8, ptr %new, i64 64
  ret ptr %block
}

; Frees the blocks of a call.
define void @stepwell_c_drop(ptr %model) {
entry:
  %list = getelementptr i8, ptr %model, i64 16
  br label %head
head:
  %block = load ptr, ptr %list
  %done = icmp eq ptr %block, null
  br i1 %done, label %end, label %one
one:
  %next = load ptr, ptr %block
  store ptr %next, ptr %list
  call void @free(ptr %block)
  br label %head
end:
  ret void
}

; The arena, of at least so many bytes; null, and an error, where there is no memory.
define ptr @stepwell_c_arena(ptr %model, i64 %bytes) {
entry:
  %place = getelementptr i8, ptr %model, i64 24
  %sizep = getelementptr i8, ptr %model, i64 32
  %old = load ptr, ptr %place
  %size = load i64, ptr %sizep
  %fits = icmp sge i64 %size, %bytes
  br i1 %fits, label %kept, label %grow
kept:
  ret ptr %old
grow:
  call void @free(ptr %old)
  store i64 0, ptr %sizep
  %new = call ptr @stepwell_c_take(ptr %model, i64 %bytes)
  store ptr %new, ptr %place
  %none = icmp eq ptr %new, null
  br i1 %none, label %end, label %keep
keep:
  store i64 %bytes, ptr %sizep
  br label %end
end:
  ret ptr %new
}
