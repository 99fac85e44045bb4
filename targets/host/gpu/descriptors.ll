; Descriptors of a launch: whether the hardware can have them, and encoding them as CUDA's driver does.
;
; - The site of a launch, one for each launch of a program that takes descriptors, is { i64 busy, i64 n, [6 x i64],
;   [n x { i64 position, i64 rank, i64 bytes, i64, [12 x i64] key, [128 x i8] map }] }, at a multiple of 64 bytes. A
;   descriptor is at `position` among the values of the launch's record: its address, `rank` sizes, `rank` strides in
;   elements of `bytes`. `map` is what it was encoded to last, from `key`: the address of its box, and those values.
; - Boxes are those of a variant of a kernel: [n x { i64 element, i64 swizzle, [5 x i64] sizes, i64 }], with numbers of
;   CUDA's driver for the type of elements and the swizzle.

declare i32 @cuTensorMapEncodeTiled(ptr, i32, i32, ptr, ptr, ptr, ptr, ptr, i32, i32, i32, i32)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Whether the hardware can have the descriptors of a launch, given its site and its values: 0; 1 where an address or a
; step is no multiple of 16 bytes, a step is 0 or too long, or a size is 0; $TOO_LONG for a size that coordinates do not
; count to.
define i32 @stepwell_gpu_describable(ptr %site, ptr %values) {
entry:
  %np = getelementptr i64, ptr %site, i64 1
  %n = load i64, ptr %np
  %first = getelementptr i8, ptr %site, i64 $SITE_HEAD
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %in, %next ]
  %bad = phi i1 [ false, %entry ], [ %bad1, %next ]
  %end = icmp eq i64 %i, %n
  br i1 %end, label %done, label %one
one:
  %at = mul i64 %i, $DESCRIPTOR_STATE
  %state = getelementptr i8, ptr %first, i64 %at
  %position = load i64, ptr %state
  %rp = getelementptr i64, ptr %state, i64 1
  %rank = load i64, ptr %rp
  %bp = getelementptr i64, ptr %state, i64 2
  %bytes = load i64, ptr %bp
  %words = getelementptr i64, ptr %values, i64 %position
  %base = load i64, ptr %words
  %low = and i64 %base, 15
  %shifted = icmp ne i64 %low, 0
  %bad0 = or i1 %bad, %shifted
  %sizes = getelementptr i64, ptr %words, i64 1
  %strides = getelementptr i64, ptr %sizes, i64 %rank
  %last = sub i64 %rank, 1
  br label %dims
dims:
  %d = phi i64 [ 0, %one ], [ %dn, %fits ]
  %bad1 = phi i1 [ %bad0, %one ], [ %bad3, %fits ]
  %all = icmp eq i64 %d, %rank
  br i1 %all, label %next, label %dim
dim:
  %sp = getelementptr i64, ptr %sizes, i64 %d
  %size = load i64, ptr %sp
  %long = icmp sgt i64 %size, 2147483647
  br i1 %long, label %toolong, label %fits
fits:
  %none = icmp slt i64 %size, 1
  %bad2 = or i1 %bad1, %none
  %tp = getelementptr i64, ptr %strides, i64 %d
  %stride = load i64, ptr %tp
  %step = mul i64 %stride, %bytes
  %rest = and i64 %step, 15
  %uneven = icmp ne i64 %rest, 0
  %less = sub i64 %step, 1
  %far = icmp uge i64 %less, 1099511627775
  %wrong = or i1 %uneven, %far
  %counts = icmp ne i64 %d, %last
  %matters = and i1 %wrong, %counts
  %bad3 = or i1 %bad2, %matters
  %dn = add i64 %d, 1
  br label %dims
next:
  %in = add i64 %i, 1
  br label %loop
done:
  %answer = zext i1 %bad to i32
  ret i32 %answer
toolong:
  ret i32 $TOO_LONG
}

; Encodes the descriptors of a launch into `maps`, at a multiple of 64 bytes, 128 bytes each: 0, or the driver's code.
; What is as in the last launch of the site is copied; while another thread encodes there, it is encoded anew.
define i32 @stepwell_gpu_maps(ptr %site, ptr %values, ptr %boxes, ptr %maps) {
entry:
  %busy = atomicrmw xchg ptr %site, i64 1 acquire
  %own = icmp eq i64 %busy, 0
  %np = getelementptr i64, ptr %site, i64 1
  %n = load i64, ptr %np
  %first = getelementptr i8, ptr %site, i64 $SITE_HEAD
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %in, %next ]
  %end = icmp eq i64 %i, %n
  br i1 %end, label %done, label %one
