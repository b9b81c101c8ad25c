"""Dataflow's service on loopback: takes a job, runs the pipeline that was staged for it, says its state.

The pipeline is read from the (emulated) bucket as the service would, its container is replaced by Python processes of
this machine, and Beam's local runner runs it. What was submitted is kept for a test to look at.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

REPOSITORY = Path(__file__).parents[2]
PATH = re.compile(
    r"/v1b3/projects/(?P<project>[^/]+)/locations/(?P<region>[^/]+)/jobs(?:/(?P<job>[^/?]+))?(?P<rest>.*)"
)


@dataclass(slots=True)
class Job:
    """One submission and the process that runs it."""

    document: dict[str, Any]
    process: subprocess.Popen[str] | None
    """None while the job waits for machines."""
    cancelled: bool = False
    waiting: str = "RUNNING"
    """State of a job that waits for machines."""
    errors: IO[str] = field(default_factory=partial(tempfile.TemporaryFile, "w+"))
    """What its workers write to stderr."""

    @property
    def state(self) -> str:
        if self.cancelled:
            return "CANCELLED"
        if self.process is None:
            return self.waiting
        code = self.process.poll()
        return "RUNNING" if code is None else "DONE" if code == 0 else "FAILED"


@dataclass(slots=True)
class DataflowStub:
    """The service; `url` is for `--dataflow_endpoint`."""

    url: str = ""
    jobs: dict[str, Job] = field(default_factory=dict)
    waiting: str | None = None
    """State in which jobs stay until they get machines with `give_machines`; None: they get them at once."""
    python: str = sys.executable
    """Python of the workers."""

    def create(self, project: str, region: str, document: dict[str, Any]) -> dict[str, Any]:
        name = f"job-{len(self.jobs)}"
        job = self.jobs[name] = Job(document, None, waiting=self.waiting or "RUNNING")
        if self.waiting is None:
            self.give_machines(job)
        return self.describe(name, project, region)

    def give_machines(self, job: Job) -> None:
        """Run a job."""
        staged = job.document["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
        command = [self.python, "-m", "tests.support.dataflow_stub", staged]
        job.process = subprocess.Popen(command, cwd=REPOSITORY, stderr=job.errors, text=True)

    def cancel(self, name: str) -> None:
        self.jobs[name].cancelled = True
        if self.jobs[name].process is not None:
            self.jobs[name].process.send_signal(signal.SIGKILL)

    def metrics(self, name: str) -> dict[str, Any]:
        """Dataflow's metrics of a job: its vCPUs, from when it has machines."""
        if self.jobs[name].process is None:
            return {}
        return {"metrics": [{"name": {"origin": "dataflow/v1b3", "name": "CurrentVcpuCount"}, "scalar": 8.0}]}

    def messages(self, name: str) -> dict[str, Any]:
        """Messages of a job: if it failed, what its workers said."""
        job = self.jobs[name]
        if job.state != "FAILED":
            return {}
        job.errors.seek(0)
        said = {"id": "1", "time": "2026-01-01T00:00:00Z", "messageImportance": "JOB_MESSAGE_ERROR"}
        return {"jobMessages": [{**said, "messageText": job.errors.read()}]}

    def describe(self, name: str, project: str, region: str) -> dict[str, Any]:
        state = f"JOB_STATE_{self.jobs[name].state}"
        return {"id": name, "projectId": project, "location": region, "currentState": state}


@contextlib.contextmanager
def dataflow_stub(python: str = sys.executable) -> Iterator[DataflowStub]:
    """The service, whose workers run with `python`; its jobs are gone afterwards."""
    stub = DataflowStub(python=python)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        do_POST = do_PUT = do_GET

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            match = PATH.match(self.path)
            found = match.groupdict() if match else {}
            if not found:
                self.send_error(404)
                return
            place = found["project"], found["region"]
            if self.command == "POST":
                answer = stub.create(*place, json.loads(body))
            elif found["rest"].startswith("/metrics"):
                answer = stub.metrics(found["job"])
            elif found["rest"].startswith("/messages"):
                answer = stub.messages(found["job"])
            elif found["job"] not in stub.jobs:
                self.send_error(404)
                return
            else:
                if self.command == "PUT":
                    stub.cancel(found["job"])
                answer = stub.describe(found["job"], *place)
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        stub.url = f"http://localhost:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield stub
        finally:
            server.shutdown()
            thread.join()
            for job in stub.jobs.values():
                if job.process is not None:
                    job.process.kill()
                    job.process.wait()
                job.errors.close()


def run_proto(proto: bytes) -> None:
    """Run a pipeline that was made for Dataflow on the local runner, in this process."""
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability import python_urns
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    pipeline = beam_runner_api_pb2.Pipeline.FromString(proto)
    for environment in pipeline.components.environments.values():
        environment.urn, environment.payload = python_urns.EMBEDDED_PYTHON, b""
        del environment.dependencies[:]
    FnApiRunner().run_via_runner_api(pipeline, PipelineOptions()).wait_until_finish()


def main(staged_url: str) -> None:
    """Read the staged pipeline, `gs://BUCKET/OBJECT`, and run it."""
    from dataprep.storage import open_storage

    folder, _, name = staged_url.rpartition("/")
    run_proto(open_storage(folder).read(name))


if __name__ == "__main__":
    main(sys.argv[1])
