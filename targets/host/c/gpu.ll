; A model on a GPU of NVIDIA's. All that is asked of the driver goes through libcuda, which is opened by its name; a model has the primary
; context of its device, a stream, and copies of weights and updated buffers there.
;
; The package goes on behind its state: { ptr capabilities, i64 weights' bytes, i64 kernels, ptr kernels }: the capability that each level
; is for (90; -80 for PTX), and for each kernel three variants { ptr code, ptr name, i64 threads, i64 shared }. The first relies on
; addresses and sizes that are multiples of 16, the second on nothing, the third on addresses. A model has { ptr function, ptr module } for
; each.
; The record of a launch is { i64 x, i64 y, i64 z, i64 count, [count x i64] values }: the grid, and the arguments, each in 8 bytes.

@stepwell_c_package = external hidden constant i8
@stepwell_c_weights = external hidden constant i8
declare ptr @calloc(i64, i64)
declare ptr @dlopen(ptr, i32)
declare ptr @dlsym(ptr, ptr)
declare void @free(ptr)
declare i32 @snprintf(ptr, i64, ptr, ...)
declare ptr @stepwell_c_open(i32, ptr)
declare ptr @stepwell_c_take(ptr, i64)
declare ptr @stepwell_c_text(ptr)

@library_name = internal constant [13 x i8] c"libcuda.so.1\00"
@name0 = internal constant [7 x i8] c"cuInit\00"
@name1 = internal constant [12 x i8] c"cuDeviceGet\00"
@name2 = internal constant [21 x i8] c"cuDeviceGetAttribute\00"
@name3 = internal constant [25 x i8] c"cuDevicePrimaryCtxRetain\00"
@name4 = internal constant [29 x i8] c"cuDevicePrimaryCtxRelease_v2\00"
@name5 = internal constant [20 x i8] c"cuCtxPushCurrent_v2\00"
@name6 = internal constant [19 x i8] c"cuCtxPopCurrent_v2\00"
@name7 = internal constant [14 x i8] c"cuMemAlloc_v2\00"
@name8 = internal constant [13 x i8] c"cuMemFree_v2\00"
@name9 = internal constant [21 x i8] c"cuMemcpyHtoDAsync_v2\00"
@name10 = internal constant [21 x i8] c"cuMemcpyDtoDAsync_v2\00"
@name11 = internal constant [16 x i8] c"cuMemAllocAsync\00"
@name12 = internal constant [15 x i8] c"cuMemFreeAsync\00"
@name13 = internal constant [17 x i8] c"cuModuleLoadData\00"
@name14 = internal constant [20 x i8] c"cuModuleGetFunction\00"
@name15 = internal constant [15 x i8] c"cuModuleUnload\00"
@name16 = internal constant [19 x i8] c"cuFuncSetAttribute\00"
@name17 = internal constant [15 x i8] c"cuLaunchKernel\00"
@name18 = internal constant [17 x i8] c"cuGetErrorString\00"
@name19 = internal constant [20 x i8] c"cuStreamSynchronize\00"
@names = internal constant [20 x ptr] [ptr @name0, ptr @name1, ptr @name2, ptr @name3, ptr @name4, ptr @name5, ptr @name6, ptr @name7,
  ptr @name8, ptr @name9, ptr @name10, ptr @name11, ptr @name12, ptr @name13, ptr @name14, ptr @name15, ptr @name16, ptr @name17,
  ptr @name18, ptr @name19]
@functions = internal global [20 x ptr] zeroinitializer

@no_library_text = internal constant [59 x i8] c"the CUDA driver cannot be opened: there is no libcuda.so.1\00"
@no_function_text = internal constant [41 x i8] c"the CUDA driver has no %s: it is too old\00"
@refused_text = internal constant [7 x i8] c"%s: %s\00"
@code_text = internal constant [31 x i8] c"%s: the CUDA driver's error %d\00"
@capability_text = internal constant [71 x i8] c"the model was compiled for GPUs of capability %d, and device %d has %d\00"

; A function of the driver, by its number.
define internal ptr @driver(i64 %k) {
  %at = getelementptr ptr, ptr @functions, i64 %k
  %function = load atomic ptr, ptr %at acquire, align 8
  ret ptr %function
}

; Finds the functions of the driver: 1, and an error, where there is none.
define internal i32 @driver_open(ptr %model) {
entry:
  %last = call ptr @driver(i64 19)
  %known = icmp ne ptr %last, null
  br i1 %known, label %done, label %open
open:
  %text = call ptr @stepwell_c_text(ptr %model)
  %library = call ptr @dlopen(ptr @library_name, i32 2)
  %none = icmp eq ptr %library, null
  br i1 %none, label %missing, label %head
missing:
  %e0 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr @no_library_text)
  ret i32 1
head:
  %k = phi i64 [ 0, %open ], [ %next, %store ]
  %more = icmp slt i64 %k, 20
  br i1 %more, label %look, label %done
look:
  %namep = getelementptr ptr, ptr @names, i64 %k
  %name = load ptr, ptr %namep
  %function = call ptr @dlsym(ptr %library, ptr %name)
  %absent = icmp eq ptr %function, null
  br i1 %absent, label %old, label %store
old:
  %e1 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr @no_function_text, ptr %name)
  ret i32 1
