; The kernel of the program that selftest.py runs.

; y[i] = 2 x[i], of n > 0 elements.
define void @stepwell_selftest(ptr %x, ptr %y, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %in, %loop ]
  %px = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %px
  %d = fadd float %v, %v
  %py = getelementptr float, ptr %y, i64 %i
  store float %d, ptr %py
  %in = add i64 %i, 1
  %more = icmp slt i64 %in, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}
