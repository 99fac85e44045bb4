; What native entries call around launches on a GPU, linked once a process.
;
; - The state of a call is { ptr guard, ptr stream, ptr context }: torch's device guard and current stream, and the
;   driver's context.
; - The table of a program is { ptr context, ptr workspaces, [n x 3 variants x { ptr function, i64 threads, i64 shared,
;   i64 overlaps, ptr boxes }] }, one for each context that it ran in. `workspaces` is memory that stays
;   (host.workspace), null before the first call on the default stream. `overlaps` is 1 where a launch may begin while
;   the one before it ends, `boxes` says how descriptors are encoded (descriptors.ll), null for a variant without any.
;   The second variant of a kernel relies neither on aligned addresses nor on sizes that are multiples of 16, and takes
;   the address of a tensor in the place of its descriptor; the third relies on addresses only. Entries are filled when
;   they are first needed.
; - The record of a launch is { i64 x, i64 y, i64 z, i64 count, i64 addresses, i64 filled, ptr site, [count x i64]
;   values }: the grid; the addresses that the kernel believes to be multiples of 16, or'ed, with the lowest bits of the
;   sizes of which it does so in the highest; a bit for each of the first arguments that must not be null; what is kept
;   of the launch's descriptors (descriptors.ll), null where it has none; its arguments, each in 8 bytes.

@stepwell_first_gpu = external global i32

declare i32 @aoti_torch_create_cuda_guard(i32, ptr)
declare i32 @aoti_torch_delete_cuda_guard(ptr)
declare i32 @aoti_torch_get_current_cuda_stream(i32, ptr)
declare i32 @cuCtxGetCurrent(ptr)
declare i64 @llvm.umin.i64(i64, i64)
declare i32 @cuCtxSetCurrent(ptr)
declare i32 @cuDevicePrimaryCtxRetain(ptr, i32)
declare i32 @cuLaunchKernelEx(ptr, ptr, ptr, ptr)
declare i32 @stepwell_gpu_describable(ptr, ptr)
declare i32 @stepwell_gpu_maps(ptr, ptr, ptr, ptr)
declare i32 @torch_from_blob(ptr, i64, ptr, ptr, i64, i32, i32, i32, ptr, i32, ptr, i64, ptr, ptr)

; CUlaunchConfig: the grid, the threads, shared memory, the stream, attributes and their number.
%launch_config = type { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32 }

; CUlaunchAttribute: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION is 1.
@stepwell_gpu_overlap = internal constant { i32, i32, [16 x i32] } { i32 6, i32 0, [16 x i32] [
  i32 1, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0,
  i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0] }

; The number of a GPU in this process, of the one in a program.
define i32 @stepwell_gpu_index(i32 %named) {
  %first = load i32, ptr @stepwell_first_gpu
  %device = add i32 %named, %first
  ret i32 %device
}

; Makes the device current and notes its stream and context: 0, or the code of torch or of the driver.
define i32 @stepwell_gpu_enter(i32 %named, ptr %state) {
entry:
  %device = call i32 @stepwell_gpu_index(i32 %named)
  %g = call i32 @aoti_torch_create_cuda_guard(i32 %device, ptr %state)
  %gbad = icmp ne i32 %g, 0
  br i1 %gbad, label %failed, label %guarded
guarded:
  %sp = getelementptr i8, ptr %state, i64 8
  %s = call i32 @aoti_torch_get_current_cuda_stream(i32 %device, ptr %sp)
  %sbad = icmp ne i32 %s, 0
  br i1 %sbad, label %failed, label %streamed
streamed:
  %cp = getelementptr i8, ptr %state, i64 16
  %c = call i32 @cuCtxGetCurrent(ptr %cp)
  %cbad = icmp ne i32 %c, 0
  br i1 %cbad, label %failed, label %current
current:
  %context = load ptr, ptr %cp
  %none = icmp eq ptr %context, null
  br i1 %none, label %attach, label %done
attach:
  %r = call i32 @cuDevicePrimaryCtxRetain(ptr %cp, i32 %device)
  %rbad = icmp ne i32 %r, 0
  br i1 %rbad, label %failed, label %retained
retained:
  %primary = load ptr, ptr %cp
  %a = call i32 @cuCtxSetCurrent(ptr %primary)
  ret i32 %a
done:
  ret i32 0
failed:
  %code = phi i32 [ %g, %entry ], [ %s, %guarded ], [ %c, %streamed ], [ %r, %attach ]
  ret i32 %code
}

