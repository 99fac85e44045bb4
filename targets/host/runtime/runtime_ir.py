"""LLVM text of the host runtime: the functions that every native entry calls, compiled once a process and never
unloaded.

- memory: the pool (pool_ir.py) and, on top of it, the arena of a program;
- arguments: taking them out of the caller's list, comparing tensors with what the program was compiled for;
- errors: calling a Python function that raises, and freeing what a program still holds;
- steps: going through the table of a program (steps_ir.py).
"""

from __future__ import annotations

from .pool_ir import BORROWED_BYTES, POOL, POOLED_BYTES
from .steps_ir import steps_text

_DECLARATIONS = """
@PyExc_MemoryError = external global ptr
@PyExc_TypeError = external global ptr
@PyList_Type = external global [0 x i8]
@THPVariableClass = external global ptr
declare ptr @PyErr_Format(ptr, ptr, ...)
declare void @PyErr_Clear()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_NormalizeException(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
@_Py_NoneStruct = external global [0 x i8]
declare i32 @aoti_torch_get_dtype(ptr, ptr)
declare i32 @aoti_torch_get_device_type(ptr, ptr)
declare i32 @aoti_torch_get_device_index(ptr, ptr)
declare i32 @aoti_torch_get_dim(ptr, ptr)
declare i32 @aoti_torch_get_sizes(ptr, ptr)
declare i32 @aoti_torch_get_strides(ptr, ptr)
declare i32 @aoti_torch_delete_tensor_object(ptr)
declare i32 @aoti_torch_empty_strided(i64, ptr, ptr, i32, i32, i32, ptr)
declare i32 @torch_from_blob(ptr, i64, ptr, ptr, i64, i32, i32, i32, ptr, i32, ptr, i64, ptr, ptr)
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare ptr @calloc(i64, i64)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.smax.i64(i64, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

_ARENA = """
@memory_text = internal constant [82 x i8] c"cannot allocate %lld bytes for the values between the kernels of a compiled graph\\00"

; MemoryError that says how much there was none of.
define void @stepwell_no_memory(i64 %bytes) {
  %error = load ptr, ptr @PyExc_MemoryError
  %e = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %error, ptr @memory_text, i64 %bytes)
  ret void
}

; An arena is { i64 busy, ptr block, i64 capacity, i64 n, [n x ptr] views }. The views are tensors over the block that
; are the same in every call: made at their first use, they live until the block changes. All small arenas are one block
; of the process (capacity is -1), which one call at a time has; a program that finds it taken gets a block that stays
; with it (capacity is its size). A large one is borrowed from the pool for each call (capacity is 0), which mostly
; gives the same one again. A call that runs while another one has the program's arena gets an arena of its own. Null
; when there is no memory.
@small_block = internal global [BORROWED_BYTES x i8] zeroinitializer, align 64
@small_taken = internal global i64 0

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
  %large = icmp sge i64 %bytes, BORROWED_BYTES
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

; where a StorageImpl says that it can be resized (storages.py): the storage in a TensorImpl, the flag, the allocator, torch's allocator (0: unknown)
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
  %large = icmp sge i64 %bytes, POOLED_BYTES
  br i1 %large, label %pooled, label %plain
plain:
  %r = call i32 @aoti_torch_empty_strided(i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, i32 0, i32 -1, ptr %out)
  ret i32 %r
pooled:
  %p = call ptr @stepwell_pool_alloc(i64 %bytes)
  %failed = icmp eq ptr %p, null
  br i1 %failed, label %plain, label %wrap