store:
  %at = getelementptr ptr, ptr @functions, i64 %k
  store atomic ptr %function, ptr %at release, align 8
  %next = add i64 %k, 1
  br label %head
done:
  ret i32 0
}

; 1, and the driver's words as the error, for a code that is not 0. %k is the number of the function that gave it.
define internal i32 @driver_check(ptr %model, i32 %code, i64 %k) {
entry:
  %good = icmp eq i32 %code, 0
  br i1 %good, label %done, label %bad
bad:
  %text = call ptr @stepwell_c_text(ptr %model)
  %namep = getelementptr ptr, ptr @names, i64 %k
  %name = load ptr, ptr %namep
  %out = alloca ptr
  store ptr null, ptr %out
  %ask = call ptr @driver(i64 18)
  %r = call i32 %ask(i32 %code, ptr %out)
  %words = load ptr, ptr %out
  %none = icmp eq ptr %words, null
  br i1 %none, label %number, label %say
say:
  %e0 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr @refused_text, ptr %name, ptr %words)
  ret i32 1
number:
  %e1 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr @code_text, ptr %name, i32 %code)
  ret i32 1
done:
  ret i32 0
}

; What stands in a word of a model.
define internal ptr @word(ptr %model, i64 %at) {
  %place = getelementptr i8, ptr %model, i64 %at
  %found = load ptr, ptr %place
  ret ptr %found
}

