"""The explorer: every level of a compilation with its links, reasons, times and memory, as data, as a page, and from a local server."""
