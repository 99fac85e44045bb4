"""`opt-tool`: passes on IR files, printed, run and compared."""