; The levels that the device of a model runs, one bit each: those of its own major capability, up to its minor one, and PTX, whose
; capability is negative, of any that is not later. The model has the context of the device afterwards. None, and an error, where there is no driver or no such device.
define i64 @stepwell_c_features(ptr %model) {
entry:
  %opened = call i32 @driver_open(ptr %model)
  %closed = icmp ne i32 %opened, 0
  br i1 %closed, label %failed, label %init
init:
  %fi = call ptr @driver(i64 0)
  %ci = call i32 %fi(i32 0)
  %bi = call i32 @driver_check(ptr %model, i32 %ci, i64 0)
  %badi = icmp ne i32 %bi, 0
  br i1 %badi, label %failed, label %get
get:
  %devicep = getelementptr i8, ptr %model, i64 $DEVICE_AT
  %number = load i32, ptr %devicep
  %device = alloca i32
  %fg = call ptr @driver(i64 1)
  %cg = call i32 %fg(ptr %device, i32 %number)
  %bg = call i32 @driver_check(ptr %model, i32 %cg, i64 1)
  %badg = icmp ne i32 %bg, 0
  br i1 %badg, label %failed, label %ask
ask:
  ; CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
  %handle = load i32, ptr %device
  %major = alloca i32
  %minor = alloca i32
  %fa = call ptr @driver(i64 2)
  %ca = call i32 %fa(ptr %major, i32 75, i32 %handle)
  %cb = call i32 %fa(ptr %minor, i32 76, i32 %handle)
  %both = or i32 %ca, %cb
  %ba = call i32 @driver_check(ptr %model, i32 %both, i64 2)
  %bada = icmp ne i32 %ba, 0
  br i1 %bada, label %failed, label %retain
retain:
  %contextp = getelementptr i8, ptr %model, i64 $CONTEXT_AT
  %fr = call ptr @driver(i64 3)
  %cr = call i32 %fr(ptr %contextp, i32 %handle)
  %br = call i32 @driver_check(ptr %model, i32 %cr, i64 3)
  %badr = icmp ne i32 %br, 0
  br i1 %badr, label %failed, label %compare
compare:
  %mj = load i32, ptr %major
  %mn = load i32, ptr %minor
  %tens = mul i32 %mj, 10
  %has = add i32 %tens, %mn
  %levelsp = getelementptr i8, ptr @stepwell_c_package, i64 4
  %levels = load i32, ptr %levelsp
  %capabilitiesp = getelementptr i8, ptr @stepwell_c_package, i64 56
  %capabilities = load ptr, ptr %capabilitiesp
  br label %head
head:
  %k = phi i32 [ 0, %compare ], [ %next, %body ]
  %mask = phi i64 [ 0, %compare ], [ %more, %body ]
  %left = icmp slt i32 %k, %levels
  br i1 %left, label %body, label %end
body:
  %wide = sext i32 %k to i64
  %needp = getelementptr i32, ptr %capabilities, i64 %wide
  %need = load i32, ptr %needp
  %needmajor = udiv i32 %need, 10
  %same = icmp eq i32 %needmajor, %mj
  %enough = icmp sle i32 %need, %has
  %binary = and i1 %same, %enough
  %positive = sub i32 0, %need
  %ptx = icmp slt i32 %need, 0
  %later = icmp sle i32 %positive, %has
  %fromptx = and i1 %ptx, %later
  %runs = or i1 %binary, %fromptx
  %bit = shl i64 1, %wide
  %with = or i64 %mask, %bit
  %more = select i1 %runs, i64 %with, i64 %mask
  %next = add i32 %k, 1
  br label %head
end:
  %nothing = icmp eq i64 %mask, 0
  br i1 %nothing, label %tell, label %done
tell:
  %text = call ptr @stepwell_c_text(ptr %model)
  %first = load i32, ptr %capabilities
  %e = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr @capability_text, i32 %first, i32 %number, i32 %has)
  ret i64 0
done:
  ret i64 %mask
failed:
  ret i64 0
}

; Makes the context of a model the current one: 1, and an error, where the driver refuses.
define i32 @stepwell_c_enter(ptr %model) {
  %context = call ptr @word(ptr %model, i64 $CONTEXT_AT)
  %f = call ptr @driver(i64 5)
  %c = call i32 %f(ptr %context)
  %bad = call i32 @driver_check(ptr %model, i32 %c, i64 5)
  ret i32 %bad
}

; Gives the memory of a call back, in the order of the stream, and makes the context from before the current one.
define void @stepwell_c_leave(ptr %model) {
entry:
  %stream = call ptr @word(ptr %model, i64 $STREAM_AT)
  %free = call ptr @driver(i64 12)
  %list = getelementptr i8, ptr %model, i64 $BLOCKS_AT
  br label %head
head:
  %node = load ptr, ptr %list
  %done = icmp eq ptr %node, null
  br i1 %done, label %pop, label %one
one:
  %next = load ptr, ptr %node
  store ptr %next, ptr %list
  %blockp = getelementptr i8, ptr %node, i64 8
  %block = load ptr, ptr %blockp
  %c = call i32 %free(ptr %block, ptr %stream)
  call void @free(ptr %node)
  br label %head
pop:
  %out = alloca ptr
  %f = call ptr @driver(i64 6)
  %p = call i32 %f(ptr %out)
  ret void
}

