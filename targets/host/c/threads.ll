; Parallel regions as the kernels ask for them (GOMP_parallel), by threads of our own: a pool for all models of this object.
;
; A region belongs to one thread at a time. Another thread that begins one meanwhile, and a region inside of a region, run on the thread
; that asks. Workers look for work 4000 times, some ten microseconds, before they sleep. They end with the last model. There are 256
; threads at most.

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_trylock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @getpid()
declare void @$PAUSE($PAUSE_TYPES)
declare i64 @llvm.ctpop.i64(i64)
declare i32 @llvm.smin.i32(i32, i32)
declare i32 @llvm.smax.i32(i32, i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)

; Space for a mutex (40 bytes) and for conditions (48 bytes) of the C library, which are zero at first.
@pool = internal global [4 x [64 x i8]] zeroinitializer, align 64
@pool_threads = internal global [256 x i64] zeroinitializer
@pool_seen = internal global [256 x i64] zeroinitializer
; Regions so far.
@pool_round = internal global i64 0, align 64
@pool_left = internal global i32 0, align 64
@pool_function = internal global ptr null
@pool_context = internal global ptr null
@pool_team = internal global i32 0
@pool_workers = internal global i32 0
@pool_stopping = internal global i32 0
@pool_process = internal global i32 0
; Threads of a region; 0: as many as the process may run on.
@pool_limit = internal global i32 0
@own_number = internal thread_local global i32 0
@own_team = internal thread_local global i32 1

; Protects what follows: the pool's state; one region at a time; workers wait here; who began the region waits here.
define internal ptr @pool_part(i64 %k) {
  %part = getelementptr [64 x i8], ptr @pool, i64 %k
  ret ptr %part
}

; Which thread of a region this is.
define i32 @omp_get_thread_num() {
  %n = load i32, ptr @own_number
  ret i32 %n
}

; How many threads run this region.
define i32 @omp_get_num_threads() {
  %n = load i32, ptr @own_team
  ret i32 %n
}

; How many threads a region may have.
define i32 @omp_get_max_threads() {
entry:
  %limit = load atomic i32, ptr @pool_limit monotonic, align 4
  %known = icmp sgt i32 %limit, 0
  br i1 %known, label %done, label %ask
ask:
  %mask = alloca [16 x i64], align 8
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 128, i1 false)
  %code = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  br label %head
head:
  %k = phi i64 [ 0, %ask ], [ %next, %head ]
  %sum = phi i64 [ 0, %ask ], [ %total, %head ]
  %at = getelementptr i64, ptr %mask, i64 %k
  %word = load i64, ptr %at
  %bits = call i64 @llvm.ctpop.i64(i64 %word)
  %total = add i64 %sum, %bits
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, 16
  br i1 %more, label %head, label %counted
counted:
  %narrow = trunc i64 %total to i32
  %least = call i32 @llvm.smax.i32(i32 %narrow, i32 1)
  %count = call i32 @llvm.smin.i32(i32 %least, i32 256)
  store atomic i32 %count, ptr @pool_limit monotonic, align 4
  ret i32 %count
done:
  ret i32 %limit
}

; Says how many threads run a region; 0: as many as the process may run on.
define void @stepwell_c_threads(i32 %count) {
  %least = call i32 @llvm.smax.i32(i32 %count, i32 0)
  %most = call i32 @llvm.smin.i32(i32 %least, i32 256)
  store atomic i32 %most, ptr @pool_limit monotonic, align 4
  ret void
}

; A child of a fork has no workers.
define internal void @pool_check_process() {
entry:
  %own = call i32 @getpid()
  %known = load i32, ptr @pool_process
  %same = icmp eq i32 %own, %known
  br i1 %same, label %end, label %reset
reset:
  %first = icmp eq i32 %known, 0
  br i1 %first, label %note, label %forget
forget:
  call void @llvm.memset.p0.i64(ptr @pool, i8 0, i64 256, i1 false)
  store i32 0, ptr @pool_workers
  store i32 0, ptr @pool_left
  br label %note
note:
  store i32 %own, ptr @pool_process
  br label %end
end:
  ret void
}

