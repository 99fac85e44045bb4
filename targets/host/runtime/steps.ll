; Steps: going through the table of a program (steps.py says what each step's words mean).
;
; A frame is { ptr objects, ptr handles, ptr numbers, ptr scratch, ptr address of the thread state, ptr arena, ptr
; items, ptr functions }.

@PyExc_RuntimeError = external global ptr
declare ptr @PyErr_Format(ptr, ptr, ...)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare i32 @aoti_torch_delete_tensor_object(ptr)
declare i32 @aoti_torch_get_data_ptr(ptr, ptr)
declare i32 @aoti_torch_get_numel(ptr, ptr)
declare i32 @aoti_torch_new_tensor_handle(ptr, ptr)
declare i32 @aoti_torch__reinterpret_tensor(ptr, i64, ptr, ptr, i64, ptr)
declare ptr @stepwell_wrap(ptr)
declare ptr @PyList_New(i64)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @stepwell_call(ptr, ptr, i64, i64, i64)
declare i32 @stepwell_empty(i64, ptr, ptr, i32, i64, ptr)
declare ptr @stepwell_arena_view(ptr, i64, ptr, i64, ptr, ptr, i32)
declare i32 @stepwell_from_blob(ptr, i64, ptr, ptr, i32, ptr)
declare i64 @stepwell_compare(ptr, i64, i64, ptr, ptr)

; What RuntimeError says of an operand without memory.
@null_text = internal constant [$NULL_TEXT_BYTES x i8] c"$NULL_TEXT\00"

; Part k of a frame.
define internal ptr @frame_part(ptr %frame, i64 %k) {
  %p = getelementptr ptr, ptr %frame, i64 %k
  %v = load ptr, ptr %p
  ret ptr %v
}

; The number that a word stands for: known, or computed by the entry.
define internal i64 @step_number(ptr %frame, i64 %word) {
  %value = ashr i64 %word, 1
  %computed = trunc i64 %word to i1
  br i1 %computed, label %look, label %known
known:
  ret i64 %value
look:
  %numbers = call ptr @frame_part(ptr %frame, i64 2)
  %p = getelementptr i64, ptr %numbers, i64 %value
  %v = load i64, ptr %p
  ret i64 %v
}

; Puts n numbers into the scratch memory, from its element %to on: their address.
define internal ptr @step_numbers(ptr %frame, ptr %words, i64 %n, i64 %to) {
entry:
  %scratch = call ptr @frame_part(ptr %frame, i64 3)
  %first = getelementptr i64, ptr %scratch, i64 %to
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %in, %one ]
  %end = icmp eq i64 %i, %n
  br i1 %end, label %done, label %one
one:
  %wp = getelementptr i64, ptr %words, i64 %i
  %w = load i64, ptr %wp
  %v = call i64 @step_number(ptr %frame, i64 %w)
  %vp = getelementptr i64, ptr %first, i64 %i
  store i64 %v, ptr %vp
  %in = add i64 %i, 1
  br label %loop
done:
  ret ptr %first
}

; The place that holds what a reference to a tensor refers to.
define internal ptr @step_slot(ptr %frame, i64 %ref) {
  %kind = and i64 %ref, 7
  %k = lshr i64 %ref, 3
  switch i64 %kind, label %object [
    i64 $KIND_HANDLE, label %handle
    i64 $KIND_VIEW, label %view
    i64 $KIND_ITEM, label %item
  ]
object:
  %objects = call ptr @frame_part(ptr %frame, i64 0)
  br label %found
handle:
  %handles = call ptr @frame_part(ptr %frame, i64 1)
  br label %found
view:
  %arena = call ptr @frame_part(ptr %frame, i64 5)
  %views = getelementptr i8, ptr %arena, i64 32
  br label %found
item:
  %items = call ptr @frame_part(ptr %frame, i64 6)
  br label %found
found:
  %base = phi ptr [ %objects, %object ], [ %handles, %handle ], [ %views, %view ], [ %items, %item ]
  %slot = getelementptr ptr, ptr %base, i64 %k
  ret ptr %slot
}