; Memory of the device until the end of the call; null, and an error, where there is none.
define ptr @stepwell_c_gpu_block(ptr %model, i64 %bytes) {
entry:
  %node = call ptr @stepwell_c_take(ptr %model, i64 16)
  %none = icmp eq ptr %node, null
  br i1 %none, label %failed, label %allocate
allocate:
  %stream = call ptr @word(ptr %model, i64 $STREAM_AT)
  %out = alloca ptr
  %some = add i64 %bytes, 64
  %f = call ptr @driver(i64 11)
  %c = call i32 %f(ptr %out, i64 %some, ptr %stream)
  %bad = call i32 @driver_check(ptr %model, i32 %c, i64 11)
  %refused = icmp ne i32 %bad, 0
  br i1 %refused, label %drop, label %done
drop:
  call void @free(ptr %node)
  br label %failed
failed:
  ret ptr null
done:
  %block = load ptr, ptr %out
  %blockp = getelementptr i8, ptr %node, i64 8
  store ptr %block, ptr %blockp
  %list = getelementptr i8, ptr %model, i64 $BLOCKS_AT
  %next = load ptr, ptr %list
  store ptr %next, ptr %node
  store ptr %node, ptr %list
  ret ptr %block
}

; Memory that stays, written from the program: 1, and an error, where there is none. The context is the model's.
define internal i32 @upload(ptr %model, ptr %from, i64 %bytes, i64 %at) {
entry:
  %place = getelementptr i8, ptr %model, i64 %at
  %known = load ptr, ptr %place
  %fresh = icmp eq ptr %known, null
  br i1 %fresh, label %allocate, label %copy
allocate:
  %f = call ptr @driver(i64 7)
  %c = call i32 %f(ptr %place, i64 %bytes)
  %bad = call i32 @driver_check(ptr %model, i32 %c, i64 7)
  %refused = icmp ne i32 %bad, 0
  br i1 %refused, label %failed, label %copy
copy:
  %to = load ptr, ptr %place
  %stream = call ptr @word(ptr %model, i64 $STREAM_AT)
  %g = call ptr @driver(i64 9)
  %d = call i32 %g(ptr %to, ptr %from, i64 %bytes, ptr %stream)
  %wrong = call i32 @driver_check(ptr %model, i32 %d, i64 9)
  ret i32 %wrong
failed:
  ret i32 1
}

; Weights, updated buffers and room for functions: 1, and an error, where there is no memory.
define i32 @stepwell_c_begin(ptr %model) {
entry:
  %entered = call i32 @stepwell_c_enter(ptr %model)
  %outside = icmp ne i32 %entered, 0
  br i1 %outside, label %failed, label %room
room:
  %countp = getelementptr i8, ptr @stepwell_c_package, i64 72
  %count = load i64, ptr %countp
  %entries = mul i64 %count, 3
  %least = add i64 %entries, 1
  %functions = call ptr @calloc(i64 %least, i64 16)
  %functionsp = getelementptr i8, ptr %model, i64 $FUNCTIONS_AT
  store ptr %functions, ptr %functionsp
  %none = icmp eq ptr %functions, null
  br i1 %none, label %leave, label %weights
weights:
  %bytesp = getelementptr i8, ptr @stepwell_c_package, i64 64
  %bytes = load i64, ptr %bytesp
  %w = call i32 @upload(ptr %model, ptr @stepwell_c_weights, i64 %bytes, i64 $WEIGHTS_AT)
  %badw = icmp ne i32 %w, 0
  br i1 %badw, label %leave, label %state
state:
  %s = call i32 @stepwell_c_restore(ptr %model)
  call void @stepwell_c_leave(ptr %model)
  ret i32 %s
leave:
  call void @stepwell_c_leave(ptr %model)
  br label %failed
failed:
  ret i32 1
}

