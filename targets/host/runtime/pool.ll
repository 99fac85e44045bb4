; The pool: blocks of memory behind a lock, in free lists by size class, for large tensors and arenas.
;
; A block is as large as what was asked for when it was made, with $HEADER_BYTES bytes in front: { ptr next free block,
; i64 size class, i64 bytes }. Classes are 64 to a power of two. A request takes a free block of its own class that is
; large enough, or one of the next 63 classes, where all are. Before a new block is made, the free ones go back to the
; system if the pool had more than twice what was ever in use at once: sizes that change from call to call do not add
; up.

declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.smax.i64(i64, i64)

; The lock; the first free block of each class; bytes in free blocks, in use now, and most in use at once; how many may
; be in free blocks.
@pool_lock = internal global [64 x i8] zeroinitializer, align 16
@pool_heads = internal global [4608 x ptr] zeroinitializer
@stepwell_pool_held = global i64 0
@pool_used = internal global i64 0
@pool_most = internal global i64 0
@stepwell_pool_limit = global i64 4294967296

; The class of a size: the smallest of those whose bound, (class mod 64 + 65) << (class / 64) bytes, is not below it.
define internal i64 @pool_class(i64 %bytes) {
  %b = call i64 @llvm.smax.i64(i64 %bytes, i64 4096)
  %b1 = sub i64 %b, 1
  %lz = call i64 @llvm.ctlz.i64(i64 %b1, i1 true)
  %shift = sub i64 57, %lz
  %units = lshr i64 %b1, %shift
  %base = shl i64 %shift, 6
  %unit = sub i64 %units, 64
  %class = add i64 %base, %unit
  ret i64 %class
}

; The size of a block.
define internal i64 @pool_bytes(ptr %block) {
  %p = getelementptr i8, ptr %block, i64 16
  %bytes = load i64, ptr %p
  ret i64 %bytes
}

; Counts bytes as in use; the caller has the lock.
define internal void @pool_use(i64 %bytes) {
  %used = load i64, ptr @pool_used
  %now = add i64 %used, %bytes
  store i64 %now, ptr @pool_used
  %most = load i64, ptr @pool_most
  %most1 = call i64 @llvm.smax.i64(i64 %most, i64 %now)
  store i64 %most1, ptr @pool_most
  ret void
}

; Counts a new block as in use, and whether the pool has more than twice now what was ever in use.
define internal i1 @pool_use_new(i64 %bytes) {
  %l = call i32 @pthread_mutex_lock(ptr @pool_lock)
  call void @pool_use(i64 %bytes)
  %used = load i64, ptr @pool_used
  %most = load i64, ptr @pool_most
  %held = load i64, ptr @stepwell_pool_held
  %u = call i32 @pthread_mutex_unlock(ptr @pool_lock)
  %all = add i64 %used, %held
  %bound = shl i64 %most, 1
  %over = icmp sgt i64 %all, %bound
  ret i1 %over
}

; Takes the block %block, which %link points to, out of its free list; the caller has the lock.
define internal void @pool_unlink(ptr %link, ptr %block) {
  %after = load ptr, ptr %block
  store ptr %after, ptr %link
  %bytes = call i64 @pool_bytes(ptr %block)
  %held = load i64, ptr @stepwell_pool_held
  %held1 = sub i64 %held, %bytes
  store i64 %held1, ptr @stepwell_pool_held
  call void @pool_use(i64 %bytes)
  ret void
}

