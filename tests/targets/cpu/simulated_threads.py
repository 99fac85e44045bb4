"""Any number of threads on any machine: parallel regions of generated code run the threads that they ask for one after the other."""

from __future__ import annotations

import re

from stepwell.targets.cpu import jit

OPENMP = """
@thread = global i32 0
@team = global i32 1
define i32 @omp_get_max_threads() {
  ret i32 64
}
define i32 @omp_get_num_threads() {
  %n = load i32, ptr @team
  ret i32 %n
}
define i32 @omp_get_thread_num() {
  %n = load i32, ptr @thread
  ret i32 %n
}
define void @GOMP_parallel(ptr %f, ptr %context, i32 %threads, i32 %flags) {
entry:
  store i32 %threads, ptr @team
  br label %loop
loop:
  %k = phi i32 [ 0, %entry ], [ %next, %loop ]
  store i32 %k, ptr @thread
  call void %f(ptr %context)
  %next = add i32 %k, 1
  %more = icmp slt i32 %next, %threads
  br i1 %more, label %loop, label %done
done:
  store i32 0, ptr @thread
  store i32 1, ptr @team
  ret void
}
"""
"""The OpenMP functions that generated code calls; `thread` is the number of the thread that runs."""


def simulated(text: str) -> jit.Library:
    """A module whose parallel regions run on as many threads as they ask for, one after the other."""
    declared = re.compile(r"^declare .*@(GOMP_parallel|omp_get_\w+)\(.*$\n", re.MULTILINE)
    return jit.load_text(declared.sub("", text) + OPENMP)
