"""The language server for files of IR: messages, hovers, definitions, completion, outline and actions in an editor."""