; Takes the block %wanted out of the free lists if it is there and large enough, of a class from %class on (one of 384):
; whether it was.
define internal i1 @pool_take_this(ptr %wanted, i64 %bytes, i64 %class) {
entry:
  %wblock = getelementptr i8, ptr %wanted, i64 -$HEADER_BYTES
  %last = add i64 %class, 384
  %l = call i32 @pthread_mutex_lock(ptr @pool_lock)
  br label %list
list:
  %c = phi i64 [ %class, %entry ], [ %cn, %next ]
  %head = getelementptr ptr, ptr @pool_heads, i64 %c
  br label %look
look:
  %link = phi ptr [ %head, %list ], [ %block, %further ]
  %block = load ptr, ptr %link
  %end = icmp eq ptr %block, null
  br i1 %end, label %next, label %compare
compare:
  %same = icmp eq ptr %block, %wblock
  br i1 %same, label %measure, label %further
measure:
  %size = call i64 @pool_bytes(ptr %block)
  %fits = icmp sge i64 %size, %bytes
  br i1 %fits, label %take, label %none
further:
  br label %look
next:
  %cn = add i64 %c, 1
  %more = icmp ult i64 %cn, %last
  br i1 %more, label %list, label %none
take:
  call void @pool_unlink(ptr %link, ptr %block)
  %u = call i32 @pthread_mutex_unlock(ptr @pool_lock)
  ret i1 true
none:
  %u2 = call i32 @pthread_mutex_unlock(ptr @pool_lock)
  ret i1 false
}

; A free block of at least %bytes, whose class is %class, of one of %count classes from there on, or null.
define internal ptr @pool_take(i64 %bytes, i64 %class, i64 %count) {
entry:
  %last = add i64 %class, %count
  %l = call i32 @pthread_mutex_lock(ptr @pool_lock)
  br label %list
list:
  %c = phi i64 [ %class, %entry ], [ %cn, %next ]
  %head = getelementptr ptr, ptr @pool_heads, i64 %c
  br label %look
look:
  %link = phi ptr [ %head, %list ], [ %block, %measure ]
  %block = load ptr, ptr %link
  %end = icmp eq ptr %block, null
  br i1 %end, label %next, label %measure
measure:
  %size = call i64 @pool_bytes(ptr %block)
  %fits = icmp sge i64 %size, %bytes
  br i1 %fits, label %take, label %look
next:
  %cn = add i64 %c, 1
  %more = icmp ult i64 %cn, %last
  br i1 %more, label %list, label %none
take:
  call void @pool_unlink(ptr %link, ptr %block)
  %u = call i32 @pthread_mutex_unlock(ptr @pool_lock)
  %data = getelementptr i8, ptr %block, i64 $HEADER_BYTES
  ret ptr %data
none:
  %u2 = call i32 @pthread_mutex_unlock(ptr @pool_lock)
  ret ptr null
}

; A block of at least that many bytes, at a multiple of 64; null when there is no memory.
define ptr @stepwell_pool_alloc(i64 %bytes) {
entry:
  %place = alloca ptr
  %class = call i64 @pool_class(i64 %bytes)
  %found = call ptr @pool_take(i64 %bytes, i64 %class, i64 64)
  %there = icmp ne ptr %found, null
  br i1 %there, label %reuse, label %fresh
reuse:
  ret ptr %found
fresh:
  %over = call i1 @pool_use_new(i64 %bytes)
  br i1 %over, label %shrink, label %make
shrink:
  call void @stepwell_pool_trim()
  br label %make
make:
  %total = add i64 %bytes, $HEADER_BYTES
  %code = call i32 @posix_memalign(ptr %place, i64 64, i64 %total)
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %none, label %made
made:
  %new = load ptr, ptr %place
  %classp = getelementptr i8, ptr %new, i64 8
  store i64 %class, ptr %classp
  %sizep = getelementptr i8, ptr %new, i64 16
  store i64 %bytes, ptr %sizep
  %data = getelementptr i8, ptr %new, i64 $HEADER_BYTES
  ret ptr %data
none:
  call void @pool_unuse(i64 %bytes)
  ret ptr null
}

; Counts bytes as no longer in use; the caller does not have the lock.
define internal void @pool_unuse(i64 %bytes) {
  %l = call i32 @pthread_mutex_lock(ptr @pool_lock)
  %used = load i64, ptr @pool_used
  %now = sub i64 %used, %bytes
  store i64 %now, ptr @pool_used
  %u = call i32 @pthread_mutex_unlock(ptr @pool_lock)
  ret void
}

