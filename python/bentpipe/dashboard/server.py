"""The server of the dashboard: its socket, its token, and its end by Ctrl-C."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final
from urllib.parse import parse_qsl, urlencode

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bentpipe.dashboard.app import create_app
from bentpipe.errors import UsageError
from bentpipe.results.files import error_text

_BACKLOG: Final = 128
_CONNECTIONS_MAX: Final = 256
_HEADER_BYTES_MAX: Final = 32_768
_SHUTDOWN_TIMEOUT_S: Final = 2


def serve(
    folder: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    open_browser: bool = False,
    ready: Callable[[str], None] = print,
) -> None:
    """Show the results below a folder in a browser until Ctrl-C; ``ready`` gets the URL.

    Port 0 is a free one. An address that other machines can reach asks for a token, which is part
    of the URL.

    Raises:
        UsageError: there is no such folder, or the address cannot be used.
    """
    root = Path(folder)
    if not root.is_dir():
        what = (
            "is a file; name the folder that has the results" if root.exists() else "no such folder"
        )
        raise UsageError(f"{folder}: {what}")
    with _listening(host, port) as listener:
        address, bound = listener.getsockname()[:2]
        ip, own_name = ipaddress.ip_address(address), socket.gethostname()
        token = None if ip.is_loopback else secrets.token_urlsafe(32)
        others = () if ip.is_loopback else (own_name.lower(),)
        app = Guard(
            create_app(root, lambda: server.should_exit),
            hosts=LOOPBACK_NAMES | {host.lower(), *others},
            any_address=not ip.is_loopback,
            token=token,
            # A browser sends the cookies of a host to all of its ports.
            cookie=f"bentpipe-{bound}",
        )
        server = _Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=_CONNECTIONS_MAX,
                h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
                timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
            )
        )
        name = own_name if ip.is_unspecified else host
        shown = f"[{name}]" if ":" in name else name
        url = f"http://{shown}:{bound}/" + (f"?token={token}" if token else "")
        ready(url)
        if open_browser:
            # It may wait for the browser; the socket accepts the request already.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that SIGINT does not end where it is ignored, as in background jobs of scripts."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the server by a signal."""
        if sig != signal.SIGINT or not self._ignores_interrupts:
            super().handle_exit(sig, frame)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal ends it."""
        # Before uvicorn replaces the handlers.
        self._ignores_interrupts = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        super().run(sockets=sockets)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error_text(error) if isinstance(error, OSError) else str(error)
        raise UsageError(f"--host: {host}: {reason}; name an address of this machine") from None
    try:
        # Connections of a server that ended wait for a minute (TIME_WAIT); socket(7).
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        messages = {
            errno.EADDRINUSE: f"--port: {port} is in use; name another one, or leave --port out "
            "for a free one",
            errno.EACCES: f"--port: {port}: no permission; name a port from 1024 on",
        }
        other = f"--host: {host}: {error_text(error)}; name an address of this machine"
        raise UsageError(messages.get(error.errno or 0, other)) from None
    return listener


# --- requests -------------------------------------------------------------------------------------


_METHODS: Final = ("GET", "HEAD")
_TOKEN: Final = "token"
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
# A page may load its own files alone, runs no inline script and is in no frame.
POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Guard:
    """Refuses what is not a GET from an allowed host with the token; None asks for no token.

    ``hosts`` are the names under which the server is known; with ``any_address`` every IP address
    is one, too, since no name resolves to it.
    """

    app: ASGIApp
    hosts: frozenset[str]
    any_address: bool
    token: str | None
    cookie: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        app = self.app if refusal is None else refusal

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in _METHODS:
            allowed = {"Allow": ", ".join(_METHODS)}
            return PlainTextResponse("only GET is allowed\n", 405, headers=allowed)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_known(host_name(hosts[0])):
            return PlainTextResponse(
                "unknown host; open the URL that bentpipe serve printed\n", 421
            )
        return None if self.token is None else self._ask_token(scope, self.token)

    def _is_known(self, name: str) -> bool:
        if name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_address

    def _ask_token(self, scope: Scope, token: str) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == _TOKEN]
        if given:
            if not _is_equal(given[0], token):
                return _no_token()
            # The address bar and the history are to show no token.
            rest = urlencode([(name, value) for name, value in query if name != _TOKEN])
            path = "/" + scope["path"].lstrip("/")
            reply = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
            reply.set_cookie(self.cookie, token, httponly=True, samesite="strict")
            return reply
        cookie = HTTPConnection(scope).cookies.get(self.cookie, "")
        return None if _is_equal(cookie, token) else _no_token()


def host_name(header: str) -> str:
    """Return the name or address in a Host header, without port and brackets, in lower case."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _is_equal(given: str, token: str) -> bool:
    """Compare in a time that does not depend on where the texts differ."""
    return hmac.compare_digest(given.encode(), token.encode())


def _no_token() -> Response:
    return PlainTextResponse("no valid token; open the URL that bentpipe serve printed\n", 401)
