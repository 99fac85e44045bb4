"""Packages at build time: export, the linker of code images, inspection."""