; Gives a block back: to the free list of its class, or to the system where the free lists would hold too much.
define void @stepwell_pool_free(ptr %data) {
  %block = getelementptr i8, ptr %data, i64 -$HEADER_BYTES
  %kind = getelementptr i8, ptr %block, i64 8
  %class = load i64, ptr %kind
  %bytes = call i64 @pool_bytes(ptr %block)
  %l = call i32 @pthread_mutex_lock(ptr @pool_lock)
  %used = load i64, ptr @pool_used
  %used1 = sub i64 %used, %bytes
  store i64 %used1, ptr @pool_used
  %held = load i64, ptr @stepwell_pool_held
  %after = add i64 %held, %bytes
  %limit = load i64, ptr @stepwell_pool_limit
  %keep = icmp sle i64 %after, %limit
  br i1 %keep, label %push, label %drop
push:
  %slot = getelementptr ptr, ptr @pool_heads, i64 %class
  %head = load ptr, ptr %slot
  store ptr %head, ptr %block
  store ptr %block, ptr %slot
  store i64 %after, ptr @stepwell_pool_held
  %u = call i32 @pthread_mutex_unlock(ptr @pool_lock)
  ret void
drop:
  %u2 = call i32 @pthread_mutex_unlock(ptr @pool_lock)
  call void @free(ptr %block)
  ret void
}

; The deleter of a tensor that torch_from_blob made.
define internal void @pool_deleter(ptr %data, ptr %context) {
  call void @stepwell_pool_free(ptr %data)
  ret void
}

; Gives the free blocks of the classes from %c0 up to %c1 back to the system.
define internal void @pool_drop(i64 %c0, i64 %c1) {
entry:
  %l = call i32 @pthread_mutex_lock(ptr @pool_lock)
  br label %class
class:
  %c = phi i64 [ %c0, %entry ], [ %cn, %done ]
  %end = icmp uge i64 %c, %c1
  br i1 %end, label %out, label %look
look:
  %slot = getelementptr ptr, ptr @pool_heads, i64 %c
  br label %block
block:
  %head = load ptr, ptr %slot
  %empty = icmp eq ptr %head, null
  br i1 %empty, label %done, label %drop
drop:
  %after = load ptr, ptr %head
  store ptr %after, ptr %slot
  %bytes = call i64 @pool_bytes(ptr %head)
  %held = load i64, ptr @stepwell_pool_held
  %less = sub i64 %held, %bytes
  store i64 %less, ptr @stepwell_pool_held
  call void @free(ptr %head)
  br label %block
done:
  %cn = add i64 %c, 1
  br label %class
out:
  %u = call i32 @pthread_mutex_unlock(ptr @pool_lock)
  ret void
}

; Gives all free blocks back to the system.
define void @stepwell_pool_trim() {
  call void @pool_drop(i64 0, i64 4608)
  ret void
}

; A block for a large arena: the one that it had last time, or another, up to 64 times as large as it needs: it comes
; back at the end of the call. When there is none, smaller free blocks go first: they are what other arenas used, and
; arenas of graphs that run one after the other should not add up.
define internal ptr @pool_alloc_large(i64 %bytes, ptr %before) {
  %class = call i64 @pool_class(i64 %bytes)
  %again = call i1 @pool_take_this(ptr %before, i64 %bytes, i64 %class)
  br i1 %again, label %kept, label %other
kept:
  ret ptr %before
other:
  %found = call ptr @pool_take(i64 %bytes, i64 %class, i64 384)
  %there = icmp ne ptr %found, null
  br i1 %there, label %reuse, label %fresh
reuse:
  ret ptr %found
fresh:
  %smallest = call i64 @pool_class(i64 $BORROWED_BYTES)
  call void @pool_drop(i64 %smallest, i64 %class)
  %new = call ptr @stepwell_pool_alloc(i64 %bytes)
  ret ptr %new
}
