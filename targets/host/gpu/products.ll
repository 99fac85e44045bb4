; Products of matrices by the library of the GPU (products.py), as it was told once how: without the way through torch.
;
; - The site of a call is { ptr nodes }: what has been planned for it, the last first.
; - A node is { ptr next, ptr matmul, ptr set, ptr handle, ptr descriptor, [4 x ptr] layouts, ptr algorithm,
;   ptr workspace, i64 bytes, ptr bias, i64 busy, { float alpha, float beta }, [5 x i64] roles, i64 words,
;   [words x i64] key }. `matmul` and `set` are cublasLtMatmul and cublasLtMatmulDescSetAttribute; `matmul` is null where
;   the call is torch's. The layouts are those of the first factor, the second, what is added and the result. The roles
;   say which of the call's tensors these are, and which is the bias; what is added is the result where nothing is, and
;   -1 is no bias. `bias` is the address that the descriptor has, `busy` is 1 while somebody uses it.
; - The key is { context, stream, [{ dimensions, sizes, strides }] of the tensors }.

declare i32 @aoti_torch_get_data_ptr(ptr, ptr)
declare i32 @aoti_torch_get_dim(ptr, ptr)
declare i32 @aoti_torch_get_sizes(ptr, ptr)
declare i32 @aoti_torch_get_strides(ptr, ptr)

