; What a call reports: sizes outside of their ranges, relations of sizes that do not hold, checks of kernels.

declare i32 @snprintf(ptr, i64, ptr, ...)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare ptr @stepwell_c_text(ptr)

@range_text = internal constant [60 x i8] c"size %lld at dim=%d is not in the range %lld to %lld for %s\00"
@plain_text = internal constant [3 x i8] c"%s\00"
; A mutex of the C library.
@checks_lock = internal global [64 x i8] zeroinitializer, align 64

; 1, and an error, where a size is outside of the range that the program was compiled for.
define i32 @stepwell_c_range(ptr %model, ptr %label, i32 %dim, i64 %size, i64 %low, i64 %high) {
entry:
  %small = icmp slt i64 %size, %low
  %large = icmp sgt i64 %size, %high
  %outside = or i1 %small, %large
  br i1 %outside, label %failed, label %done
failed:
  %text = call ptr @stepwell_c_text(ptr %model)
  %e = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr @range_text, i64 %size, i32 %dim, i64 %low, i64 %high, ptr %label)
  ret i32 1
done:
  ret i32 0
}

; 1, and the message as the error, unless the condition holds.
define i32 @stepwell_c_require(ptr %model, i1 %holds, ptr %message) {
entry:
  br i1 %holds, label %done, label %failed
failed:
  %text = call ptr @stepwell_c_text(ptr %model)
  %e = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr @plain_text, ptr %message)
  ret i32 1
done:
  ret i32 0
}

; Kernels note the first check that fails in one place of the process: one call at a time runs a program that has checks.
define void @stepwell_c_lock() {
  %l = call i32 @pthread_mutex_lock(ptr @checks_lock)
  ret void
}

; The end of that.
define void @stepwell_c_unlock() {
  %l = call i32 @pthread_mutex_unlock(ptr @checks_lock)
  ret void
}

; 1, and its message as the error, where a check of a kernel failed.
define i32 @stepwell_c_poll(ptr %model, ptr %slot, ptr %values, ptr %messages) {
entry:
  %number = atomicrmw xchg ptr %slot, i32 0 monotonic
  %none = icmp eq i32 %number, 0
  br i1 %none, label %done, label %failed
failed:
  %k = sext i32 %number to i64
  %at = getelementptr ptr, ptr %messages, i64 %k
  %before = getelementptr i8, ptr %at, i64 -8
  %message = load ptr, ptr %before
  %first = load i64, ptr %values
  %nextp = getelementptr i8, ptr %values, i64 8
  %second = load i64, ptr %nextp
  %text = call ptr @stepwell_c_text(ptr %model)
  %e = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 $ERROR_BYTES, ptr %message, i64 %first, i64 %second)
  ret i32 1
done:
  ret i32 0
}