; Whether a reference is to a Python object, in its slot or in the item table.
define internal i1 @step_is_object(i64 %ref) {
  %kind = and i64 %ref, 7
  %object = icmp eq i64 %kind, $KIND_OBJECT
  %item = icmp eq i64 %kind, $KIND_ITEM
  %either = or i1 %object, %item
  ret i1 %either
}

; The tensor handle of a reference: of a Python object, the `at::Tensor` in it.
define internal ptr @step_handle(ptr %frame, i64 %ref) {
  %slot = call ptr @step_slot(ptr %frame, i64 %ref)
  %v = load ptr, ptr %slot
  %object = call i1 @step_is_object(i64 %ref)
  %inner = getelementptr i8, ptr %v, i64 $HANDLE_OFFSET
  %handle = select i1 %object, ptr %inner, ptr %v
  ret ptr %handle
}

; Puts the word that a kernel is given for an operand at %to: 0, $NO_MEMORY for a tensor that has elements and no
; address, or an error of torch's.
define internal i32 @step_operand(ptr %frame, i64 %ref, i64 %word, ptr %to) {
  %v = call i64 @step_number(ptr %frame, i64 %word)
  %kind = and i64 %ref, 7
  switch i64 %kind, label %tensor [
    i64 $KIND_ARENA, label %memory
    i64 $KIND_NUMBER, label %plain
  ]
plain:
  store i64 %v, ptr %to
  ret i32 0
memory:
  %block = call i64 @step_memory(ptr %frame, i64 %word)
  store i64 %block, ptr %to
  ret i32 0
tensor:
  %handle = call ptr @step_handle(ptr %frame, i64 %ref)
  %code = call i32 @aoti_torch_get_data_ptr(ptr %handle, ptr %to)
  %data = load i64, ptr %to
  %nowhere = icmp eq i64 %data, 0
  br i1 %nowhere, label %null, label %there
there:
  %moved = add i64 %data, %v
  store i64 %moved, ptr %to
  ret i32 %code
null:
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %failed, label %ask
ask:
  %ncode = call i32 @aoti_torch_get_numel(ptr %handle, ptr %to)
  %n = load i64, ptr %to
  store i64 0, ptr %to
  %nbad = icmp ne i32 %ncode, 0
  %some = icmp ne i64 %n, 0
  %nomemory = select i1 %some, i32 $NO_MEMORY, i32 0
  %answer = select i1 %nbad, i32 %ncode, i32 %nomemory
  ret i32 %answer
failed:
  ret i32 %code
}

; The address of a place in the arena.
define internal i64 @step_memory(ptr %frame, i64 %word) {
  %v = call i64 @step_number(ptr %frame, i64 %word)
  %arena = call ptr @frame_part(ptr %frame, i64 5)
  %bp = getelementptr i8, ptr %arena, i64 8
  %block = load i64, ptr %bp
  %at = add i64 %block, %v
  ret i64 %at
}

; Puts n operands into the memory at %base: 0, $NO_MEMORY less the number of an operand, or an error of torch's.
define internal i32 @step_operands(ptr %frame, ptr %words, i64 %n, ptr %base) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %in, %next ]
  %end = icmp eq i64 %i, %n
  br i1 %end, label %done, label %one
one:
  %twice = shl i64 %i, 1
  %rp = getelementptr i64, ptr %words, i64 %twice
  %ref = load i64, ptr %rp
  %op = getelementptr i64, ptr %rp, i64 1
  %offset = load i64, ptr %op
  %to = getelementptr i64, ptr %base, i64 %i
  %code = call i32 @step_operand(ptr %frame, i64 %ref, i64 %offset, ptr %to)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %failed, label %next
next:
  %in = add i64 %i, 1
  br label %loop
failed:
  %none = icmp eq i32 %code, $NO_MEMORY
  %number = trunc i64 %i to i32
  %numbered = sub i32 %code, %number
  %which = select i1 %none, i32 %numbered, i32 %code
  ret i32 %which
