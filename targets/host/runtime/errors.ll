; Errors: calling a Python function that raises, and dropping what a program still holds.

@_Py_NoneStruct = external global [0 x i8]
declare void @PyErr_Clear()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_NormalizeException(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare void @Py_DecRef(ptr)
declare i32 @aoti_torch_delete_tensor_object(ptr)

; Calls function(object or None, a, b, c) for the exception that it raises; its result, if any, is returned (a new
; reference).
define ptr @stepwell_call(ptr %function, ptr %object, i64 %a, i64 %b, i64 %c) {
  %args = alloca [4 x ptr]
  %none = icmp eq ptr %object, null
  %o = select i1 %none, ptr @_Py_NoneStruct, ptr %object
  store ptr %o, ptr %args
  %pa = call ptr @PyLong_FromLongLong(i64 %a)
  %a1 = getelementptr ptr, ptr %args, i64 1
  store ptr %pa, ptr %a1
  %pb = call ptr @PyLong_FromLongLong(i64 %b)
  %a2 = getelementptr ptr, ptr %args, i64 2
  store ptr %pb, ptr %a2
  %pc = call ptr @PyLong_FromLongLong(i64 %c)
  %a3 = getelementptr ptr, ptr %args, i64 3
  store ptr %pc, ptr %a3
  %r = call ptr @PyObject_Vectorcall(ptr %function, ptr %args, i64 4, ptr null)
  call void @Py_DecRef(ptr %pa)
  call void @Py_DecRef(ptr %pb)
  call void @Py_DecRef(ptr %pc)
  ret ptr %r
}

; Calls function(exception, a, b, 0) with the exception that is set, which stays set.
define void @stepwell_note(ptr %function, i64 %a, i64 %b) {
  %type = alloca ptr
  %value = alloca ptr
  %trace = alloca ptr
  call void @PyErr_Fetch(ptr %type, ptr %value, ptr %trace)
  call void @PyErr_NormalizeException(ptr %type, ptr %value, ptr %trace)
  %error = load ptr, ptr %value
  %r = call ptr @stepwell_call(ptr %function, ptr %error, i64 %a, i64 %b, i64 0)
  %failed = icmp eq ptr %r, null
  br i1 %failed, label %clear, label %drop
clear:
  call void @PyErr_Clear()
  br label %restore
drop:
  call void @Py_DecRef(ptr %r)
  br label %restore
restore:
  %t = load ptr, ptr %type
  %v = load ptr, ptr %value
  %b2 = load ptr, ptr %trace
  call void @PyErr_Restore(ptr %t, ptr %v, ptr %b2)
  ret void
}

; Drops what a program still holds: n Python objects and m tensor handles (null where there is none any more).
define void @stepwell_drop(ptr %objects, i64 %n, ptr %handles, i64 %m) {
entry:
  br label %handle
handle:
  %j = phi i64 [ 0, %entry ], [ %jn, %nexth ]
  %jend = icmp eq i64 %j, %m
  br i1 %jend, label %object, label %onehandle
onehandle:
  %hp = getelementptr ptr, ptr %handles, i64 %j
  %h = load ptr, ptr %hp
  %nh = icmp eq ptr %h, null
  br i1 %nh, label %nexth, label %droph
droph:
  %r = call i32 @aoti_torch_delete_tensor_object(ptr %h)
  br label %nexth
nexth:
  %jn = add i64 %j, 1
  br label %handle
object:
  %i = phi i64 [ 0, %handle ], [ %in, %nexto ]
  %iend = icmp eq i64 %i, %n
  br i1 %iend, label %end, label %oneobject
oneobject:
  %op = getelementptr ptr, ptr %objects, i64 %i
  %o = load ptr, ptr %op
  %no = icmp eq ptr %o, null
  br i1 %no, label %nexto, label %dropo
dropo:
  call void @Py_DecRef(ptr %o)
  br label %nexto
nexto:
  %in = add i64 %i, 1
  br label %object
end:
  ret void
}
