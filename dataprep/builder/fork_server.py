"""Prepares the process that forks the workers of a pool, which imports this module first."""

from dataprep.host.program import collect_rarely
from dataprep.host.versions import codec_versions

collect_rarely()
codec_versions()  # every worker compares them with the plan's; calling it here imports its modules once for all workers
