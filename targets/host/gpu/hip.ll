; HIP, for GPUs of AMD's, in the place of CUDA's driver: what runtime.ll and descriptors.ll call of that, in terms of
; libamdhip64.

declare i32 @hipGetDevice(ptr)
declare i32 @hipModuleLaunchKernel(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)

; HIP has no contexts: that of a thread is the number of its current device and 1, since null means none.
define internal i32 @cuCtxGetCurrent(ptr %context) {
entry:
  %place = alloca i32
  store i32 0, ptr %place
  %code = call i32 @hipGetDevice(ptr %place)
  %number = load i32, ptr %place
  %from1 = add i32 %number, 1
  %word = sext i32 %from1 to i64
  store i64 %word, ptr %context
  ret i32 %code
}

; A thread always has a context, so that none is asked for: hipErrorInvalidContext.
define internal i32 @cuDevicePrimaryCtxRetain(ptr %context, i32 %device) {
  ret i32 201
}

; As above.
define internal i32 @cuCtxSetCurrent(ptr %context) {
  ret i32 201
}

; No kernel takes descriptors: hipErrorNotSupported.
define internal i32 @cuTensorMapEncodeTiled(ptr %map, i32 %element, i32 %rank, ptr %base, ptr %dims, ptr %steps, ptr %parts, ptr %ones,
                                            i32 %interleave, i32 %swizzle, i32 %promotion, i32 %fill) {
  ret i32 801
}

; The configuration is a CUlaunchConfig (runtime.ll). Launches do not overlap: its attributes are left out.
define internal i32 @cuLaunchKernelEx(ptr %config, ptr %function, ptr %params, ptr %extra) {
  %c = load { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32 }, ptr %config
  %gx = extractvalue { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32 } %c, 0
  %gy = extractvalue { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32 } %c, 1
  %gz = extractvalue { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32 } %c, 2
  %tx = extractvalue { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32 } %c, 3
  %ty = extractvalue { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32 } %c, 4
  %tz = extractvalue { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32 } %c, 5
  %shared = extractvalue { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32 } %c, 6
  %stream = extractvalue { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32 } %c, 7
  %code = call i32 @hipModuleLaunchKernel(ptr %function, i32 %gx, i32 %gy, i32 %gz, i32 %tx, i32 %ty, i32 %tz, i32 %shared, ptr %stream,
                                          ptr %params, ptr %extra)
  ret i32 %code
}