; Gives updated buffers the values that they were exported with.
define i32 @stepwell_c_restore(ptr %model) {
entry:
  %statesp = getelementptr i8, ptr @stepwell_c_package, i64 40
  %bytes = load i64, ptr %statesp
  %stateless = icmp eq i64 %bytes, 0
  br i1 %stateless, label %done, label %copy
copy:
  %firstp = getelementptr i8, ptr @stepwell_c_package, i64 48
  %first = load ptr, ptr %firstp
  %code = call i32 @upload(ptr %model, ptr %first, i64 %bytes, i64 40)
  ret i32 %code
done:
  ret i32 0
}

; Frees memory of the device, if there is some.
define internal void @forget(ptr %memory) {
entry:
  %none = icmp eq ptr %memory, null
  br i1 %none, label %end, label %drop
drop:
  %f = call ptr @driver(i64 8)
  %c = call i32 %f(ptr %memory)
  br label %end
end:
  ret void
}

; Frees what a model has on the device, when its work there is done.
define void @stepwell_c_end(ptr %model) {
entry:
  %context = call ptr @word(ptr %model, i64 $CONTEXT_AT)
  %none = icmp eq ptr %context, null
  br i1 %none, label %done, label %enter
enter:
  %entered = call i32 @stepwell_c_enter(ptr %model)
  %outside = icmp ne i32 %entered, 0
  br i1 %outside, label %done, label %wait
wait:
  %stream = call ptr @word(ptr %model, i64 $STREAM_AT)
  %fs = call ptr @driver(i64 19)
  %cs = call i32 %fs(ptr %stream)
  %arena = call ptr @word(ptr %model, i64 24)
  call void @forget(ptr %arena)
  %state = call ptr @word(ptr %model, i64 40)
  call void @forget(ptr %state)
  %weights = call ptr @word(ptr %model, i64 $WEIGHTS_AT)
  call void @forget(ptr %weights)
  %functions = call ptr @word(ptr %model, i64 $FUNCTIONS_AT)
  %without = icmp eq ptr %functions, null
  br i1 %without, label %leave, label %modules
modules:
  %countp = getelementptr i8, ptr @stepwell_c_package, i64 72
  %count = load i64, ptr %countp
  %all = mul i64 %count, 3
  %unload = call ptr @driver(i64 15)
  br label %head
head:
  %k = phi i64 [ 0, %modules ], [ %next, %after ]
  %more = icmp slt i64 %k, %all
  br i1 %more, label %one, label %drop
one:
  %at = getelementptr [2 x ptr], ptr %functions, i64 %k, i64 1
  %module = load ptr, ptr %at
  %unloaded = icmp eq ptr %module, null
  br i1 %unloaded, label %after, label %close
close:
  %cu = call i32 %unload(ptr %module)
  br label %after
after:
  %next = add i64 %k, 1
  br label %head
drop:
  call void @free(ptr %functions)
  br label %leave
leave:
  call void @stepwell_c_leave(ptr %model)
  %devicep = getelementptr i8, ptr %model, i64 $DEVICE_AT
  %number = load i32, ptr %devicep
  %device = alloca i32
  %fg = call ptr @driver(i64 1)
  %cg = call i32 %fg(ptr %device, i32 %number)
  %handle = load i32, ptr %device
  %fr = call ptr @driver(i64 4)
  %cr = call i32 %fr(i32 %handle)
  br label %done
done:
  ret void
}

; The arena, of at least so many bytes; null, and an error, where there is no memory. Work that uses the old one ends first.
define ptr @stepwell_c_gpu_arena(ptr %model, i64 %bytes) {
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
  call void @forget(ptr %old)
  store ptr null, ptr %place
  store i64 0, ptr %sizep
  %f = call ptr @driver(i64 7)
  %c = call i32 %f(ptr %place, i64 %bytes)
  %bad = call i32 @driver_check(ptr %model, i32 %c, i64 7)
  %refused = icmp ne i32 %bad, 0
  br i1 %refused, label %failed, label %done
failed:
  ret ptr null
done:
  store i64 %bytes, ptr %sizep
  %new = load ptr, ptr %place
  ret ptr %new
}

