"""The `cpu` dialect as LLVM IR."""
