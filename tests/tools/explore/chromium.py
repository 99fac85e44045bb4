"""A page in Chromium, driven through the DevTools protocol over a pipe: nothing but the browser is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 30
"""How long is waited for anything."""


def executable() -> str | None:
    """The browser of this machine."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Chromium:
    """A browser with one page."""

    def __init__(self, folder: Path) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()

        def place() -> None:  # where the browser looks for them: 3 and 4, by way of numbers that are neither
            a, b = os.dup(commands), os.dup(answers)
            os.dup2(a, 3)
            os.dup2(b, 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run", "--hide-scrollbars"]
        command = [str(executable()), *flags, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            command, preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(commands)
        os.close(answers)
        self._number, self._rest = 0, b""
        self.events: list[dict[str, Any]] = []
        target = next(t for t in self._send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self._send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def send(self, method: str, **given: Any) -> dict[str, Any]:
        """The result of a method of the protocol on the page."""
        return self._send(method, self._session, **given)

    def _send(self, method: str, session: str | None = None, **given: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": given, **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            got = os.read(self._read, 1 << 16)
            if not got:
                raise RuntimeError("the browser has gone")
            self._rest += got
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a page of the explorer, until it is there."""
        self.events = []
        self.size(width, height)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.send("Page.navigate", url=url)
        self.until("document.documentElement?.dataset.ready === 'yes'")

    def size(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def value(self, expression: str) -> Any:
        """The value of an expression of JavaScript; a promise is waited for."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """The value of an expression as soon as it is true."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if found := self.value(expression):
                return found
            time.sleep(0.05)
        raise AssertionError(f"never came true: {expression}")

    def key(self, name: str) -> None:
        """Press and let go a key: "Enter", "ArrowDown", "/"."""
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39}
        text = {"Enter": "\r"}.get(name, name if len(name) == 1 else "")
        given: dict[str, Any] = {"key": name, "windowsVirtualKeyCode": codes.get(name, ord(name[0].upper()))}
        self.send("Input.dispatchKeyEvent", type="keyDown", **given, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **given)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def requests(self) -> list[str]:
        """The addresses that the page asked for since it was opened."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def errors(self) -> list[str]:
        """What the page's program and the browser complained about."""
        found = [e["params"]["exceptionDetails"] for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        logged = [e["params"]["entry"] for e in self.events if e.get("method") == "Log.entryAdded"]
        return [str(f.get("exception", f)) for f in found] + [entry["text"] for entry in logged if entry["level"] == "error"]

    def picture(self, path: Path) -> None:
        """Write what is seen as a PNG or, by the name of the file, as WebP."""
        kind = path.suffix.removeprefix(".")
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format=kind)["data"]))