wrap:
  %w = call i32 @torch_from_blob(ptr %p, i64 %rank, ptr %sizes, ptr %strides, i64 0, i32 %dtype, i32 0, i32 -1, ptr %out, i32 0, ptr null, i64 0, ptr @pool_deleter, ptr null)
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
  %w = call i32 @torch_from_blob(ptr %data, i64 %rank, ptr %sizes, ptr %strides, i64 0, i32 %dtype, i32 0, i32 -1, ptr %out, i32 0, ptr null, i64 0, ptr null, ptr null)
  ret i32 %w
}
"""  # noqa: E501

_ARGUMENTS = """
@count_text = internal constant [38 x i8] c"expected %zd arguments, %zd are given\\00"
@tensor_text = internal constant [47 x i8] c"argument %zd must be a torch.Tensor, got %.80s\\00"

; Moves (out of one list, which is empty afterwards) or copies the arguments into the frame: 0 or, with TypeError set,
; -1. kinds holds a byte an argument: 1 for a tensor.
define i32 @stepwell_take(ptr %args, i64 %given, ptr %frame, i64 %n, ptr %kinds) {
entry:
  %one = icmp eq i64 %given, 1
  br i1 %one, label %maybe, label %direct
maybe:
  %first = load ptr, ptr %args
  %typep = getelementptr i8, ptr %first, i64 8
  %type = load ptr, ptr %typep
  %exact = icmp eq ptr %type, @PyList_Type
  br i1 %exact, label %list, label %maybe2
maybe2:
  %sub = call i32 @PyType_IsSubtype(ptr %type, ptr @PyList_Type)
  %islist = icmp ne i32 %sub, 0
  br i1 %islist, label %list, label %direct
list:
  %sizep = getelementptr i8, ptr %first, i64 16
  %size = load i64, ptr %sizep
  %right = icmp eq i64 %size, %n
  br i1 %right, label %move, label %wrong
move:
  %itemsp = getelementptr i8, ptr %first, i64 24
  %items = load ptr, ptr %itemsp
  %bytes = shl i64 %n, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %frame, ptr %items, i64 %bytes, i1 false)
  store i64 0, ptr %sizep
  br label %check
direct:
  %match = icmp eq i64 %given, %n
  br i1 %match, label %copy, label %wrong
copy:
  %ci = phi i64 [ 0, %direct ], [ %cin, %copied ]
  %cend = icmp eq i64 %ci, %n
  br i1 %cend, label %check, label %copied
copied:
  %from = getelementptr ptr, ptr %args, i64 %ci
  %to = getelementptr ptr, ptr %frame, i64 %ci
  %object = load ptr, ptr %from
  call void @Py_IncRef(ptr %object)
  store ptr %object, ptr %to
  %cin = add i64 %ci, 1
  br label %copy
check:
  %class = load ptr, ptr @THPVariableClass
  br label %loop
loop:
  %i = phi i64 [ 0, %check ], [ %in, %fine ]
  %end = icmp eq i64 %i, %n
  br i1 %end, label %ok, label %body
body:
  %kindp = getelementptr i8, ptr %kinds, i64 %i
  %kind = load i8, ptr %kindp
  %tensor = icmp eq i8 %kind, 1
  br i1 %tensor, label %istensor, label %fine
istensor:
  %ap = getelementptr ptr, ptr %frame, i64 %i
  %a = load ptr, ptr %ap
  %atp = getelementptr i8, ptr %a, i64 8
  %at = load ptr, ptr %atp
  %plain = icmp eq ptr %at, %class
  br i1 %plain, label %fine, label %derived
derived:
  %is = call i32 @PyType_IsSubtype(ptr %at, ptr %class)
  %isok = icmp ne i32 %is, 0
  br i1 %isok, label %fine, label %notensor
fine:
  %in = add i64 %i, 1
  br label %loop
ok:
  ret i32 0
wrong:
  %got = phi i64 [ %size, %list ], [ %given, %direct ]
  %error = load ptr, ptr @PyExc_TypeError
  %e1 = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %error, ptr @count_text, i64 %n, i64 %got)
  ret i32 -1
notensor:
  %error2 = load ptr, ptr @PyExc_TypeError
  %namep = getelementptr i8, ptr %at, i64 24
  %name = load ptr, ptr %namep
  %e2 = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %error2, ptr @tensor_text, i64 %i, ptr %name)
  ret i32 -1
}

