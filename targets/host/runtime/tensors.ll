; New tensors: of the pool when they are large, and over memory that somebody else owns.

declare i32 @aoti_torch_empty_strided(i64, ptr, ptr, i32, i32, i32, ptr)
declare i32 @torch_from_blob(ptr, i64, ptr, ptr, i64, i32, i32, i32, ptr, i32, ptr, i64, ptr, ptr)
declare ptr @stepwell_pool_alloc(i64)
declare void @pool_deleter(ptr, ptr)
declare void @stepwell_pool_free(ptr)

; Where a StorageImpl says that it can be resized (storages.py): the offset of the storage in a TensorImpl, of the flag
; and of the allocator, then torch's allocator (0: unknown).
@stepwell_resizable = global [4 x i64] zeroinitializer

; Lets the storage of a tensor be resized as if torch's allocator had made it.
define internal void @storage_resizable(ptr %handle) {
  %allocatorp = getelementptr i64, ptr @stepwell_resizable, i64 3
  %allocator = load i64, ptr %allocatorp
  %known = icmp ne i64 %allocator, 0
  br i1 %known, label %set, label %done
set:
  %impl = load ptr, ptr %handle
  %storageo = load i64, ptr @stepwell_resizable
  %storagep = getelementptr i8, ptr %impl, i64 %storageo
  %storage = load ptr, ptr %storagep
  %flagop = getelementptr i64, ptr @stepwell_resizable, i64 1
  %flago = load i64, ptr %flagop
  %flag = getelementptr i8, ptr %storage, i64 %flago
  store i8 1, ptr %flag
  %whereop = getelementptr i64, ptr @stepwell_resizable, i64 2
  %whereo = load i64, ptr %whereop
  %where = getelementptr i8, ptr %storage, i64 %whereo
  store i64 %allocator, ptr %where
  br label %done
done:
  ret void
}

; An uninitialised tensor: of the pool when it is large, of torch's allocator otherwise.
define i32 @stepwell_empty(i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, i64 %bytes, ptr %out) {
  %large = icmp sge i64 %bytes, $POOLED_BYTES
  br i1 %large, label %pooled, label %plain
plain:
  %r = call i32 @aoti_torch_empty_strided(i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, i32 0, i32 -1, ptr %out)
  ret i32 %r
pooled:
  %p = call ptr @stepwell_pool_alloc(i64 %bytes)
  %failed = icmp eq ptr %p, null
  br i1 %failed, label %plain, label %wrap
wrap:
  %w = call i32 @torch_from_blob(ptr %p, i64 %rank, ptr %sizes, ptr %strides, i64 0, i32 %dtype,
                                 i32 0, i32 -1, ptr %out, i32 0, ptr null, i64 0, ptr @pool_deleter, ptr null)
  %bad = icmp ne i32 %w, 0
  br i1 %bad, label %undo, label %made
made:
  %handle = load ptr, ptr %out
  call void @storage_resizable(ptr %handle)
  br label %done
undo:
  call void @stepwell_pool_free(ptr %p)
  br label %done
done:
  ret i32 %w
}

; A tensor over memory that somebody else owns.
define i32 @stepwell_from_blob(ptr %data, i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, ptr %out) {
  %w = call i32 @torch_from_blob(ptr %data, i64 %rank, ptr %sizes, ptr %strides, i64 0, i32 %dtype,
                                 i32 0, i32 -1, ptr %out, i32 0, ptr null, i64 0, ptr null, ptr null)
  ret i32 %w
}