; Begins workers until there are so many, or the system refuses; gives how many there are. The pool's state is the caller's.
define internal i32 @pool_hire(i32 %wanted) {
entry:
  br label %head
head:
  %have = load i32, ptr @pool_workers
  %enough = icmp sge i32 %have, %wanted
  br i1 %enough, label %end, label %start
start:
  %number = add i32 %have, 1
  %k = sext i32 %number to i64
  %handle = getelementptr i64, ptr @pool_threads, i64 %k
  %seen = getelementptr i64, ptr @pool_seen, i64 %k
  %round = load atomic i64, ptr @pool_round monotonic, align 8
  store i64 %round, ptr %seen
  %argument = inttoptr i64 %k to ptr
  %code = call i32 @pthread_create(ptr %handle, ptr null, ptr @pool_work, ptr %argument)
  %refused = icmp ne i32 %code, 0
  br i1 %refused, label %end, label %count
count:
  store i32 %number, ptr @pool_workers
  br label %head
end:
  ret i32 %have
}

; What a worker does.
define internal ptr @pool_work(ptr %argument) {
entry:
  %state = call ptr @pool_part(i64 0)
  %wake = call ptr @pool_part(i64 2)
  %ready = call ptr @pool_part(i64 3)
  %k = ptrtoint ptr %argument to i64
  %number = trunc i64 %k to i32
  %seenp = getelementptr i64, ptr @pool_seen, i64 %k
  br label %next
next:
  %seen = load i64, ptr %seenp
  br label %spin
spin:
  %tries = phi i32 [ 0, %next ], [ %again, %pause ]
  %round = load atomic i64, ptr @pool_round acquire, align 8
  %same = icmp eq i64 %round, %seen
  br i1 %same, label %patient, label %sleep
patient:
  %again = add i32 %tries, 1
  %tired = icmp sgt i32 %again, 4000
  br i1 %tired, label %sleep, label %pause
pause:
  call void @$PAUSE($PAUSE_ARGUMENTS)
  br label %spin
sleep:
  %l0 = call i32 @pthread_mutex_lock(ptr %state)
  br label %look
look:
  %now = load atomic i64, ptr @pool_round monotonic, align 8
  %stopping = load i32, ptr @pool_stopping
  %stops = icmp ne i32 %stopping, 0
  br i1 %stops, label %leave, label %work
work:
  %idle = icmp eq i64 %now, %seen
  br i1 %idle, label %wait, label %begin
wait:
  %w = call i32 @pthread_cond_wait(ptr %wake, ptr %state)
  br label %look
begin:
  store i64 %now, ptr %seenp
  %team = load i32, ptr @pool_team
  %function = load ptr, ptr @pool_function
  %context = load ptr, ptr @pool_context
  %l1 = call i32 @pthread_mutex_unlock(ptr %state)
  %member = icmp slt i32 %number, %team
  br i1 %member, label %take, label %next
take:
  store i32 %number, ptr @own_number
  store i32 %team, ptr @own_team
  call void %function(ptr %context)
  store i32 0, ptr @own_number
  store i32 1, ptr @own_team
  %left = atomicrmw sub ptr @pool_left, i32 1 acq_rel
  %last = icmp eq i32 %left, 1
  br i1 %last, label %tell, label %next
tell:
  %l2 = call i32 @pthread_mutex_lock(ptr %state)
  %b = call i32 @pthread_cond_broadcast(ptr %ready)
  %l3 = call i32 @pthread_mutex_unlock(ptr %state)
  br label %next
leave:
  %l4 = call i32 @pthread_mutex_unlock(ptr %state)
  ret ptr null
}

; Runs the region on the calling thread.
define internal void @pool_alone(ptr %function, ptr %context) {
  %number = load i32, ptr @own_number
  %team = load i32, ptr @own_team
  store i32 0, ptr @own_number
  store i32 1, ptr @own_team
  call void %function(ptr %context)
  store i32 %number, ptr @own_number
  store i32 %team, ptr @own_team
  ret void
}