; One product of the tensors of the handles: 0, $UNPLANNED where torch shall do it (nothing has happened then), $UNKNOWN
; where nothing was planned for such tensors yet.
define i32 @stepwell_gpu_product(ptr %site, ptr %handles, i64 %count, ptr %state) {
entry:
  %key = alloca [$PRODUCT_KEY_WORDS x i64]
  %addresses = alloca [$PRODUCT_TENSORS x i64]
  %out = alloca ptr
  %sp = getelementptr i8, ptr %state, i64 8
  %stream = load ptr, ptr %sp
  %cp = getelementptr i8, ptr %state, i64 16
  %context = load i64, ptr %cp
  store i64 %context, ptr %key
  %streamed = ptrtoint ptr %stream to i64
  %k1 = getelementptr i64, ptr %key, i64 1
  store i64 %streamed, ptr %k1
  br label %tensors
tensors:
  %k = phi i64 [ 0, %entry ], [ %kn, %taken ]
  %at = phi i64 [ 2, %entry ], [ %full, %taken ]
  %together = phi i64 [ 0, %entry ], [ %more, %taken ]
  %last = icmp eq i64 %k, %count
  br i1 %last, label %find, label %tensor
tensor:
  %hp = getelementptr ptr, ptr %handles, i64 %k
  %handle = load ptr, ptr %hp
  %r1 = call i32 @aoti_torch_get_data_ptr(ptr %handle, ptr %out)
  %address = load i64, ptr %out
  %ap = getelementptr i64, ptr %addresses, i64 %k
  store i64 %address, ptr %ap
  %more = or i64 %together, %address
  %r2 = call i32 @aoti_torch_get_dim(ptr %handle, ptr %out)
  %rank = load i64, ptr %out
  %dp = getelementptr i64, ptr %key, i64 %at
  store i64 %rank, ptr %dp
  %r3 = call i32 @aoti_torch_get_sizes(ptr %handle, ptr %out)
  %sizes = load ptr, ptr %out
  %r4 = call i32 @aoti_torch_get_strides(ptr %handle, ptr %out)
  %strides = load ptr, ptr %out
  %r12 = or i32 %r1, %r2
  %r34 = or i32 %r3, %r4
  %r = or i32 %r12, %r34
  %bad = icmp ne i32 %r, 0
  %high = icmp ugt i64 %rank, $PRODUCT_RANK
  %odd = or i1 %bad, %high
  br i1 %odd, label %unplanned, label %dims
dims:
  %first = add i64 %at, 1
  %second = add i64 %first, %rank
  %full = add i64 %second, %rank
  br label %dim
dim:
  %d = phi i64 [ 0, %dims ], [ %dn, %copy ]
  %over = icmp eq i64 %d, %rank
  br i1 %over, label %taken, label %copy
copy:
  %sizep = getelementptr i64, ptr %sizes, i64 %d
  %size = load i64, ptr %sizep
  %a1 = add i64 %first, %d
  %w1 = getelementptr i64, ptr %key, i64 %a1
  store i64 %size, ptr %w1
  %stridep = getelementptr i64, ptr %strides, i64 %d
  %stride = load i64, ptr %stridep
  %a2 = add i64 %second, %d
  %w2 = getelementptr i64, ptr %key, i64 %a2
  store i64 %stride, ptr %w2
  %dn = add i64 %d, 1
  br label %dim
taken:
  %kn = add i64 %k, 1
  br label %tensors
find:
  %head = load atomic ptr, ptr %site acquire, align 8
  br label %look
look:
  %node = phi ptr [ %head, %find ], [ %next, %other ]
  %none = icmp eq ptr %node, null
  br i1 %none, label %unknown, label %compare
compare:
  %wordsp = getelementptr i64, ptr %node, i64 $NODE_WORDS
  %words = load i64, ptr %wordsp
  %alike = icmp eq i64 %words, %at
  br i1 %alike, label %word, label %other
word:
  %w = phi i64 [ 0, %compare ], [ %wn, %same ]
  %whole = icmp eq i64 %w, %words
  br i1 %whole, label %found, label %check
check:
  %kp = getelementptr i64, ptr %key, i64 %w
  %mine = load i64, ptr %kp
  %place = add i64 %w, $NODE_KEY
  %np = getelementptr i64, ptr %node, i64 %place
  %theirs = load i64, ptr %np
  %equal = icmp eq i64 %mine, %theirs
  br i1 %equal, label %same, label %other
same:
  %wn = add i64 %w, 1
  br label %word
other:
  %next = load ptr, ptr %node
  br label %look
found:
  %mp = getelementptr i64, ptr %node, i64 $NODE_MATMUL
  %matmul = load ptr, ptr %mp
  %torch = icmp eq ptr %matmul, null
  %low = and i64 %together, $PRODUCT_LOW_BITS
  %unaligned = icmp ne i64 %low, 0
  %leave = or i1 %torch, %unaligned
  br i1 %leave, label %unplanned, label %take
take:
  %busyp = getelementptr i64, ptr %node, i64 $NODE_BUSY
  %pair = cmpxchg ptr %busyp, i64 0, i64 1 acquire monotonic
  %mineNow = extractvalue { i64, i1 } %pair, 1
  br i1 %mineNow, label %added, label %unplanned
added:
  %roles = getelementptr i64, ptr %node, i64 $NODE_ROLES
  %brp = getelementptr i64, ptr %roles, i64 4
  %biasrole = load i64, ptr %brp
  %nobias = icmp slt i64 %biasrole, 0
  br i1 %nobias, label %run, label %bias
bias:
  %bap = getelementptr ptr, ptr %addresses, i64 %biasrole
  %biasaddress = load ptr, ptr %bap
  %heldp = getelementptr i64, ptr %node, i64 $NODE_BIAS
  %held = load ptr, ptr %heldp
  %kept = icmp eq ptr %held, %biasaddress
  br i1 %kept, label %run, label %set
set:
  store ptr %biasaddress, ptr %heldp
  %setp = getelementptr i64, ptr %node, i64 $NODE_SET
  %setter = load ptr, ptr %setp
  %dsp = getelementptr i64, ptr %node, i64 $NODE_DESCRIPTOR
  %ds = load ptr, ptr %dsp
  %scode = call i32 %setter(ptr %ds, i32 $BIAS_POINTER, ptr %heldp, i64 8)
  br label %run
run:
  %lp = getelementptr i64, ptr %node, i64 $NODE_HANDLE
  %lt = load ptr, ptr %lp
  %descp = getelementptr i64, ptr %node, i64 $NODE_DESCRIPTOR
  %desc = load ptr, ptr %descp
  %l0p = getelementptr i64, ptr %node, i64 $NODE_LAYOUTS
  %l0 = load ptr, ptr %l0p
  %l1p = getelementptr i64, ptr %l0p, i64 1
  %l1 = load ptr, ptr %l1p
  %l2p = getelementptr i64, ptr %l0p, i64 2
  %l2 = load ptr, ptr %l2p
  %l3p = getelementptr i64, ptr %l0p, i64 3
  %l3 = load ptr, ptr %l3p
  %algop = getelementptr i64, ptr %node, i64 $NODE_ALGORITHM
  %algo = load ptr, ptr %algop
  %workp = getelementptr i64, ptr %node, i64 $NODE_WORKSPACE
  %work = load ptr, ptr %workp
  %bytesp = getelementptr i64, ptr %node, i64 $NODE_BYTES
  %bytes = load i64, ptr %bytesp
  %alpha = getelementptr i64, ptr %node, i64 $NODE_FACTORS
  %beta = getelementptr float, ptr %alpha, i64 1
  %x = call ptr @stepwell_gpu_role(ptr %roles, i64 0, ptr %addresses)
  %y = call ptr @stepwell_gpu_role(ptr %roles, i64 1, ptr %addresses)
  %c = call ptr @stepwell_gpu_role(ptr %roles, i64 2, ptr %addresses)
  %z = call ptr @stepwell_gpu_role(ptr %roles, i64 3, ptr %addresses)
  %code = call i32 %matmul(ptr %lt, ptr %desc, ptr %alpha, ptr %x, ptr %l0, ptr %y, ptr %l1, ptr %beta, ptr %c, ptr %l2,
                           ptr %z, ptr %l3, ptr %algo, ptr %work, i64 %bytes, ptr %stream)
  store atomic i64 0, ptr %busyp release, align 8
  %refused = icmp ne i32 %code, 0
  br i1 %refused, label %unplanned, label %done
done:
  ret i32 0
unplanned:
  ret i32 $UNPLANNED
unknown:
  ret i32 $UNKNOWN
}

; The address of the tensor that has a role.
define internal ptr @stepwell_gpu_role(ptr %roles, i64 %role, ptr %addresses) {
  %rp = getelementptr i64, ptr %roles, i64 %role
  %k = load i64, ptr %rp
  %ap = getelementptr ptr, ptr %addresses, i64 %k
  %address = load ptr, ptr %ap
  ret ptr %address
}
