"""The verb ``serve``: results in a browser."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from bentpipe.cli.options import argument, note
from bentpipe.errors import UsageError

_PACKAGES = frozenset({"starlette", "uvicorn"})


def serve(
    folder: Annotated[
        Path,
        argument("FOLDER", "A folder with result folders."),
    ],
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="The TCP port; 0: a free one.")
    ] = 0,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="The address to listen on. One that other machines can reach asks for the token "
            "in the URL.",
        ),
    ] = "127.0.0.1",
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
) -> None:
    """Show results in a browser. Prints the URL; Ctrl-C ends it."""
    try:
        server = import_module("bentpipe.dashboard.server")
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _PACKAGES:
            raise
        raise UsageError(
            f"serve: {package} is not installed; pip install 'bentpipe[serve]'"
        ) from None

    def ready(url: str) -> None:
        print(url, flush=True)
        note(f"shows the results in {folder}; press Ctrl-C to end it")

    server.serve(folder, host=host, port=port, open_browser=open_browser, ready=ready)