done:
  ret i32 0
}

; Compares the tensor of a slot with a layout and replaces it by a copy when strides differ: 0, or -1 with Python's
; exception set. Called with Python's lock held, when something differs (%found says what, as stepwell_compare).
define internal i32 @step_adapt(ptr %frame, i64 %ref, i64 %found, ptr %words, ptr %sizes, ptr %strides) {
  %slot = call ptr @step_slot(ptr %frame, i64 %ref)
  %old = load ptr, ptr %slot
  %object = call i1 @step_is_object(i64 %ref)
  %numberp = getelementptr i64, ptr %words, i64 2
  %number = load i64, ptr %numberp
  %other = icmp eq i64 %found, 2
  %which = select i1 %other, i64 3, i64 4
  %itemp = getelementptr i64, ptr %words, i64 %which
  %itemk = load i64, ptr %itemp
  %items = call ptr @frame_part(ptr %frame, i64 6)
  %functionp = getelementptr ptr, ptr %items, i64 %itemk
  %function = load ptr, ptr %functionp
  %a = ptrtoint ptr %sizes to i64
  %b = ptrtoint ptr %strides to i64
  br i1 %object, label %borrow, label %wrap
borrow:
  call void @Py_IncRef(ptr %old)
  br label %ask
wrap:
  %wrapped = call ptr @stepwell_wrap(ptr %old)
  br label %ask
ask:
  %tensor = phi ptr [ %old, %borrow ], [ %wrapped, %wrap ]
  %made = call ptr @stepwell_call(ptr %function, ptr %tensor, i64 %number, i64 %a, i64 %b)
  call void @Py_DecRef(ptr %tensor)
  %none = icmp eq ptr %made, null
  br i1 %none, label %failed, label %replace
replace:
  br i1 %object, label %newobject, label %newhandle
newobject:
  store ptr %made, ptr %slot
  call void @Py_DecRef(ptr %old)
  ret i32 0
newhandle:
  %inner = getelementptr i8, ptr %made, i64 $HANDLE_OFFSET
  %code = call i32 @aoti_torch_new_tensor_handle(ptr %inner, ptr %slot)
  call void @Py_DecRef(ptr %made)
  %gone = call i32 @aoti_torch_delete_tensor_object(ptr %old)
  ret i32 0
failed:
  ret i32 -1
}

; Drops what n references own.
define internal void @step_release(ptr %frame, ptr %words, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %in, %next ]
  %end = icmp eq i64 %i, %n
  br i1 %end, label %done, label %one
one:
  %rp = getelementptr i64, ptr %words, i64 %i
  %ref = load i64, ptr %rp
  %slot = call ptr @step_slot(ptr %frame, i64 %ref)
  %v = load ptr, ptr %slot
  store ptr null, ptr %slot
  %object = call i1 @step_is_object(i64 %ref)
  br i1 %object, label %dropo, label %droph
dropo:
  call void @Py_DecRef(ptr %v)
  br label %next
droph:
  %r = call i32 @aoti_torch_delete_tensor_object(ptr %v)
  br label %next
next:
  %in = add i64 %i, 1
  br label %loop
done:
  ret void
}

; One output as a new reference, null when there is an exception.
define internal ptr @step_output(ptr %frame, i64 %word) {
  %ref = lshr i64 %word, 1
  %last = trunc i64 %word to i1
  %slot = call ptr @step_slot(ptr %frame, i64 %ref)
  %v = load ptr, ptr %slot
  %object = call i1 @step_is_object(i64 %ref)
  br i1 %object, label %python, label %handle
python:
  br i1 %last, label %hand, label %share
hand:
  store ptr null, ptr %slot
  ret ptr %v
share:
  call void @Py_IncRef(ptr %v)
  ret ptr %v
handle:
  %wrapped = call ptr @stepwell_wrap(ptr %v)
  br i1 %last, label %drop, label %done
drop:
  store ptr null, ptr %slot
  %r = call i32 @aoti_torch_delete_tensor_object(ptr %v)
  br label %done
done:
  ret ptr %wrapped
}

