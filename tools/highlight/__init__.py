"""Highlighting of the IR: one table of rules, a lexer for Pygments and a TextMate grammar made from it."""