; Copies memory of the device, in the order of the stream: 1, and an error, where the driver refuses.
define i32 @stepwell_c_gpu_copy(ptr %model, ptr %to, ptr %from, i64 %bytes) {
entry:
  %same = icmp eq ptr %to, %from
  %nothing = icmp sle i64 %bytes, 0
  %skip = or i1 %same, %nothing
  br i1 %skip, label %done, label %copy
copy:
  %stream = call ptr @word(ptr %model, i64 $STREAM_AT)
  %f = call ptr @driver(i64 10)
  %c = call i32 %f(ptr %to, ptr %from, i64 %bytes, ptr %stream)
  %bad = call i32 @driver_check(ptr %model, i32 %c, i64 10)
  ret i32 %bad
done:
  ret i32 0
}

; Memory of a result that the caller deletes: of the device, in its primary context.
define ptr @stepwell_c_memory_of(ptr %model, ptr %tensor, i64 %bytes) {
entry:
  %entered = call i32 @stepwell_c_enter(ptr %model)
  %outside = icmp ne i32 %entered, 0
  br i1 %outside, label %failed, label %allocate
allocate:
  %out = alloca ptr
  %some = add i64 %bytes, 64
  %f = call ptr @driver(i64 7)
  %c = call i32 %f(ptr %out, i64 %some)
  call void @stepwell_c_leave(ptr %model)
  %bad = call i32 @driver_check(ptr %model, i32 %c, i64 7)
  %refused = icmp ne i32 %bad, 0
  br i1 %refused, label %failed, label %done
failed:
  ret ptr null
done:
  %new = load ptr, ptr %out
  ret ptr %new
}

; Frees it. The driver knows an address whatever context is current, if one is.
define void @stepwell_c_free(ptr %memory) {
  call void @forget(ptr %memory)
  ret void
}

; Loads a variant of a kernel: 1, and an error, where the driver refuses. %slot is what the model has for it.
define internal i32 @load(ptr %model, ptr %variant, ptr %slot) {
entry:
  %code = load ptr, ptr %variant
  %modulep = getelementptr ptr, ptr %slot, i64 1
  %fl = call ptr @driver(i64 13)
  %cl = call i32 %fl(ptr %modulep, ptr %code)
  %bl = call i32 @driver_check(ptr %model, i32 %cl, i64 13)
  %badl = icmp ne i32 %bl, 0
  br i1 %badl, label %failed, label %look
look:
  %module = load ptr, ptr %modulep
  %namep = getelementptr ptr, ptr %variant, i64 1
  %name = load ptr, ptr %namep
  %out = alloca ptr
  %fg = call ptr @driver(i64 14)
  %cg = call i32 %fg(ptr %out, ptr %module, ptr %name)
  %bg = call i32 @driver_check(ptr %model, i32 %cg, i64 14)
  %badg = icmp ne i32 %bg, 0
  br i1 %badg, label %failed, label %large
large:
  %function = load ptr, ptr %out
  %sharedp = getelementptr i64, ptr %variant, i64 3
  %shared = load i64, ptr %sharedp
  %asks = icmp sgt i64 %shared, 49152
  br i1 %asks, label %allow, label %keep
allow:
  ; CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  %bytes = trunc i64 %shared to i32
  %fa = call ptr @driver(i64 16)
  %ca = call i32 %fa(ptr %function, i32 8, i32 %bytes)
  %ba = call i32 @driver_check(ptr %model, i32 %ca, i64 16)
  %bada = icmp ne i32 %ba, 0
  br i1 %bada, label %failed, label %keep
keep:
  store ptr %function, ptr %slot
  ret i32 0
failed:
  ret i32 1
}

