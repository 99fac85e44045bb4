; The functions of the C interface; the header says what they do (tools/package/c/header.py).
;
; A package is { i32 entries, i32 levels, ptr needs, ptr level names, ptr functions, ptr entries, i64 state bytes, ptr state }: what
; processors need for each level, the best one first; the functions of each level, by entry; what the signature says of each entry.

@stepwell_c_package = external hidden constant i8
declare ptr @calloc(i64, i64)
declare void @free(ptr)
declare i32 @snprintf(ptr, i64, ptr, ...)
declare i32 @strcmp(ptr, ptr)
declare i64 @stepwell_c_features(ptr)
declare i32 @stepwell_c_begin(ptr)
declare void @stepwell_c_end(ptr)
declare i32 @stepwell_c_enter(ptr)
declare void @stepwell_c_leave(ptr)
declare i32 @stepwell_c_restore(ptr)
declare ptr @stepwell_c_memory_of(ptr, ptr, i64)
declare void @stepwell_c_free(ptr)
declare ptr @stepwell_c_text(ptr)
declare ptr @stepwell_c_take(ptr, i64)
declare void @stepwell_c_drop(ptr)
declare void @stepwell_c_threads(i32)
declare void @stepwell_c_stop()
declare void @stepwell_c_forget()

@models = internal global i64 0
@level_text = internal constant [90 x i8] c"this machine has none of the instruction sets that the model was compiled for, such as %s\00"
@entry_text = internal constant [47 x i8] c"there is no entry %d: the model has %d of them\00"
@inputs_text = internal constant [39 x i8] c"%s: expected %d inputs, got %d tensors\00"
@results_text = internal constant [40 x i8] c"%s: expected %d results, got %d tensors\00"
@nothing = internal constant [1 x i8] zeroinitializer
@no_model_text = internal constant [46 x i8] c"there is no model: no memory when it was made\00"

; A new model, or null without memory. What is wrong otherwise is the model's error.
define ptr @$PREFIX_open() {
  %model = call ptr @stepwell_c_open(i32 0, ptr null)
  ret ptr %model
}

; The same, on a device and a stream.
define ptr @stepwell_c_open(i32 %device, ptr %stream) {
entry:
  %model = call ptr @calloc(i64 1, i64 $MODEL_BYTES)
  %none = icmp eq ptr %model, null
  br i1 %none, label %failed, label %count
failed:
  ret ptr null
count:
  %before = atomicrmw add ptr @models, i64 1 acq_rel
  %levelp = getelementptr i8, ptr %model, i64 8
  store i32 -1, ptr %levelp
  %devicep = getelementptr i8, ptr %model, i64 $DEVICE_AT
  store i32 %device, ptr %devicep
  %streamp = getelementptr i8, ptr %model, i64 $STREAM_AT
  store ptr %stream, ptr %streamp
  %levelsp = getelementptr i8, ptr @stepwell_c_package, i64 4
  %levels = load i32, ptr %levelsp
  %needsp = getelementptr i8, ptr @stepwell_c_package, i64 8
  %needs = load ptr, ptr %needsp
  %has = call i64 @stepwell_c_features(ptr %model)
  br label %head
head:
  %k = phi i32 [ 0, %count ], [ %next, %other ]
  %more = icmp slt i32 %k, %levels
  br i1 %more, label %try, label %nowhere
try:
  %wide = sext i32 %k to i64
  %needp = getelementptr i64, ptr %needs, i64 %wide
  %need = load i64, ptr %needp
  %met = and i64 %need, %has
  %all = icmp eq i64 %met, %need
  br i1 %all, label %found, label %other
other:
  %next = add i32 %k, 1
  br label %head
nowhere:
  %text = call ptr @stepwell_c_text(ptr %model)
  %first = load i8, ptr %text
  %told = icmp ne i8 %first, 0
  br i1 %told, label %done, label %tell
tell:
  %namesp = getelementptr i8, ptr @stepwell_c_package, i64 16
  %names = load ptr, ptr %namesp
  %name = load ptr, ptr %names
  %e = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr @level_text, ptr %name)
  ret ptr %model
found:
  store i32 %k, ptr %levelp
  %began = call i32 @stepwell_c_begin(ptr %model)
  %refused = icmp ne i32 %began, 0
  br i1 %refused, label %close, label %done
close:
  store i32 -1, ptr %levelp
  ret ptr %model
done:
  ret ptr %model
}

