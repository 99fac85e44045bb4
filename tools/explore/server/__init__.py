"""The local server of the explorer: the page, and what it asks for again."""
