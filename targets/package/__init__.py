"""Packages at run time: compiled models in one file. Nothing here imports xdsl, llvmlite or Dynamo."""