; Ends a model; null is none.
define void @$PREFIX_close(ptr %model) {
entry:
  %none = icmp eq ptr %model, null
  br i1 %none, label %end, label %some
some:
  call void @stepwell_c_drop(ptr %model)
  call void @stepwell_c_end(ptr %model)
  call void @free(ptr %model)
  %before = atomicrmw sub ptr @models, i64 1 acq_rel
  %last = icmp eq i64 %before, 1
  br i1 %last, label %stop, label %end
stop:
  call void @stepwell_c_stop()
  call void @stepwell_c_forget()
  br label %end
end:
  ret void
}

; The text of the last error, empty where the last call went well.
define ptr @$PREFIX_error(ptr %model) {
entry:
  %none = icmp eq ptr %model, null
  br i1 %none, label %missing, label %some
missing:
  ret ptr @no_model_text
some:
  %text = call ptr @stepwell_c_text(ptr %model)
  ret ptr %text
}

; The level of code that runs here, "" for none.
define ptr @$PREFIX_level(ptr %model) {
entry:
  %levelp = getelementptr i8, ptr %model, i64 8
  %level = load i32, ptr %levelp
  %none = icmp slt i32 %level, 0
  br i1 %none, label %nowhere, label %some
nowhere:
  ret ptr @nothing
some:
  %k = sext i32 %level to i64
  %namesp = getelementptr i8, ptr @stepwell_c_package, i64 16
  %names = load ptr, ptr %namesp
  %namep = getelementptr ptr, ptr %names, i64 %k
  %name = load ptr, ptr %namep
  ret ptr %name
}

; How many entries there are.
define i32 @$PREFIX_entries() {
  %count = load i32, ptr @stepwell_c_package
  ret i32 %count
}

; What the signature says of an entry; null for a number that there is none of.
define ptr @$PREFIX_signature(i32 %which) {
entry:
  %count = load i32, ptr @stepwell_c_package
  %there = icmp ult i32 %which, %count
  br i1 %there, label %some, label %none
some:
  %k = sext i32 %which to i64
  %infosp = getelementptr i8, ptr @stepwell_c_package, i64 32
  %infos = load ptr, ptr %infosp
  %info = getelementptr [32 x i8], ptr %infos, i64 %k
  ret ptr %info
none:
  ret ptr null
}

; The number of the entry of that name, or -1.
define i32 @$PREFIX_find(ptr %name) {
entry:
  %count = load i32, ptr @stepwell_c_package
  br label %head
head:
  %k = phi i32 [ 0, %entry ], [ %next, %other ]
  %more = icmp slt i32 %k, %count
  br i1 %more, label %try, label %none
try:
  %info = call ptr @$PREFIX_signature(i32 %k)
  %own = load ptr, ptr %info
  %order = call i32 @strcmp(ptr %own, ptr %name)
  %same = icmp eq i32 %order, 0
  br i1 %same, label %found, label %other
other:
  %next = add i32 %k, 1
  br label %head
found:
  ret i32 %k
none:
  ret i32 -1
}

; Calls the function of an entry, with mode 0 to say what results will be, with 1 to compute them.
define internal i32 @api_call(ptr %model, i32 %which, ptr %inputs, i32 %given, ptr %results, i32 %taken, i32 %mode) {
entry:
  %none = icmp eq ptr %model, null
  br i1 %none, label %nomodel, label %some
nomodel:
  ret i32 1
some:
  %levelp = getelementptr i8, ptr %model, i64 8
  %level = load i32, ptr %levelp
  %nowhere = icmp slt i32 %level, 0
  br i1 %nowhere, label %nomodel, label %begin
begin:
  %text = call ptr @stepwell_c_text(ptr %model)
  store i8 0, ptr %text
  %info = call ptr @$PREFIX_signature(i32 %which)
  %unknown = icmp eq ptr %info, null
  br i1 %unknown, label %noentry, label %known
noentry:
  %count = load i32, ptr @stepwell_c_package
  %e0 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr @entry_text, i32 %which, i32 %count)
  ret i32 1
known:
  %name = load ptr, ptr %info
  %inputsp = getelementptr i8, ptr %info, i64 8
  %inputcount = load i32, ptr %inputsp
  %samecount = icmp eq i32 %inputcount, %given
  br i1 %samecount, label %counted, label %othercount
othercount:
  %e1 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr @inputs_text, ptr %name, i32 %inputcount, i32 %given)
  ret i32 1
counted:
  %resultsp = getelementptr i8, ptr %info, i64 12
  %resultcount = load i32, ptr %resultsp
  %sameresults = icmp eq i32 %resultcount, %taken
  br i1 %sameresults, label %run, label %otherresults