; Makes the list of outputs: 0, or -1 with Python's exception set.
define internal i32 @step_collect(ptr %frame, ptr %words) {
entry:
  %k = load i64, ptr %words
  %np = getelementptr i64, ptr %words, i64 1
  %n = load i64, ptr %np
  %outputs = getelementptr i64, ptr %words, i64 2
  %list = call ptr @PyList_New(i64 %n)
  %objects = call ptr @frame_part(ptr %frame, i64 0)
  %slot = getelementptr ptr, ptr %objects, i64 %k
  store ptr %list, ptr %slot
  %nolist = icmp eq ptr %list, null
  br i1 %nolist, label %failed, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %in, %put ]
  %end = icmp eq i64 %i, %n
  br i1 %end, label %done, label %one
one:
  %wp = getelementptr i64, ptr %outputs, i64 %i
  %w = load i64, ptr %wp
  %v = call ptr @step_output(ptr %frame, i64 %w)
  %none = icmp eq ptr %v, null
  br i1 %none, label %failed, label %put
put:
  %r = call i32 @PyList_SetItem(ptr %list, i64 %i, ptr %v)
  %in = add i64 %i, 1
  br label %loop
failed:
  ret i32 -1
done:
  ret i32 0
}

; Goes through %count steps; %held says whether Python's lock is held. 0, or not when a step failed: then the lock is
; held, and either Python's exception is set or torch has the text of one.
define i32 @stepwell_steps(ptr %frame, ptr %table, i64 %count, i1 %held) {
entry:
  %thread = call ptr @frame_part(ptr %frame, i64 4)
  %handles = call ptr @frame_part(ptr %frame, i64 1)
  %scratch = call ptr @frame_part(ptr %frame, i64 3)
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %kn, %next ]
  %at = phi ptr [ %table, %entry ], [ %after, %next ]
  %lock = phi i1 [ %held, %entry ], [ %lockn, %next ]
  %end = icmp eq i64 %k, %count
  br i1 %end, label %done, label %step
step:
  %code = load i64, ptr %at
  %w0p = getelementptr i64, ptr %at, i64 1
  %w1p = getelementptr i64, ptr %at, i64 2
  %w2p = getelementptr i64, ptr %at, i64 3
  %w3p = getelementptr i64, ptr %at, i64 4
  %w4p = getelementptr i64, ptr %at, i64 5
  switch i64 %code, label %collect [ ; $STEP_COLLECT
    i64 $STEP_EMPTY, label %layout3
    i64 $STEP_VIEW, label %layout3
    i64 $STEP_KEPT, label %layout3
    i64 $STEP_BLOB, label %layout3
    i64 $STEP_ENSURE, label %layout5
    i64 $STEP_DUPLICATE, label %duplicate
    i64 $STEP_RELEASE, label %release
    i64 $STEP_LAUNCH, label %launch
    i64 $STEP_LIST, label %list
    i64 $STEP_LOCK, label %take
    i64 $STEP_UNLOCK, label %give
  ]
next:
  %after = phi ptr [ %lend, %made ], [ %w2p, %duplicated ], [ %rend, %release ],
              [ %oend, %launched ], [ %send, %listed ], [ %w0p, %take ], [ %w0p, %give ], [ %cend, %collected ]
  %lockn = phi i1 [ %lock, %made ], [ %lock, %duplicated ], [ %lock, %release ],
             [ %lock, %launched ], [ %lock, %listed ], [ true, %take ], [ false, %give ], [ %lock, %collected ]
  %kn = add i64 %k, 1
  br label %loop
done:
  ret i32 0

; Steps with a layout, after three words or five.
layout3:
  br label %layout
layout5:
  br label %layout
