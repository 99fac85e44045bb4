; Arguments: taking them out of the caller's list, and comparing tensors with what the program was compiled for.

@PyExc_TypeError = external global ptr
@PyList_Type = external global [0 x i8]
@THPVariableClass = external global ptr
declare ptr @PyErr_Format(ptr, ptr, ...)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare void @Py_IncRef(ptr)
declare i32 @aoti_torch_get_dtype(ptr, ptr)
declare i32 @aoti_torch_get_device_type(ptr, ptr)
declare i32 @aoti_torch_get_device_index(ptr, ptr)
declare i32 @aoti_torch_get_dim(ptr, ptr)
declare i32 @aoti_torch_get_sizes(ptr, ptr)
declare i32 @aoti_torch_get_strides(ptr, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

@count_text = internal constant [38 x i8] c"expected %zd arguments, %zd are given\00"
@tensor_text = internal constant [47 x i8] c"argument %zd must be a torch.Tensor, got %.80s\00"

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

; What is added to the numbers of GPUs that programs name: packages are loaded on other GPUs than they were made for.
@stepwell_first_gpu = global i32 0

; Compares a tensor with an element type, sizes and strides: 0 equal, 1 only strides differ, 2 anything else differs.
; Strides of dimensions of size 1, and of tensors without elements, do not matter. %kind holds the element type in its
; low 10 bits (1023: any), above them 0 for the CPU, 1 + the number of a GPU less @stepwell_first_gpu, or 255 for any
; device.
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
  %first = load i32, ptr @stepwell_first_gpu
  %named = sub i32 %number, 1
  %want = add i32 %named, %first
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
  %tensor = getelementptr i8, ptr %object, i64 $HANDLE_OFFSET
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
