"""What every request passes first: its method, host and token; and the headers of every reply.

The page shows data of this machine in a browser that also shows pages of others. Those can send
requests here, also under a name of theirs that they let resolve to this address (DNS rebinding),
but can neither read a reply nor forge the Host header.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class Guard:
    """Refuses what is not a GET from an allowed host with the token; None asks for no token.

    ``hosts`` are the names under which the server is known; with ``any_address`` every IP address
    is one, too, since no name resolves to it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: frozenset[str],
        any_address: bool,
        token: str | None,
        cookie: str,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._any_address = any_address
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        app = self._app if refusal is None else refusal

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
        return None if self._token is None else self._ask_token(scope, self._token)

    def _is_known(self, name: str) -> bool:
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._any_address

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
            reply.set_cookie(self._cookie, token, httponly=True, samesite="strict")
            return reply
        cookie = HTTPConnection(scope).cookies.get(self._cookie, "")
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