; Launches a kernel, by its number. %addresses are those that it takes for multiples of 16, or'ed, %sizes the sizes. An empty grid launches
; nothing. 1, and an error, where the driver refuses.
define i32 @stepwell_c_gpu_launch(ptr %model, i64 %kernel, ptr %record, i64 %addresses, i64 %sizes) {
entry:
  %x = load i64, ptr %record
  %yp = getelementptr i64, ptr %record, i64 1
  %y = load i64, ptr %yp
  %zp = getelementptr i64, ptr %record, i64 2
  %z = load i64, ptr %zp
  %xy = mul i64 %x, %y
  %xyz = mul i64 %xy, %z
  %empty = icmp eq i64 %xyz, 0
  br i1 %empty, label %nothing, label %choose
nothing:
  ret i32 0
choose:
  %low = and i64 %addresses, 15
  %unaligned = icmp ne i64 %low, 0
  %lowsize = and i64 %sizes, 15
  %odd = icmp ne i64 %lowsize, 0
  %some = select i1 %odd, i64 2, i64 0
  %which = select i1 %unaligned, i64 1, i64 %some
  %first = mul i64 %kernel, 3
  %number = add i64 %first, %which
  %kernelsp = getelementptr i8, ptr @stepwell_c_package, i64 80
  %kernels = load ptr, ptr %kernelsp
  %variant = getelementptr [4 x i64], ptr %kernels, i64 %number
  %functions = call ptr @word(ptr %model, i64 $FUNCTIONS_AT)
  %slot = getelementptr [2 x ptr], ptr %functions, i64 %number
  %known = load ptr, ptr %slot
  %fresh = icmp eq ptr %known, null
  br i1 %fresh, label %load, label %pack
load:
  %loaded = call i32 @load(ptr %model, ptr %variant, ptr %slot)
  %bad = icmp ne i32 %loaded, 0
  br i1 %bad, label %failed, label %pack
failed:
  ret i32 1
pack:
  %function = load ptr, ptr %slot
  %countp = getelementptr i64, ptr %record, i64 3
  %count = load i64, ptr %countp
  %all = add i64 %count, $EXTRA_ARGUMENTS
  %params = alloca ptr, i64 %all
  %null = alloca i64
  store i64 0, ptr %null
  br label %head
head:
  %i = phi i64 [ 0, %pack ], [ %next, %body ]
  %more = icmp slt i64 %i, %all
  br i1 %more, label %body, label %launch
body:
  %own = icmp slt i64 %i, %count
  %at = add i64 %i, 4
  %valuep = getelementptr i64, ptr %record, i64 %at
  %p = select i1 %own, ptr %valuep, ptr %null
  %place = getelementptr ptr, ptr %params, i64 %i
  store ptr %p, ptr %place
  %next = add i64 %i, 1
  br label %head
launch:
  %threadsp = getelementptr i64, ptr %variant, i64 2
  %threads = load i64, ptr %threadsp
  %sharedp = getelementptr i64, ptr %variant, i64 3
  %shared = load i64, ptr %sharedp
  %gx = trunc i64 %x to i32
  %gy = trunc i64 %y to i32
  %gz = trunc i64 %z to i32
  %t = trunc i64 %threads to i32
  %s = trunc i64 %shared to i32
  %stream = call ptr @word(ptr %model, i64 $STREAM_AT)
  %f = call ptr @driver(i64 17)
  %c = call i32 %f(ptr %function, i32 %gx, i32 %gy, i32 %gz, i32 %t, i32 1, i32 1, i32 %s, ptr %stream, ptr %params, ptr null)
  %wrong = call i32 @driver_check(ptr %model, i32 %c, i64 17)
  ret i32 %wrong
}

; A new model on a device and a stream of it.
define ptr @$PREFIX_open_on(i32 %device, ptr %stream) {
  %model = call ptr @stepwell_c_open(i32 %device, ptr %stream)
  ret ptr %model
}

; The stream of the calls that follow.
define void @$PREFIX_stream(ptr %model, ptr %stream) {
  %place = getelementptr i8, ptr %model, i64 $STREAM_AT
  store ptr %stream, ptr %place
  ret void
}
