; Arenas: the memory of a program for the values between its kernels.
;
; An arena is { i64 busy, ptr block, i64 capacity, i64 n, [n x ptr] views }. The views are tensors over the block that
; are the same in every call: made at their first use, they live until the block changes. All small arenas are one block
; of the process (capacity is -1), which one call at a time has; a program that finds it taken gets a block that stays
; with it (capacity is its size). A large one is borrowed from the pool for each call (capacity is 0), which mostly
; gives the same one again.

@PyExc_MemoryError = external global ptr
declare ptr @PyErr_Format(ptr, ptr, ...)
declare i32 @aoti_torch_delete_tensor_object(ptr)
declare void @free(ptr)
declare ptr @calloc(i64, i64)
declare ptr @stepwell_pool_alloc(i64)
declare ptr @pool_alloc_large(i64, ptr)
declare void @stepwell_pool_free(ptr)
declare i32 @stepwell_from_blob(ptr, i64, ptr, ptr, i32, ptr)

@memory_text = internal constant [82 x i8] c"cannot allocate %lld bytes for the values between the kernels of a compiled graph\00"

; Sets MemoryError, which says how many bytes there were none of.
define void @stepwell_no_memory(i64 %bytes) {
  %error = load ptr, ptr @PyExc_MemoryError
  %e = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %error, ptr @memory_text, i64 %bytes)
  ret void
}

; The block of all small arenas, and whether a call has it.
@small_block = internal global [$BORROWED_BYTES x i8] zeroinitializer, align 64
@small_taken = internal global i64 0

; The arena of a call: the program's, or one of the call's own while another call has that. Null when there is no
; memory.
define ptr @stepwell_arena_acquire(ptr %kept, i64 %bytes) {
entry:
  %busy = atomicrmw xchg ptr %kept, i64 1 acquire
  %taken = icmp ne i64 %busy, 0
  br i1 %taken, label %other, label %first
first:
  %fok = call i32 @arena_reserve(ptr %kept, i64 %bytes)
  %ffailed = icmp eq i32 %fok, 0
  br i1 %ffailed, label %fidle, label %fdone
fidle:
  store atomic i64 0, ptr %kept release, align 8
  ret ptr null
fdone:
  ret ptr %kept
other:
  %np = getelementptr i8, ptr %kept, i64 24
  %n = load i64, ptr %np
  %words = add i64 %n, 4
  %own = call ptr @calloc(i64 %words, i64 8)
  %none = icmp eq ptr %own, null
  br i1 %none, label %failed, label %made
made:
  %onp = getelementptr i8, ptr %own, i64 24
  store i64 %n, ptr %onp
  %ook = call i32 @arena_reserve(ptr %own, i64 %bytes)
  %ofailed = icmp eq i32 %ook, 0
  br i1 %ofailed, label %odrop, label %odone
odrop:
  call void @free(ptr %own)
  br label %failed
odone:
  ret ptr %own
failed:
  ret ptr null
}

; Makes the block large enough: 0 when there is no memory.
define internal i32 @arena_reserve(ptr %arena, i64 %bytes) {
entry:
  %blockp = getelementptr i8, ptr %arena, i64 8
  %capp = getelementptr i8, ptr %arena, i64 16
  %cap = load i64, ptr %capp
  %fits = icmp sge i64 %cap, %bytes
  br i1 %fits, label %done, label %grow
grow:
  %kept = icmp sgt i64 %cap, 0
  br i1 %kept, label %clear, label %choose
clear:
  call void @stepwell_arena_clear(ptr %arena)
  br label %choose
choose:
  %large = icmp sge i64 %bytes, $BORROWED_BYTES
  br i1 %large, label %borrow, label %keep
keep:
  %held = atomicrmw xchg ptr @small_taken, i64 1 acquire
  %taken = icmp ne i64 %held, 0
  br i1 %taken, label %alone, label %shared
shared:
  %last = load ptr, ptr %blockp
  %again = icmp eq ptr %last, @small_block
  br i1 %again, label %mark, label %change
change:
  call void @stepwell_arena_clear(ptr %arena)
  store ptr @small_block, ptr %blockp
  br label %mark
mark:
  store i64 -1, ptr %capp
  br label %done
alone:
  call void @stepwell_arena_clear(ptr %arena)
  %own = call ptr @stepwell_pool_alloc(i64 %bytes)
  %nomemory = icmp eq ptr %own, null
  br i1 %nomemory, label %none, label %some
some:
  store ptr %own, ptr %blockp
  store i64 %bytes, ptr %capp
  br label %done
borrow:
  store i64 0, ptr %capp
  %old = load ptr, ptr %blockp
  %new = call ptr @pool_alloc_large(i64 %bytes, ptr %old)
  %nolarge = icmp eq ptr %new, null
  br i1 %nolarge, label %none, label %compare
compare:
  %same = icmp eq ptr %old, %new
  br i1 %same, label %done, label %moved
moved:
  call void @stepwell_arena_clear(ptr %arena)
  store ptr %new, ptr %blockp
  br label %done
done:
  ret i32 1
none:
  ret i32 0
}