otherresults:
  %e2 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr @results_text, ptr %name, i32 %resultcount, i32 %taken)
  ret i32 1
run:
  %entries = load i32, ptr @stepwell_c_package
  %row = mul i32 %level, %entries
  %place = add i32 %row, %which
  %k = sext i32 %place to i64
  %functionsp = getelementptr i8, ptr @stepwell_c_package, i64 24
  %functions = load ptr, ptr %functionsp
  %functionp = getelementptr ptr, ptr %functions, i64 %k
  %function = load ptr, ptr %functionp
  %entered = call i32 @stepwell_c_enter(ptr %model)
  %outside = icmp ne i32 %entered, 0
  br i1 %outside, label %nomodel, label %inside
inside:
  %code = call i32 %function(ptr %model, ptr %inputs, ptr %results, i32 %mode)
  call void @stepwell_c_leave(ptr %model)
  call void @stepwell_c_drop(ptr %model)
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %end, label %fine
fine:
  store i8 0, ptr %text
  br label %end
end:
  ret i32 %code
}

; Says what results will be.
define i32 @$PREFIX_results(ptr %model, i32 %which, ptr %inputs, i32 %given, ptr %results, i32 %taken) {
  %code = call i32 @api_call(ptr %model, i32 %which, ptr %inputs, i32 %given, ptr %results, i32 %taken, i32 0)
  ret i32 %code
}

; Computes results.
define i32 @$PREFIX_run(ptr %model, i32 %which, ptr %inputs, i32 %given, ptr %results, i32 %taken) {
  %code = call i32 @api_call(ptr %model, i32 %which, ptr %inputs, i32 %given, ptr %results, i32 %taken, i32 1)
  ret i32 %code
}

; Gives the updated buffers of a model the values that they were exported with.
define i32 @$PREFIX_reset(ptr %model) {
entry:
  %none = icmp eq ptr %model, null
  br i1 %none, label %failed, label %ask
ask:
  %levelp = getelementptr i8, ptr %model, i64 8
  %level = load i32, ptr %levelp
  %nowhere = icmp slt i32 %level, 0
  br i1 %nowhere, label %failed, label %enter
enter:
  %entered = call i32 @stepwell_c_enter(ptr %model)
  %outside = icmp ne i32 %entered, 0
  br i1 %outside, label %failed, label %restore
restore:
  %code = call i32 @stepwell_c_restore(ptr %model)
  call void @stepwell_c_leave(ptr %model)
  ret i32 %code
failed:
  ret i32 1
}

; How many threads calls may run on.
define void @$PREFIX_threads(i32 %count) {
  call void @stepwell_c_threads(i32 %count)
  ret void
}

; Frees a tensor that run_dlpack made: { tensor, ptr context, ptr deleter }, whose context is its memory.
define internal void @api_delete(ptr %managed) {
  %contextp = getelementptr i8, ptr %managed, i64 48
  %memory = load ptr, ptr %contextp
  call void @stepwell_c_free(ptr %memory)
  call void @free(ptr %managed)
  ret void
}

; A tensor with room for so many dimensions and without memory; null, and an error, where there is none.
define internal ptr @api_managed(ptr %model, i32 %rank) {
entry:
  %n = sext i32 %rank to i64
  %words = shl i64 %n, 4
  %bytes = add i64 %words, 64
  %new = call ptr @stepwell_c_take(ptr %model, i64 %bytes)
  %none = icmp eq ptr %new, null
  br i1 %none, label %failed, label %fill
failed:
  ret ptr null
fill:
  store ptr null, ptr %new
  %sizes = getelementptr i8, ptr %new, i64 64
  %strides = getelementptr i64, ptr %sizes, i64 %n
  %sizesp = getelementptr i8, ptr %new, i64 24
  store ptr %sizes, ptr %sizesp
  %stridesp = getelementptr i8, ptr %new, i64 32
  store ptr %strides, ptr %stridesp
  %contextp = getelementptr i8, ptr %new, i64 48
  store ptr null, ptr %contextp
  %deleterp = getelementptr i8, ptr %new, i64 56
  store ptr @api_delete, ptr %deleterp
  ret ptr %new
}

