"""One file an operator family; each fills the registry with rules."""