layout:
  %words = phi i64 [ 4, %layout3 ], [ 6, %layout5 ]
  %rankp = getelementptr i64, ptr %at, i64 %words
  %rank = load i64, ptr %rankp
  %lwords = getelementptr i64, ptr %rankp, i64 1
  %extents = shl i64 %rank, 1
  %lend = getelementptr i64, ptr %lwords, i64 %extents
  %sizes = call ptr @step_numbers(ptr %frame, ptr %lwords, i64 %extents, i64 0)
  %strides = getelementptr i64, ptr %sizes, i64 %rank
  %w0 = load i64, ptr %w0p
  %w1 = load i64, ptr %w1p
  %w2 = load i64, ptr %w2p
  %dtype = trunc i64 %w1 to i32
  %slot = getelementptr ptr, ptr %handles, i64 %w0
  switch i64 %code, label %ensure [
    i64 $STEP_EMPTY, label %empty
    i64 $STEP_VIEW, label %view
    i64 $STEP_KEPT, label %kept
    i64 $STEP_BLOB, label %blob
  ]
empty:
  %bytes = call i64 @step_number(ptr %frame, i64 %w2)
  %ecode = call i32 @stepwell_empty(i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, i64 %bytes, ptr %slot)
  br label %check
view:
  %source = call ptr @step_handle(ptr %frame, i64 %w1)
  %offset = call i64 @step_number(ptr %frame, i64 %w2)
  %vcode = call i32 @aoti_torch__reinterpret_tensor(ptr %source, i64 %rank, ptr %sizes, ptr %strides, i64 %offset, ptr %slot)
  br label %check
kept:
  %arena = call ptr @frame_part(ptr %frame, i64 5)
  %kdata = call i64 @step_memory(ptr %frame, i64 %w2)
  %kptr = inttoptr i64 %kdata to ptr
  %keptv = call ptr @stepwell_arena_view(ptr %arena, i64 %w0, ptr %kptr, i64 %rank, ptr %sizes, ptr %strides, i32 %dtype)
  %nokept = icmp eq ptr %keptv, null
  %kcode = zext i1 %nokept to i32
  br label %check
blob:
  %bdata = call i64 @step_memory(ptr %frame, i64 %w2)
  %bptr = inttoptr i64 %bdata to ptr
  %bcode = call i32 @stepwell_from_blob(ptr %bptr, i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, ptr %slot)
  br label %check
check:
  %mcode = phi i32 [ %ecode, %empty ], [ %vcode, %view ], [ %kcode, %kept ], [ %bcode, %blob ], [ %acode, %adapted ]
  %mbad = icmp ne i32 %mcode, 0
  br i1 %mbad, label %unmade, label %made
made:
  br label %next
unmade:
  ; a failing call may have written there
  %owned = icmp ne i64 %code, $STEP_ENSURE
  %slotted = icmp ne i64 %code, $STEP_KEPT
  %clear = and i1 %owned, %slotted
  br i1 %clear, label %forget, label %failed
forget:
  store ptr null, ptr %slot
  br label %failed
ensure:
  %tensor = call ptr @step_handle(ptr %frame, i64 %w0)
  %found = call i64 @stepwell_compare(ptr %tensor, i64 %w1, i64 %rank, ptr %sizes, ptr %strides)
  %fits = icmp eq i64 %found, 0
  br i1 %fits, label %adapted, label %differs
differs:
  br i1 %lock, label %adapt, label %lockfirst
lockfirst:
  %t0 = load ptr, ptr %thread
  call void @PyEval_RestoreThread(ptr %t0)
  br label %adapt
adapt:
  %dcode = call i32 @step_adapt(ptr %frame, i64 %w0, i64 %found, ptr %w0p, ptr %sizes, ptr %strides)
  br i1 %lock, label %adapted, label %unlockafter
unlockafter:
  %t1 = call ptr @PyEval_SaveThread()
  store ptr %t1, ptr %thread
  br label %adapted
adapted:
  %acode = phi i32 [ 0, %ensure ], [ %dcode, %adapt ], [ %dcode, %unlockafter ]
  br label %check