; Runs a region on several threads, and returns when all are done.
define void @GOMP_parallel(ptr %function, ptr %context, i32 %threads, i32 %flags) {
entry:
  %state = call ptr @pool_part(i64 0)
  %region = call ptr @pool_part(i64 1)
  %wake = call ptr @pool_part(i64 2)
  %ready = call ptr @pool_part(i64 3)
  %most = call i32 @omp_get_max_threads()
  %unsaid = icmp eq i32 %threads, 0
  %asked = select i1 %unsaid, i32 %most, i32 %threads
  %wanted = call i32 @llvm.smin.i32(i32 %asked, i32 256)
  %one = icmp sle i32 %wanted, 1
  %team = load i32, ptr @own_team
  %inside = icmp ne i32 %team, 1
  %simple = or i1 %one, %inside
  br i1 %simple, label %alone, label %enter
enter:
  call void @pool_check_process()
  %taken = call i32 @pthread_mutex_trylock(ptr %region)
  %busy = icmp ne i32 %taken, 0
  br i1 %busy, label %alone, label %start
start:
  %l0 = call i32 @pthread_mutex_lock(ptr %state)
  %others = sub i32 %wanted, 1
  %workers = call i32 @pool_hire(i32 %others)
  %joined = call i32 @llvm.smin.i32(i32 %workers, i32 %others)
  %size = add i32 %joined, 1
  store ptr %function, ptr @pool_function
  store ptr %context, ptr @pool_context
  store i32 %size, ptr @pool_team
  store atomic i32 %joined, ptr @pool_left monotonic, align 4
  %round = atomicrmw add ptr @pool_round, i64 1 release
  %b = call i32 @pthread_cond_broadcast(ptr %wake)
  %l1 = call i32 @pthread_mutex_unlock(ptr %state)
  store i32 0, ptr @own_number
  store i32 %size, ptr @own_team
  call void %function(ptr %context)
  store i32 1, ptr @own_team
  br label %spin
spin:
  %tries = phi i32 [ 0, %start ], [ %again, %pause ]
  %left = load atomic i32, ptr @pool_left acquire, align 4
  %done = icmp sle i32 %left, 0
  br i1 %done, label %finish, label %patient
patient:
  %again = add i32 %tries, 1
  %tired = icmp sgt i32 %again, 4000
  br i1 %tired, label %sleep, label %pause
pause:
  call void @$PAUSE($PAUSE_ARGUMENTS)
  br label %spin
sleep:
  %l2 = call i32 @pthread_mutex_lock(ptr %state)
  br label %look
look:
  %still = load atomic i32, ptr @pool_left acquire, align 4
  %ended = icmp sle i32 %still, 0
  br i1 %ended, label %awake, label %wait
wait:
  %w = call i32 @pthread_cond_wait(ptr %ready, ptr %state)
  br label %look
awake:
  %l3 = call i32 @pthread_mutex_unlock(ptr %state)
  br label %finish
finish:
  %l4 = call i32 @pthread_mutex_unlock(ptr %region)
  ret void
alone:
  call void @pool_alone(ptr %function, ptr %context)
  ret void
}

; Ends the workers.
define void @stepwell_c_stop() {
entry:
  call void @pool_check_process()
  %state = call ptr @pool_part(i64 0)
  %region = call ptr @pool_part(i64 1)
  %wake = call ptr @pool_part(i64 2)
  %l0 = call i32 @pthread_mutex_lock(ptr %region)
  %l1 = call i32 @pthread_mutex_lock(ptr %state)
  store i32 1, ptr @pool_stopping
  %b = call i32 @pthread_cond_broadcast(ptr %wake)
  %count = load i32, ptr @pool_workers
  %l2 = call i32 @pthread_mutex_unlock(ptr %state)
  %n = sext i32 %count to i64
  br label %head
head:
  %k = phi i64 [ 1, %entry ], [ %next, %join ]
  %more = icmp sle i64 %k, %n
  br i1 %more, label %join, label %end
join:
  %at = getelementptr i64, ptr @pool_threads, i64 %k
  %handle = load i64, ptr %at
  %j = call i32 @pthread_join(i64 %handle, ptr null)
  %next = add i64 %k, 1
  br label %head
end:
  store i32 0, ptr @pool_workers
  store i32 0, ptr @pool_stopping
  %l3 = call i32 @pthread_mutex_unlock(ptr %region)
  ret void
}
