; What instructions the processor has and the system keeps registers for: one bit for each that a level of code may need (levels.py).

; EAX, EBX or ECX (0, 1, 2) of a leaf.
define internal i64 @cpuid(i32 %leaf, i32 %sub, i32 %which) {
entry:
  %all = call { i32, i32, i32, i32 } asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(i32 %leaf, i32 %sub)
  %a = extractvalue { i32, i32, i32, i32 } %all, 0
  %b = extractvalue { i32, i32, i32, i32 } %all, 1
  %c = extractvalue { i32, i32, i32, i32 } %all, 2
  switch i32 %which, label %first [ i32 1, label %second
                                    i32 2, label %third ]
first:
  br label %end
second:
  br label %end
third:
  br label %end
end:
  %word = phi i32 [ %a, %first ], [ %b, %second ], [ %c, %third ]
  %wide = zext i32 %word to i64
  ret i64 %wide
}

; Registers that the system saves: bits 1, 2 of halves of vectors, 5 to 7 of wide ones.
define internal i64 @saved_registers() {
entry:
  %c = call i64 @cpuid(i32 1, i32 0, i32 2)
  %bit = and i64 %c, 134217728
  %has = icmp ne i64 %bit, 0
  br i1 %has, label %ask, label %none
ask:
  %pair = call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx}"(i32 0)
  %low = extractvalue { i32, i32 } %pair, 0
  %wide = zext i32 %low to i64
  ret i64 %wide
none:
  ret i64 0
}

; Level 3 (bit 0) is AVX2, FMA, F16C, BMI, BMI2 and LZCNT; level 4 (bit 1) is that and AVX512 F, DQ, CD, BW, VL.
define i64 @stepwell_c_features(ptr %model) {
entry:
  %most = call i64 @cpuid(i32 0, i32 0, i32 0)
  %old = icmp ult i64 %most, 7
  br i1 %old, label %none, label %ask
none:
  ret i64 0
ask:
  %c1 = call i64 @cpuid(i32 1, i32 0, i32 2)
  %b7 = call i64 @cpuid(i32 7, i32 0, i32 1)
  %x = call i64 @cpuid(i32 -2147483647, i32 0, i32 2)
  %registers = call i64 @saved_registers()
  ; bits 12, 28, 29 of ECX of leaf 1: FMA, AVX, F16C; 3, 5, 8 of EBX of leaf 7: BMI, AVX2, BMI2; 5 of ECX of leaf 0x80000001: LZCNT
  %c1has = and i64 %c1, 805310464
  %c1all = icmp eq i64 %c1has, 805310464
  %b7has = and i64 %b7, 296
  %b7all = icmp eq i64 %b7has, 296
  %xhas = and i64 %x, 32
  %xall = icmp ne i64 %xhas, 0
  %halves = and i64 %registers, 6
  %halvesall = icmp eq i64 %halves, 6
  %t0 = and i1 %c1all, %b7all
  %t1 = and i1 %t0, %xall
  %three = and i1 %t1, %halvesall
  ; bits 16, 17, 28, 30, 31 of EBX of leaf 7: AVX512 F, DQ, CD, BW, VL
  %wide7 = and i64 %b7, 3489857536
  %wide7all = icmp eq i64 %wide7, 3489857536
  %whole = and i64 %registers, 230
  %wholeall = icmp eq i64 %whole, 230
  %t2 = and i1 %wide7all, %wholeall
  %four = and i1 %t2, %three
  %threebit = zext i1 %three to i64
  %fourbit = select i1 %four, i64 2, i64 0
  %bits = or i64 %threebit, %fourbit
  ret i64 %bits
}
