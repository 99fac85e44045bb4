; What instructions an Arm processor has, as the system tells it: one bit for each that a level of code may need (levels.py).

declare i64 @getauxval(i64)

; Level 8.2 (bit 0) is the atomic, rounding doubled multiply, half precision, ordered load and dot product instructions; level 8.6 (bit 1)
; is that and the products of bytes and of bfloats (I8MM, BF16).
define i64 @stepwell_c_features(ptr %model) {
  ; AT_HWCAP and AT_HWCAP2
  %first = call i64 @getauxval(i64 16)
  %second = call i64 @getauxval(i64 26)
  ; bits 8, 9, 10, 12, 15, 20 of the first: ATOMICS, FPHP, ASIMDHP, ASIMDRDM, LRCPC, ASIMDDP
  %dothas = and i64 %first, 1087232
  %dot = icmp eq i64 %dothas, 1087232
  ; bits 13, 14 of the second: I8MM, BF16
  %tileshas = and i64 %second, 24576
  %tilesall = icmp eq i64 %tileshas, 24576
  %tiles = and i1 %dot, %tilesall
  %dotbit = zext i1 %dot to i64
  %tilesbit = select i1 %tiles, i64 2, i64 0
  %bits = or i64 %dotbit, %tilesbit
  ret i64 %bits
}