; Gives a tensor memory for its elements: 1, and an error, where there is none.
define internal i32 @api_allocate(ptr %model, ptr %managed) {
entry:
  %sizesp = getelementptr i8, ptr %managed, i64 24
  %sizes = load ptr, ptr %sizesp
  %rankp = getelementptr i8, ptr %managed, i64 16
  %rank = load i32, ptr %rankp
  %stridesp = getelementptr i8, ptr %managed, i64 32
  %strides = load ptr, ptr %stridesp
  %n = sext i32 %rank to i64
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %next, %body ]
  %last = phi i64 [ 0, %entry ], [ %sum, %body ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %body, label %take
body:
  %sizep = getelementptr i64, ptr %sizes, i64 %k
  %size = load i64, ptr %sizep
  %stridep = getelementptr i64, ptr %strides, i64 %k
  %stride = load i64, ptr %stridep
  %before = sub i64 %size, 1
  %reach = mul i64 %before, %stride
  %sum = add i64 %last, %reach
  %next = add i64 %k, 1
  br label %head
take:
  %elements = add i64 %last, 1
  %bitsp = getelementptr i8, ptr %managed, i64 21
  %bits = load i8, ptr %bitsp
  %wide = zext i8 %bits to i64
  %each = lshr i64 %wide, 3
  %bytes = mul i64 %elements, %each
  %memory = call ptr @stepwell_c_memory_of(ptr %model, ptr %managed, i64 %bytes)
  store ptr %memory, ptr %managed
  %contextp = getelementptr i8, ptr %managed, i64 48
  store ptr %memory, ptr %contextp
  %none = icmp eq ptr %memory, null
  %code = zext i1 %none to i32
  ret i32 %code
}

; Runs an entry whose results are new tensors; where it fails there are none.
define i32 @$PREFIX_run_dlpack(ptr %model, i32 %which, ptr %inputs, i32 %given, ptr %results, i32 %taken) {
entry:
  %info = call ptr @$PREFIX_signature(i32 %which)
  %none = icmp eq ptr %info, null
  br i1 %none, label %plain, label %count
count:
  %countp = getelementptr i8, ptr %info, i64 12
  %wanted = load i32, ptr %countp
  %same = icmp eq i32 %wanted, %taken
  %real = icmp ne ptr %model, null
  %good = and i1 %same, %real
  br i1 %good, label %begin, label %plain
plain:
  %wrong = call i32 @$PREFIX_results(ptr %model, i32 %which, ptr %inputs, i32 %given, ptr %results, i32 %taken)
  ret i32 1
begin:
  %n = sext i32 %taken to i64
  %valuesp = getelementptr i8, ptr %info, i64 24
  %values = load ptr, ptr %valuesp
  br label %head
head:
  %k = phi i64 [ 0, %begin ], [ %next, %made ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %make, label %describe
make:
  %rankp = getelementptr [32 x i8], ptr %values, i64 %k, i64 16
  %rank = load i32, ptr %rankp
  %new = call ptr @api_managed(ptr %model, i32 %rank)
  %at = getelementptr ptr, ptr %results, i64 %k
  store ptr %new, ptr %at
  %without = icmp eq ptr %new, null
  br i1 %without, label %undo, label %made
made:
  %next = add i64 %k, 1
  br label %head
describe:
  %told = call i32 @$PREFIX_results(ptr %model, i32 %which, ptr %inputs, i32 %given, ptr %results, i32 %taken)
  %refused = icmp ne i32 %told, 0
  br i1 %refused, label %undo, label %allocate
allocate:
  %j = phi i64 [ 0, %describe ], [ %after, %filled ]
  %left = icmp slt i64 %j, %n
  br i1 %left, label %fill, label %run
fill:
  %jat = getelementptr ptr, ptr %results, i64 %j
  %managed = load ptr, ptr %jat
  %code = call i32 @api_allocate(ptr %model, ptr %managed)
  %short = icmp ne i32 %code, 0
  br i1 %short, label %undo, label %filled
filled:
  %after = add i64 %j, 1
  br label %allocate
run:
  %done = call i32 @$PREFIX_run(ptr %model, i32 %which, ptr %inputs, i32 %given, ptr %results, i32 %taken)
  %failed = icmp ne i32 %done, 0
  br i1 %failed, label %undo, label %fine
fine:
  ret i32 0
undo:
  %made_ = phi i64 [ %k, %make ], [ %n, %describe ], [ %n, %fill ], [ %n, %run ]
  br label %back
back:
  %i = phi i64 [ 0, %undo ], [ %then, %drop ]
  %some = icmp slt i64 %i, %made_
  br i1 %some, label %drop, label %end
drop:
  %iat = getelementptr ptr, ptr %results, i64 %i
  %old = load ptr, ptr %iat
  call void @api_delete(ptr %old)
  store ptr null, ptr %iat
  %then = add i64 %i, 1
  br label %back
end:
  ret i32 1
}
