"""The server of the dashboard: its socket, its token, and its end by Ctrl-C."""

from __future__ import annotations

import errno
import ipaddress
import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn

from bentpipe.dashboard.app import create_app
from bentpipe.dashboard.guard import LOOPBACK_NAMES, Guard
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
        is_local = ipaddress.ip_address(address).is_loopback
        token = None if is_local else secrets.token_urlsafe(32)
        others = () if is_local else (socket.gethostname().lower(),)
        app = Guard(
            create_app(root, lambda: server.should_exit),
            hosts=LOOPBACK_NAMES | {host.lower(), *others},
            any_address=not is_local,
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
        unspecified = ipaddress.ip_address(address).is_unspecified
        name = socket.gethostname() if unspecified else host
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
