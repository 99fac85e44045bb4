"""The CPU target: the `cpu` dialect to LLVM IR text (emit), to an object (jit), kept on disk (cache), for an
instruction set (features)."""
