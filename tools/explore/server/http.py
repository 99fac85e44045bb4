"""The server: on this machine alone, for who has the token, and never for another site's page."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ....errors import StepwellError
from ..errors import ExploreError
from ..page.html import page
from .session import Session

ADDRESS = "127.0.0.1"
MAX_BODY_BYTES = 64 << 20
"""A level of a large model has a few of these."""
TOKEN_HEADER = "X-Stepwell-Token"


class Server(ThreadingHTTPServer):
    """Serves the page of a session at `url`, which holds a new random token. Raises ExploreError for a port that is taken."""

    daemon_threads = True

    def __init__(self, session: Session, port: int = 0) -> None:
        self.session = session
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise ExploreError(f"cannot listen on port {port}: {error.strerror}") from error
        self.token = secrets.token_urlsafe(24)
        self.actions: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            f"/api/{name}": getattr(session, name) for name in ("rerun", "results", "check", "run", "lower")
        }

    @property
    def port(self) -> int:
        return self.server_address[1]

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.port}/?token={self.token}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing for a page that was closed before its answer came; else what it says of itself."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # pyright: ignore[reportArgumentType]

    def server_close(self) -> None:
        super().server_close()
        self.session.close()


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    server_version = "stepwell"
    sys_version = ""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        token = parse_qs(address.query).get("token", [""])[0]
        if (why := self._refusal(token)) is not None:
            self._say(*why)
        elif address.path != "/":
            self._say(HTTPStatus.NOT_FOUND, "there is nothing here")
        else:
            first = self.server.session.first
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", page(first.json(), first.data["name"], token=self.server.token).encode())

    def do_POST(self) -> None:
        action = self.server.actions.get(self.path)
        if (why := self._refusal(self.headers.get(TOKEN_HEADER, ""))) is not None:
            self._say(*why)
        elif action is None:
            self._say(HTTPStatus.NOT_FOUND, "there is nothing here")
        else:
            self._act(action)

    def _refusal(self, token: str) -> tuple[HTTPStatus, str] | None:
        """Why a request is not answered: a name of this machine that is another's (DNS rebinding), another page's, or no token."""
        here = f"{ADDRESS}:{self.server.port}"
        if self.headers.get("Host") != here:
            return HTTPStatus.FORBIDDEN, "the host is another"
        if self.headers.get("Origin", f"http://{here}") != f"http://{here}" or self.headers.get("Sec-Fetch-Site") == "cross-site":
            return HTTPStatus.FORBIDDEN, "the page that asks is of another origin"
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return HTTPStatus.FORBIDDEN, "the token is wrong; open the address that 'stepwell explore --serve' printed"
        return None

    def _act(self, action: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            self._say(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {MAX_BODY_BYTES} bytes, and says how many")
            self.close_connection = True
            return
        try:
            given = json.loads(self.rfile.read(int(length)))
            if not isinstance(given, dict):
                raise ValueError("no object")
        except ValueError as error:
            self._say(HTTPStatus.BAD_REQUEST, f"a request is an object of JSON: {error}")
            return
        try:
            found = action(given)
        except StepwellError as error:
            self._say(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except Exception as error:  # the program's own, or a fault of ours: the page says it, and goes on
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        else:
            self._send(HTTPStatus.OK, "application/json", json.dumps(found, default=str).encode())

    def _say(self, status: HTTPStatus, message: str) -> None:
        self._send(status, "application/json", json.dumps({"error": message}).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cross-Origin-Resource-Policy": "same-origin",
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: addresses hold the token."""
