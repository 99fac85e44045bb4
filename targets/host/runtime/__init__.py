"""The runtime that host programs call, as LLVM IR."""