; Compares a tensor with an element type, sizes and strides: 0 equal, 1 only strides differ, 2 anything else differs.
; Strides of dimensions of size 1, and of tensors without elements, do not matter. %kind holds the element type in its low
; 10 bits (1023: any), above them 0 for the CPU, 1 + the number of a GPU, or 255 for any device.
define i64 @stepwell_compare(ptr %tensor, i64 %kind, i64 %rank, ptr %sizes, ptr %strides) {
entry:
  %i32 = alloca i32
  %i64 = alloca i64
  %p1 = alloca ptr
  %r1 = call i32 @aoti_torch_get_dtype(ptr %tensor, ptr %i32)
  %dt = load i32, ptr %i32
  %r2 = call i32 @aoti_torch_get_device_type(ptr %tensor, ptr %i32)
  %dev = load i32, ptr %i32
  %place = lshr i64 %kind, 10
  %oncpu = icmp eq i64 %place, 0
  br i1 %oncpu, label %cpu, label %gpu
cpu:
  %iscpu = icmp eq i32 %dev, 0
  br label %rest
gpu:
  %ri = call i32 @aoti_torch_get_device_index(ptr %tensor, ptr %i32)
  %index = load i32, ptr %i32
  %number = trunc i64 %place to i32
  %want = sub i32 %number, 1
  %eqindex = icmp eq i32 %index, %want
  %isgpu = icmp eq i32 %dev, 1
  %isthis = and i1 %isgpu, %eqindex
  br label %rest
rest:
  %there = phi i1 [ %iscpu, %cpu ], [ %isthis, %gpu ]
  %anydev = icmp eq i64 %place, 255
  %okdev = or i1 %there, %anydev
  %r3 = call i32 @aoti_torch_get_dim(ptr %tensor, ptr %i64)
  %dim = load i64, ptr %i64
  %dtype = and i64 %kind, 1023
  %wantdt = trunc i64 %dtype to i32
  %anydt = icmp eq i64 %dtype, 1023
  %eqdt = icmp eq i32 %dt, %wantdt
  %okdt = or i1 %anydt, %eqdt
  %okdim = icmp eq i64 %dim, %rank
  %ok1 = and i1 %okdt, %okdev
  %ok2 = and i1 %ok1, %okdim
  br i1 %ok2, label %shapes, label %differs
shapes:
  %r4 = call i32 @aoti_torch_get_sizes(ptr %tensor, ptr %p1)
  %have = load ptr, ptr %p1
  %r5 = call i32 @aoti_torch_get_strides(ptr %tensor, ptr %p1)
  %haves = load ptr, ptr %p1
  %bad = icmp ne i32 %r5, 0
  br i1 %bad, label %differs, label %loop
loop:
  %i = phi i64 [ 0, %shapes ], [ %in, %same ]
  %strided = phi i64 [ 0, %shapes ], [ %strided1, %same ]
  %empty = phi i1 [ false, %shapes ], [ %empty1, %same ]
  %end = icmp eq i64 %i, %rank
  br i1 %end, label %done, label %body
body:
  %wp = getelementptr i64, ptr %sizes, i64 %i
  %w = load i64, ptr %wp
  %hp = getelementptr i64, ptr %have, i64 %i
  %h = load i64, ptr %hp
  %eq = icmp eq i64 %w, %h
  br i1 %eq, label %same, label %differs
same:
  %wsp = getelementptr i64, ptr %strides, i64 %i
  %ws = load i64, ptr %wsp
  %hsp = getelementptr i64, ptr %haves, i64 %i
  %hs = load i64, ptr %hsp
  %differ = icmp ne i64 %ws, %hs
  %many = icmp sgt i64 %h, 1
  %matter = and i1 %differ, %many
  %matters = zext i1 %matter to i64
  %strided1 = or i64 %strided, %matters
  %zero = icmp eq i64 %h, 0
  %empty1 = or i1 %empty, %zero
  %in = add i64 %i, 1
  br label %loop
done:
  %result = select i1 %empty, i64 0, i64 %strided
  ret i64 %result
differs:
  ret i64 2
}

