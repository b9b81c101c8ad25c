"""A web server on loopback that sends the files of a folder, in ranges and with entity tags: Werkzeug's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from werkzeug import Request, Response
from werkzeug.exceptions import HTTPException
from werkzeug.serving import make_server
from werkzeug.utils import send_from_directory


@contextmanager
def file_server(folder: Path, *, ranges: bool = True) -> Iterator[str]:
    """Serve while the block lasts; yields the folder's URL."""

    @Request.application
    def serve(request: Request) -> Response | HTTPException:
        try:
            return send_from_directory(folder, request.path[1:], request.environ, conditional=ranges)
        except HTTPException as error:
            return error

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with make_server("127.0.0.1", 0, serve, threaded=True) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{serving.port}"
        serving.shutdown()
        thread.join()