; Drops the guard of a state, if it has one.
define void @stepwell_gpu_leave(ptr %state) {
  %guard = load ptr, ptr %state
  %none = icmp eq ptr %guard, null
  br i1 %none, label %done, label %drop
drop:
  %r = call i32 @aoti_torch_delete_cuda_guard(ptr %guard)
  store ptr null, ptr %state
  br label %done
done:
  ret void
}

; Launches a kernel, given its variants: 0, the driver's code, $MISSING where the variant has no function yet,
; $TOO_LARGE for a grid that is too large, $TOO_LONG for a tensor that is too long to be described, $NO_MAP less the
; driver's code for a descriptor that it refused. An empty grid launches nothing. A launch whose tensors cannot be
; described notes that in the addresses of its record.
define i32 @stepwell_gpu_launch(ptr %variants, ptr %record, ptr %stream) {
entry:
  %x = load i64, ptr %record
  %yp = getelementptr i64, ptr %record, i64 1
  %y = load i64, ptr %yp
  %zp = getelementptr i64, ptr %record, i64 2
  %z = load i64, ptr %zp
  %xy = mul i64 %x, %y
  %xyz = mul i64 %xy, %z
  %empty = icmp eq i64 %xyz, 0
  br i1 %empty, label %nothing, label %bounds
bounds:
  %xbig = icmp ugt i64 %x, 2147483647
  %ybig = icmp ugt i64 %y, 65535
  %zbig = icmp ugt i64 %z, 65535
  %xybig = or i1 %xbig, %ybig
  %big = or i1 %xybig, %zbig
  br i1 %big, label %toolarge, label %describe
describe:
  %ap = getelementptr i64, ptr %record, i64 4
  %sitep = getelementptr i64, ptr %record, i64 6
  %site = load ptr, ptr %sitep
  %values = getelementptr i64, ptr %record, i64 $RECORD_HEAD
  %plain = icmp eq ptr %site, null
  br i1 %plain, label %choose, label %ask
ask:
  %undescribed = call i32 @stepwell_gpu_describable(ptr %site, ptr %values)
  switch i32 %undescribed, label %refused [ i32 0, label %choose i32 1, label %unaligned1 ]
unaligned1:
  %before = load i64, ptr %ap
  %noted = or i64 %before, 1
  store i64 %noted, ptr %ap
  br label %choose
choose:
  %addresses = load i64, ptr %ap
  %low = and i64 %addresses, 15
  %unaligned = icmp ne i64 %low, 0
  %odd = icmp uge i64 %addresses, $FIRST_OF_SIZES
  %some = select i1 %odd, i64 $ADDRESSES, i64 $ALL
  %variant = select i1 %unaligned, i64 $NOTHING, i64 %some
  %place = mul i64 %variant, $VARIANT_BYTES
  %vp = getelementptr i8, ptr %variants, i64 %place
  %function = load atomic ptr, ptr %vp acquire, align 8
  %absent = icmp eq ptr %function, null
  br i1 %absent, label %missing, label %pack
pack:
  %tp = getelementptr i64, ptr %vp, i64 1
  %threads = load i64, ptr %tp
  %mp = getelementptr i64, ptr %vp, i64 2
  %shared = load i64, ptr %mp
  %np = getelementptr i64, ptr %record, i64 3
  %n = load i64, ptr %np
  %filledp = getelementptr i64, ptr %record, i64 5
  %filled = load i64, ptr %filledp
  %all = add i64 %n, $EXTRA_ARGUMENTS
  %params = alloca ptr, i64 %all
  %null = alloca ptr
  store ptr null, ptr %null
  br label %loop
loop:
  %i = phi i64 [ 0, %pack ], [ %in, %store ]
  %end = icmp eq i64 %i, %all
  br i1 %end, label %prepared, label %one
one:
  %own = icmp ult i64 %i, %n
  %word = add i64 %i, $RECORD_HEAD
  %wp = getelementptr i64, ptr %record, i64 %word
  %p = select i1 %own, ptr %wp, ptr %null
  %shift = call i64 @llvm.umin.i64(i64 %i, i64 63)
  %bits = lshr i64 %filled, %shift
  %asked = trunc i64 %bits to i1
  br i1 %asked, label %look, label %store
look:
  %address = load i64, ptr %wp
  %nowhere = icmp eq i64 %address, 0
  br i1 %nowhere, label %nomemory, label %store
store:
  %pp = getelementptr ptr, ptr %params, i64 %i
  store ptr %p, ptr %pp
  %in = add i64 %i, 1
  br label %loop
prepared:
  %xp = getelementptr i64, ptr %vp, i64 4
  %boxes = load ptr, ptr %xp
  %pointers = icmp eq ptr %boxes, null
  %direct = or i1 %plain, %pointers
  br i1 %direct, label %launch, label %encode
encode:
  %dp = getelementptr i64, ptr %site, i64 1
  %dn = load i64, ptr %dp
  %maps = alloca [128 x i8], i64 %dn, align 64
  %mcode = call i32 @stepwell_gpu_maps(ptr %site, ptr %values, ptr %boxes, ptr %maps)
  %mbad = icmp ne i32 %mcode, 0
  br i1 %mbad, label %nomap, label %place1
place1:
  %di = phi i64 [ 0, %encode ], [ %din, %placed ]
  %dend = icmp eq i64 %di, %dn
  br i1 %dend, label %launch, label %placed
placed:
  %sat = mul i64 %di, $DESCRIPTOR_STATE
  %sfrom = add i64 %sat, $SITE_HEAD
  %statep = getelementptr i8, ptr %site, i64 %sfrom
  %position = load i64, ptr %statep
  %map = getelementptr [128 x i8], ptr %maps, i64 %di
  %mp1 = getelementptr ptr, ptr %params, i64 %position
  store ptr %map, ptr %mp1
  %din = add i64 %di, 1
  br label %place1
launch:
  %gx = trunc i64 %x to i32
  %gy = trunc i64 %y to i32
  %gz = trunc i64 %z to i32
  %t = trunc i64 %threads to i32
  %m = trunc i64 %shared to i32
  %op = getelementptr i64, ptr %vp, i64 3
  %overlaps = load i64, ptr %op
  %attributes = trunc i64 %overlaps to i32
  %c0 = insertvalue %launch_config zeroinitializer, i32 %gx, 0
  %c1 = insertvalue %launch_config %c0, i32 %gy, 1
  %c2 = insertvalue %launch_config %c1, i32 %gz, 2
  %c3 = insertvalue %launch_config %c2, i32 %t, 3
  %c4 = insertvalue %launch_config %c3, i32 1, 4
  %c5 = insertvalue %launch_config %c4, i32 1, 5
  %c6 = insertvalue %launch_config %c5, i32 %m, 6
  %c7 = insertvalue %launch_config %c6, ptr %stream, 7
  %c8 = insertvalue %launch_config %c7, ptr @stepwell_gpu_overlap, 8
  %c9 = insertvalue %launch_config %c8, i32 %attributes, 9
  %config = alloca %launch_config
  store %launch_config %c9, ptr %config
  %code = call i32 @cuLaunchKernelEx(ptr %config, ptr %function, ptr %params, ptr null)
  ret i32 %code
nothing:
  ret i32 0
missing:
  ret i32 $MISSING
nomemory:
  ret i32 $NO_MEMORY
toolarge:
  ret i32 $TOO_LARGE
refused:
  ret i32 %undescribed
nomap:
  %mrefused = sub i32 $NO_MAP, %mcode
  ret i32 %mrefused
}

; A tensor over memory of a device that somebody else owns.
define i32 @stepwell_gpu_from_blob(ptr %data, i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, i32 %device, ptr %out) {
  %r = call i32 @torch_from_blob(ptr %data, i64 %rank, ptr %sizes, ptr %strides, i64 0, i32 %dtype, i32 1, i32 %device, ptr %out,
                                 i32 0, ptr null, i64 0, ptr null, ptr null)
  ret i32 %r
}