one:
  %at = mul i64 %i, $DESCRIPTOR_STATE
  %state = getelementptr i8, ptr %first, i64 %at
  %position = load i64, ptr %state
  %rp = getelementptr i64, ptr %state, i64 1
  %rank = load i64, ptr %rp
  %words = getelementptr i64, ptr %values, i64 %position
  %twice = shl i64 %rank, 1
  %count = add i64 %twice, 1
  %bat = mul i64 %i, $BOX_BYTES
  %box = getelementptr i8, ptr %boxes, i64 %bat
  %mat = mul i64 %i, 128
  %map = getelementptr i8, ptr %maps, i64 %mat
  %key = getelementptr i64, ptr %state, i64 4
  %kept = getelementptr i8, ptr %state, i64 128
  br i1 %own, label %look, label %encode
look:
  %known = load ptr, ptr %key
  %same = icmp eq ptr %known, %box
  br i1 %same, label %compare, label %encode
compare:
  %j = phi i64 [ 0, %look ], [ %jn, %equal ]
  %through = icmp eq i64 %j, %count
  br i1 %through, label %copy, label %word
word:
  %wp = getelementptr i64, ptr %words, i64 %j
  %w = load i64, ptr %wp
  %jn = add i64 %j, 1
  %kp = getelementptr i64, ptr %key, i64 %jn
  %k = load i64, ptr %kp
  %equals = icmp eq i64 %w, %k
  br i1 %equals, label %equal, label %encode
equal:
  br label %compare
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %map, ptr %kept, i64 128, i1 false)
  br label %next
encode:
  %code = call i32 @encode_map(ptr %state, ptr %words, ptr %box, ptr %map)
  %refused = icmp ne i32 %code, 0
  br i1 %refused, label %failed, label %encoded
encoded:
  br i1 %own, label %keep, label %next
keep:
  store ptr %box, ptr %key
  %kw = getelementptr i64, ptr %key, i64 1
  %bytes = shl i64 %count, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %kw, ptr %words, i64 %bytes, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %kept, ptr %map, i64 128, i1 false)
  br label %next
next:
  %in = add i64 %i, 1
  br label %loop
failed:
  br label %done
done:
  %result = phi i32 [ 0, %loop ], [ %code, %failed ]
  br i1 %own, label %unlock, label %out
unlock:
  store atomic i64 0, ptr %site release, align 8
  br label %out
out:
  ret i32 %result
}

; Encodes one descriptor: 0, or the driver's code. The driver wants dimensions from the last to the first, and the
; strides of all but the last in bytes.
define internal i32 @encode_map(ptr %state, ptr %words, ptr %box, ptr %map) {
entry:
  %dims = alloca [5 x i64]
  %steps = alloca [5 x i64]
  %parts = alloca [5 x i32]
  %ones = alloca [5 x i32]
  %rp = getelementptr i64, ptr %state, i64 1
  %rank = load i64, ptr %rp
  %bp = getelementptr i64, ptr %state, i64 2
  %bytes = load i64, ptr %bp
  %base = load ptr, ptr %words
  %sizes = getelementptr i64, ptr %words, i64 1
  %strides = getelementptr i64, ptr %sizes, i64 %rank
  %element64 = load i64, ptr %box
  %element = trunc i64 %element64 to i32
  %sp = getelementptr i64, ptr %box, i64 1
  %swizzle64 = load i64, ptr %sp
  %swizzle = trunc i64 %swizzle64 to i32
  %boxes = getelementptr i64, ptr %box, i64 2
  br label %loop
loop:
  %d = phi i64 [ 0, %entry ], [ %dn, %next ]
  %end = icmp eq i64 %d, %rank
  br i1 %end, label %call, label %one
one:
  %dn = add i64 %d, 1
  %from = sub i64 %rank, %dn
  %zp = getelementptr i64, ptr %sizes, i64 %from
  %size = load i64, ptr %zp
  %dp = getelementptr i64, ptr %dims, i64 %d
  store i64 %size, ptr %dp
  %xp = getelementptr i64, ptr %boxes, i64 %from
  %part64 = load i64, ptr %xp
  %part = trunc i64 %part64 to i32
  %pp = getelementptr i32, ptr %parts, i64 %d
  store i32 %part, ptr %pp
  %op = getelementptr i32, ptr %ones, i64 %d
  store i32 1, ptr %op
  %last = icmp eq i64 %d, 0
  br i1 %last, label %next, label %step
step:
  %tp = getelementptr i64, ptr %strides, i64 %from
  %stride = load i64, ptr %tp
  %far = mul i64 %stride, %bytes
  %before = sub i64 %d, 1
  %fp = getelementptr i64, ptr %steps, i64 %before
  store i64 %far, ptr %fp
  br label %next
next:
  br label %loop
call:
  %rank32 = trunc i64 %rank to i32
  %code = call i32 @cuTensorMapEncodeTiled(ptr %map, i32 %element, i32 %rank32, ptr %base, ptr %dims, ptr %steps, ptr %parts, ptr %ones,
                                           i32 0, i32 %swizzle, i32 $L2_PROMOTION, i32 0)
  ret i32 %code
}