; Compares arguments with a table of records { argument, dtype, rank, sizes..., strides... }: the number of the first
; record that does not fit, or -1. With %values, sizes and strides are places in that array.
define i64 @stepwell_compare_table(ptr %frame, ptr %table, i64 %count, ptr %values) {
entry:
  %local = alloca [128 x i64]
  %direct = icmp eq ptr %values, null
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %kn, %next ]
  %record = phi ptr [ %table, %entry ], [ %after, %next ]
  %end = icmp eq i64 %k, %count
  br i1 %end, label %fine, label %body
body:
  %arg = load i64, ptr %record
  %dtp = getelementptr i64, ptr %record, i64 1
  %dt = load i64, ptr %dtp
  %rankp = getelementptr i64, ptr %record, i64 2
  %rank = load i64, ptr %rankp
  %words = getelementptr i64, ptr %record, i64 3
  %twice = shl i64 %rank, 1
  %after = getelementptr i64, ptr %words, i64 %twice
  br i1 %direct, label %compare, label %fetch
fetch:
  %i = phi i64 [ 0, %body ], [ %in, %one ]
  %all = icmp eq i64 %i, %twice
  br i1 %all, label %compare, label %one
one:
  %from = getelementptr i64, ptr %words, i64 %i
  %place = load i64, ptr %from
  %valuep = getelementptr i64, ptr %values, i64 %place
  %value = load i64, ptr %valuep
  %to = getelementptr i64, ptr %local, i64 %i
  store i64 %value, ptr %to
  %in = add i64 %i, 1
  br label %fetch
compare:
  %sizes = phi ptr [ %words, %body ], [ %local, %fetch ]
  %strides = getelementptr i64, ptr %sizes, i64 %rank
  %slot = getelementptr ptr, ptr %frame, i64 %arg
  %object = load ptr, ptr %slot
  %tensor = getelementptr i8, ptr %object, i64 HANDLE_OFFSET
  %r = call i64 @stepwell_compare(ptr %tensor, i64 %dt, i64 %rank, ptr %sizes, ptr %strides)
  %same = icmp eq i64 %r, 0
  br i1 %same, label %next, label %differs
next:
  %kn = add i64 %k, 1
  br label %loop
fine:
  ret i64 -1
differs:
  ret i64 %k
}
"""

_ERRORS = """
; Calls function(object or None, a, b, c) for the exception that it raises; its result, if any, is returned (a new
; reference).
define ptr @stepwell_call(ptr %function, ptr %object, i64 %a, i64 %b, i64 %c) {
  %args = alloca [4 x ptr]
  %none = icmp eq ptr %object, null
  %o = select i1 %none, ptr @_Py_NoneStruct, ptr %object
  store ptr %o, ptr %args
  %pa = call ptr @PyLong_FromLongLong(i64 %a)
  %a1 = getelementptr ptr, ptr %args, i64 1
  store ptr %pa, ptr %a1
  %pb = call ptr @PyLong_FromLongLong(i64 %b)
  %a2 = getelementptr ptr, ptr %args, i64 2
  store ptr %pb, ptr %a2
  %pc = call ptr @PyLong_FromLongLong(i64 %c)
  %a3 = getelementptr ptr, ptr %args, i64 3
  store ptr %pc, ptr %a3
  %r = call ptr @PyObject_Vectorcall(ptr %function, ptr %args, i64 4, ptr null)
  call void @Py_DecRef(ptr %pa)
  call void @Py_DecRef(ptr %pb)
  call void @Py_DecRef(ptr %pc)
  ret ptr %r
}