; Drops the views and, where it is the program's own, the block.
define void @stepwell_arena_clear(ptr %arena) {
entry:
  %np = getelementptr i8, ptr %arena, i64 24
  %n = load i64, ptr %np
  %views = getelementptr i8, ptr %arena, i64 32
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %in, %next ]
  %end = icmp eq i64 %i, %n
  br i1 %end, label %block, label %one
one:
  %vp = getelementptr ptr, ptr %views, i64 %i
  %v = load ptr, ptr %vp
  store ptr null, ptr %vp
  %nov = icmp eq ptr %v, null
  br i1 %nov, label %next, label %drop
drop:
  %r = call i32 @aoti_torch_delete_tensor_object(ptr %v)
  br label %next
next:
  %in = add i64 %i, 1
  br label %loop
block:
  %blockp = getelementptr i8, ptr %arena, i64 8
  %b = load ptr, ptr %blockp
  %capp = getelementptr i8, ptr %arena, i64 16
  %cap = load i64, ptr %capp
  store ptr null, ptr %blockp
  store i64 0, ptr %capp
  %nob = icmp sle i64 %cap, 0
  br i1 %nob, label %done, label %give
give:
  call void @stepwell_pool_free(ptr %b)
  br label %done
done:
  ret void
}

; Ends a call's use of an arena (null: it has none); drops it unless it is the program's.
define void @stepwell_arena_release(ptr %kept, ptr %arena) {
  %none = icmp eq ptr %arena, null
  br i1 %none, label %end, label %some
some:
  %capp = getelementptr i8, ptr %arena, i64 16
  %cap = load i64, ptr %capp
  switch i64 %cap, label %whose [ i64 0, label %give i64 -1, label %share ]
share:
  store atomic i64 0, ptr @small_taken release, align 8
  br label %whose
give:
  %blockp = getelementptr i8, ptr %arena, i64 8
  %block = load ptr, ptr %blockp
  call void @stepwell_pool_free(ptr %block)
  br label %whose
whose:
  %same = icmp eq ptr %arena, %kept
  br i1 %same, label %idle, label %drop
idle:
  store atomic i64 0, ptr %kept release, align 8
  ret void
drop:
  call void @stepwell_arena_clear(ptr %arena)
  call void @free(ptr %arena)
  ret void
end:
  ret void
}

; View k of an arena, made when it is not there yet; null when torch raises. The arena owns it.
define ptr @stepwell_arena_view(ptr %arena, i64 %k, ptr %data, i64 %rank, ptr %sizes, ptr %strides, i32 %dtype) {
  %views = getelementptr i8, ptr %arena, i64 32
  %vp = getelementptr ptr, ptr %views, i64 %k
  %v = load ptr, ptr %vp
  %there = icmp ne ptr %v, null
  br i1 %there, label %done, label %make
make:
  %r = call i32 @stepwell_from_blob(ptr %data, i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, ptr %vp)
  %failed = icmp ne i32 %r, 0
  br i1 %failed, label %none, label %made
made:
  %new = load ptr, ptr %vp
  ret ptr %new
none:
  store ptr null, ptr %vp
  ret ptr null
done:
  ret ptr %v
}
