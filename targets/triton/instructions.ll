; Functions of NVIDIA's device library (libdevice) that are one instruction each. To parse the whole library takes 25 ms a kernel; toolchain.py
; links this file where it has all that a kernel calls. Whether denormals of 32 bits count as 0 is asked as the library asks it.

@stepwell_ftz = private unnamed_addr constant [11 x i8] c"__CUDA_FTZ\00"
declare i32 @__nvvm_reflect(ptr)

define float @__nv_exp2f(float %x) alwaysinline nounwind {
  %flag = call i32 @__nvvm_reflect(ptr @stepwell_ftz)
  %flush = icmp ne i32 %flag, 0
  br i1 %flush, label %yes, label %no
yes:
  %a = call float @llvm.nvvm.ex2.approx.ftz.f(float %x)
  br label %end
no:
  %b = call float @llvm.nvvm.ex2.approx.f(float %x)
  br label %end
end:
  %r = phi float [ %a, %yes ], [ %b, %no ]
  ret float %r
}

define float @__nv_rsqrtf(float %x) alwaysinline nounwind {
  %flag = call i32 @__nvvm_reflect(ptr @stepwell_ftz)
  %flush = icmp ne i32 %flag, 0
  br i1 %flush, label %yes, label %no
yes:
  %a = call float @llvm.nvvm.rsqrt.approx.ftz.f(float %x)
  br label %end
no:
  %b = call float @llvm.nvvm.rsqrt.approx.f(float %x)
  br label %end
end:
  %r = phi float [ %a, %yes ], [ %b, %no ]
  ret float %r
}

define float @__nv_floorf(float %x) alwaysinline nounwind {
  %flag = call i32 @__nvvm_reflect(ptr @stepwell_ftz)
  %flush = icmp ne i32 %flag, 0
  br i1 %flush, label %yes, label %no
yes:
  %a = call float @llvm.nvvm.floor.ftz.f(float %x)
  br label %end
no:
  %b = call float @llvm.nvvm.floor.f(float %x)
  br label %end
end:
  %r = phi float [ %a, %yes ], [ %b, %no ]
  ret float %r
}

define float @__nv_ceilf(float %x) alwaysinline nounwind {
  %flag = call i32 @__nvvm_reflect(ptr @stepwell_ftz)
  %flush = icmp ne i32 %flag, 0
  br i1 %flush, label %yes, label %no
yes:
  %a = call float @llvm.nvvm.ceil.ftz.f(float %x)
  br label %end
no:
  %b = call float @llvm.nvvm.ceil.f(float %x)
  br label %end
end:
  %r = phi float [ %a, %yes ], [ %b, %no ]
  ret float %r
}

define double @__nv_floor(double %x) alwaysinline nounwind {
  %r = call double @llvm.nvvm.floor.d(double %x)
  ret double %r
}

define double @__nv_ceil(double %x) alwaysinline nounwind {
  %r = call double @llvm.nvvm.ceil.d(double %x)
  ret double %r
}

define double @__nv_rsqrt(double %x) alwaysinline nounwind {
  %r = call double @llvm.nvvm.rsqrt.approx.d(double %x)
  ret double %r
}

define i32 @__nv_umulhi(i32 %x, i32 %y) alwaysinline nounwind {
  %r = call i32 @llvm.nvvm.mulhi.ui(i32 %x, i32 %y)
  ret i32 %r
}

define i64 @__nv_umul64hi(i64 %x, i64 %y) alwaysinline nounwind {
  %r = call i64 @llvm.nvvm.mulhi.ull(i64 %x, i64 %y)
  ret i64 %r
}

declare double @llvm.nvvm.ceil.d(double)
declare double @llvm.nvvm.floor.d(double)
declare double @llvm.nvvm.rsqrt.approx.d(double)
declare float @llvm.nvvm.ceil.f(float)
declare float @llvm.nvvm.ceil.ftz.f(float)
declare float @llvm.nvvm.ex2.approx.f(float)
declare float @llvm.nvvm.ex2.approx.ftz.f(float)
declare float @llvm.nvvm.floor.f(float)
declare float @llvm.nvvm.floor.ftz.f(float)
declare float @llvm.nvvm.rsqrt.approx.f(float)
declare float @llvm.nvvm.rsqrt.approx.ftz.f(float)
declare i32 @llvm.nvvm.mulhi.ui(i32, i32)
declare i64 @llvm.nvvm.mulhi.ull(i64, i64)
