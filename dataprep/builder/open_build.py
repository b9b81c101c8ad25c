"""A running build, opened by the driver and by its workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

from dataprep.builder.claim import Claim, OvertakenError, claim_in, read_claim, refuse_overtaken
from dataprep.builder.plan import Plan, refuse_other_codecs
from dataprep.dataset.paths import PLAN_JSON
from dataprep.storage import Storage, open_storage


@dataclass(frozen=True, slots=True)
class OpenBuild:
    """A running build that a process has opened."""

    claim: Claim
    storage: Storage
    """Storage of the output; it publishes nothing more once the build was overtaken."""

    @property
    def plan(self) -> Plan:
        """Plan of the build."""
        return self.claim.plan

    @property
    def root(self) -> str:
        """Folder of the build's own files."""
        return self.claim.root

    def check(self) -> None:
        """Raise OvertakenError if another build owns the output now."""
        refuse_overtaken(self.storage, self.claim)


@lru_cache(maxsize=4)
def open_build(output_url: str, root: str, pointer: bytes | None = None) -> OpenBuild:
    """Open a running build, once in each process.

    Args:
        output_url: URL of the output.
        root: Folder of the build's own files.
        pointer: Content of `plan.json` that another process has read: nothing is read then, and whether the build was
            overtaken shows when its files are read and before any is put in place. None reads it.

    Raises:
        OvertakenError: The build has been overwritten or is finished.
        UsageError: This process has other codec versions than the plan.
    """
    storage = open_storage(output_url)
    claim = read_claim(storage) if pointer is None else claim_in(storage, pointer)
    if claim is None or claim.root != root:
        raise OvertakenError(
            f"{storage.url_of(PLAN_JSON)}: absent or of another build; expected plan {root.split('/')[1][:12]}, found "
            f"{'none' if claim is None else claim.plan.plan_hash[:12]}: the build was overtaken, and this worker ends"
        )
    refuse_other_codecs(claim.plan.codecs)
    return OpenBuild(claim, storage.staged(claim.root, partial(refuse_overtaken, storage, claim)))