; Calls function(exception, a, b, 0) with the exception that is set, which stays set.
define void @stepwell_note(ptr %function, i64 %a, i64 %b) {
  %type = alloca ptr
  %value = alloca ptr
  %trace = alloca ptr
  call void @PyErr_Fetch(ptr %type, ptr %value, ptr %trace)
  call void @PyErr_NormalizeException(ptr %type, ptr %value, ptr %trace)
  %error = load ptr, ptr %value
  %r = call ptr @stepwell_call(ptr %function, ptr %error, i64 %a, i64 %b, i64 0)
  %failed = icmp eq ptr %r, null
  br i1 %failed, label %clear, label %drop
clear:
  call void @PyErr_Clear()
  br label %restore
drop:
  call void @Py_DecRef(ptr %r)
  br label %restore
restore:
  %t = load ptr, ptr %type
  %v = load ptr, ptr %value
  %b2 = load ptr, ptr %trace
  call void @PyErr_Restore(ptr %t, ptr %v, ptr %b2)
  ret void
}

; Drops what a program still holds: n Python objects and m tensor handles (null where there is none any more).
define void @stepwell_drop(ptr %objects, i64 %n, ptr %handles, i64 %m) {
entry:
  br label %handle
handle:
  %j = phi i64 [ 0, %entry ], [ %jn, %nexth ]
  %jend = icmp eq i64 %j, %m
  br i1 %jend, label %object, label %onehandle
onehandle:
  %hp = getelementptr ptr, ptr %handles, i64 %j
  %h = load ptr, ptr %hp
  %nh = icmp eq ptr %h, null
  br i1 %nh, label %nexth, label %droph
droph:
  %r = call i32 @aoti_torch_delete_tensor_object(ptr %h)
  br label %nexth
nexth:
  %jn = add i64 %j, 1
  br label %handle
object:
  %i = phi i64 [ 0, %handle ], [ %in, %nexto ]
  %iend = icmp eq i64 %i, %n
  br i1 %iend, label %end, label %oneobject
oneobject:
  %op = getelementptr ptr, ptr %objects, i64 %i
  %o = load ptr, ptr %op
  %no = icmp eq ptr %o, null
  br i1 %no, label %nexto, label %dropo
dropo:
  call void @Py_DecRef(ptr %o)
  br label %nexto
nexto:
  %in = add i64 %i, 1
  br label %object
end:
  ret void
}
"""

FUNCTIONS: dict[str, str] = {
    "stepwell_pool_alloc": "ptr (i64)",
    "stepwell_pool_free": "void (ptr)",
    "stepwell_arena_acquire": "ptr (ptr, i64)",
    "stepwell_arena_release": "void (ptr, ptr)",
    "stepwell_no_memory": "void (i64)",
    "stepwell_arena_clear": "void (ptr)",
    "stepwell_take": "i32 (ptr, i64, ptr, i64, ptr)",
    "stepwell_compare": "i64 (ptr, i64, i64, ptr, ptr)",
    "stepwell_compare_table": "i64 (ptr, ptr, i64, ptr)",
    "stepwell_call": "ptr (ptr, ptr, i64, i64, i64)",
    "stepwell_note": "void (ptr, i64, i64)",
    "stepwell_drop": "void (ptr, i64, ptr, i64)",
    "stepwell_steps": "i32 (ptr, ptr, i64, i1)",
}
"""The functions that entries call, with their LLVM types."""


def runtime_text(handle_offset: int) -> str:
    """The module's text; `handle_offset` is where a tensor's Python object holds its `at::Tensor`."""
    text = "".join((_DECLARATIONS, POOL, _ARENA, _ARGUMENTS, _ERRORS, steps_text()))
    text = text.replace("POOLED_BYTES", str(POOLED_BYTES)).replace("BORROWED_BYTES", str(BORROWED_BYTES))
    return text.replace("HANDLE_OFFSET", str(handle_offset))