duplicate:
  %dw0 = load i64, ptr %w0p
  %dw1 = load i64, ptr %w1p
  %dsource = call ptr @step_handle(ptr %frame, i64 %dw1)
  %dslot = getelementptr ptr, ptr %handles, i64 %dw0
  %duplicatecode = call i32 @aoti_torch_new_tensor_handle(ptr %dsource, ptr %dslot)
  %dbad = icmp ne i32 %duplicatecode, 0
  br i1 %dbad, label %undone, label %duplicated
undone:
  store ptr null, ptr %dslot
  br label %failed
duplicated:
  br label %next

release:
  %rn = load i64, ptr %w0p
  %rend = getelementptr i64, ptr %w1p, i64 %rn
  call void @step_release(ptr %frame, ptr %w1p, i64 %rn)
  br label %next

launch:
  %function = load i64, ptr %w0p
  %on = load i64, ptr %w1p
  %otwice = shl i64 %on, 1
  %oend = getelementptr i64, ptr %w2p, i64 %otwice
  %functions = call ptr @frame_part(ptr %frame, i64 7)
  %kernelp = getelementptr ptr, ptr %functions, i64 %function
  %kernel = load ptr, ptr %kernelp
  %ocode = call i32 @step_operands(ptr %frame, ptr %w2p, i64 %on, ptr %scratch)
  %obad = icmp ne i32 %ocode, 0
  br i1 %obad, label %unread, label %launched
launched:
  call void %kernel(ptr %scratch)
  br label %next

list:
  %lfunction = load i64, ptr %w0p
  %ln = load i64, ptr %w1p
  %lm = load i64, ptr %w2p
  %entries = load i64, ptr %w3p
  %ltwice = shl i64 %ln, 1
  %lsizes = getelementptr i64, ptr %w4p, i64 %ltwice
  %send = getelementptr i64, ptr %lsizes, i64 %lm
  %lfunctions = call ptr @frame_part(ptr %frame, i64 7)
  %lkernelp = getelementptr ptr, ptr %lfunctions, i64 %lfunction
  %lkernel = load ptr, ptr %lkernelp
  %lcode = call i32 @step_operands(ptr %frame, ptr %w4p, i64 %ln, ptr %scratch)
  %lbad = icmp ne i32 %lcode, 0
  br i1 %lbad, label %unread, label %listed
listed:
  %sizestable = call ptr @step_numbers(ptr %frame, ptr %lsizes, i64 %lm, i64 %ln)
  call void %lkernel(ptr %scratch, ptr %sizestable, i64 %entries)
  br label %next

take:
  %t2 = load ptr, ptr %thread
  call void @PyEval_RestoreThread(ptr %t2)
  br label %next
give:
  %t3 = call ptr @PyEval_SaveThread()
  store ptr %t3, ptr %thread
  br label %next

collect:
  %cn = load i64, ptr %w1p
  %cend = getelementptr i64, ptr %w2p, i64 %cn
  %ccode = call i32 @step_collect(ptr %frame, ptr %w0p)
  %cbad = icmp ne i32 %ccode, 0
  br i1 %cbad, label %failed, label %collected
collected:
  br label %next

unread:
  %unreadcode = phi i32 [ %ocode, %launch ], [ %lcode, %list ]
  %nomemory = icmp sle i32 %unreadcode, $NO_MEMORY
  br i1 %nomemory, label %null, label %failed
null:
  br i1 %lock, label %saynull, label %locknull
locknull:
  %t5 = load ptr, ptr %thread
  call void @PyEval_RestoreThread(ptr %t5)
  br label %saynull
saynull:
  %which32 = sub i32 $NO_MEMORY, %unreadcode
  %which = sext i32 %which32 to i64
  %error = load ptr, ptr @PyExc_RuntimeError
  %e = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %error, ptr @null_text, i64 %which)
  br label %out

failed:
  br i1 %lock, label %out, label %relock
relock:
  %t4 = load ptr, ptr %thread
  call void @PyEval_RestoreThread(ptr %t4)
  br label %out
out:
  ret i32 -1
}
