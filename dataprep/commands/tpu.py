"""`dataprep tpu`: TPU virtual machines through gcloud, from creating them to deleting them."""

from __future__ import annotations

import click

from dataprep.commands import tpu_jobs
from dataprep.commands.tpu_machines import create_command, delete_command, plan_command

EPILOG = """\b
Examples:
  dataprep tpu plan v4-32
  dataprep tpu create my-tpu --type v4-32 --zone us-central2-b --nfs 10.0.0.2:/vol1=/mnt/data --dry-run
  dataprep tpu setup my-tpu --zone us-central2-b --code . --framework torch
  dataprep tpu run my-tpu --zone us-central2-b -- dataprep-pretrain-mae --use-xla --data-path gs://bucket/coco-dup5
  dataprep tpu status my-tpu --zone us-central2-b
  dataprep tpu delete my-tpu --zone us-central2-b

The zone may be set in CLOUDSDK_COMPUTE_ZONE. With --dry-run a command shows what it would run; manifest runs nothing.
"""


class _InOrder(click.Group):
    """Lists its commands in the order of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("tpu", cls=_InOrder, epilog=EPILOG)
def command() -> None:
    """Create, set up and delete TPU VMs, and run programs on all their workers; manifests for GKE."""


for _each in (
    plan_command,
    create_command,
    tpu_jobs.setup_command,
    tpu_jobs.run_command,
    tpu_jobs.status_command,
    tpu_jobs.kill_command,
    tpu_jobs.exec_command,
    tpu_jobs.copy_command,
    tpu_jobs.profile_command,
    tpu_jobs.ssh_command,
    delete_command,
    tpu_jobs.manifest_command,
):
    command.add_command(_each)
