"""S3 on loopback: moto's server in this process, which can also answer badly and remembers what was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REGION = "us-east-1"
KEYS = {"AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "not-to-be-printed", "AWS_REGION": REGION}


class S3Server:
    """The server; set `faults` for that many answers of 503."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self.url = ""
        self.faults = 0
        self.answer: tuple[str, bytes] | None = None
        """Status and body that are sent to every request; None serves them."""
        self.requests: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.requests.append(f"{environ['REQUEST_METHOD']} {environ['RAW_URI']}")
        if self.faults:
            self.faults -= 1
            start_response("503 Slow Down", [("Content-Length", "0")])
            return []
        if self.answer is not None:
            start_response(self.answer[0], [("Content-Length", str(len(self.answer[1])))])
            return [self.answer[1]]
        return self._application(environ, start_response)

    @property
    def environment(self) -> dict[str, str]:
        """What points AWS's tools at this server."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.url, "AWS_EC2_METADATA_DISABLED": "true"}

    def put(self, bucket: str, files: Mapping[str, bytes], *, public: bool = False) -> None:
        """Put objects into a bucket, which is made if there is none."""
        client = self.client()
        client.create_bucket(Bucket=bucket)
        for name, data in files.items():
            client.put_object(Bucket=bucket, Key=name, Body=data, ACL="public-read" if public else "private")

    def upload(self, folder: Path, bucket: str, prefix: str = "") -> str:
        """Put the files of a folder, and return their URL."""
        files = (path for path in folder.rglob("*") if path.is_file())
        self.put(bucket, {prefix + path.relative_to(folder).as_posix(): path.read_bytes() for path in files})
        return f"s3://{bucket}/{prefix}".rstrip("/")

    def client(self) -> Any:
        """Return a client of AWS's own library."""
        import boto3

        key, secret = KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"]
        return boto3.client("s3", REGION, endpoint_url=self.url, aws_access_key_id=key, aws_secret_access_key=secret)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Serve while the block lasts; all servers of a process have the same buckets."""
    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = S3Server(DomainDispatcherApplication(create_backend_app))
    with make_server("127.0.0.1", 0, server, threaded=True) as serving:
        server.url = f"http://127.0.0.1:{serving.port}"
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield server
        serving.shutdown()
        thread.join()
