"""What was measured on a machine, in a file that people can read: {machine: {what was measured: its times, and what was found}}."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

log = logging.getLogger("stepwell")


class Measurements:
    """The entries of one machine. `machine`: its name, with all that times depend on."""

    def __init__(self, path: Path, machine: str):
        self.path = path
        self.machine = machine

    def find(self, key: str) -> dict[str, Any] | None:
        """The entry of what was measured."""
        found = self._read().get(self.machine, {}).get(key)
        return found if isinstance(found, dict) else None

    def keep(self, key: str, entry: dict[str, Any]) -> None:
        """Add an entry; what another process has added meanwhile stays."""
        from .cpu.cache import write_atomically

        found = self._read()
        found.setdefault(self.machine, {})[key] = entry
        write_atomically(self.path, json.dumps(found, indent=1, sort_keys=True).encode())

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self.path.read_text()) if self.path.exists() else {}
        except (ValueError, OSError):
            found = None
        if not isinstance(found, dict) or not all(isinstance(entries, dict) for entries in found.values()):
            log.warning("%s holds no JSON of measurements: they are made again", self.path)
            return {}
        return found
