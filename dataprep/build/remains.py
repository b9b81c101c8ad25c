"""Recognises the files of a dataset whose manifest is gone, so that a build of the same plan can go on with them.

A card of this project names its plan. Without a card, an index and no file but those of the plan are proof enough to
build beside them, which replaces nothing; only the files of a plan that a card names are removed by `--overwrite`.
"""

from __future__ import annotations

import re
from itertools import chain

from dataprep.build.cards import PLAN_LINE, read_card
from dataprep.build.claim import claim_place, withdraw
from dataprep.build.overwrite import leftovers, look, make_way, planned_names
from dataprep.build.plan import Plan
from dataprep.build.recipe import Planned
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.paths import CROISSANT, OVERWRITTEN, README
from dataprep.dataset.replicas import REPLICAS
from dataprep.errors import UsageError
from dataprep.storage import Storage

_NOT_OF_PLAN = frozenset({README, CROISSANT, REPLICAS})
"""Files of a dataset that no plan names, and no build replaces."""


def may_be_left(storage: Storage) -> bool:
    """Return whether files without a manifest may be those of a dataset; `take_over` compares them with a plan."""
    return card_plan(storage) is not None or next(storage.list("index/"), None) is not None


def card_plan(storage: Storage) -> str | None:
    """Return the hash of the plan that the card `README.md` names; None if there is no card of this project."""
    found = re.search(PLAN_LINE, (read_card(storage, README) or b"").decode(errors="replace"), re.MULTILINE)
    return found[1] if found else None


def is_over_remains(storage: Storage, plan: Plan) -> bool:
    """Return whether an unfinished build of a plan began beside files of its dataset, which no `--overwrite` removed.

    A build writes its cards last, so a card beside an unfinished one is that of a dataset whose manifest is gone.
    """
    return card_plan(storage) == plan.plan_hash and storage.stat(OVERWRITTEN) is None


def take_over(storage: Storage, planned: Planned, *, overwrite: bool) -> bool:
    """Claim a place for a plan in which files of its dataset are left; return whether it was cleared instead.

    Args:
        storage: The output, in which `may_be_left` found files.
        planned: The plan of this build.
        overwrite: Remove the files of the plan first, if a card names it.

    Raises:
        UsageError: The files are those of another plan, or some belong to none.
    """
    named, plan_hash = card_plan(storage), planned.plan.plan_hash
    if named is not None and named != plan_hash:
        raise UsageError(
            f"{storage.url}: files of a dataset are left there without its {MANIFEST}, of plan {named[:12]}, and this "
            f"build has plan {plan_hash[:12]}; build with the options of that one, remove them yourself, or choose "
            "another --output"
        )
    claim = claim_place(storage, planned)
    if named is None:
        own = {*chain(planned_names(storage, claim), _NOT_OF_PLAN)}
        foreign = next((name for name in leftovers(storage) if name not in own), None)
        if foreign is not None:
            withdraw(storage, claim)
            raise UsageError(
                f"{storage.url} is not empty and holds no dataset of ours (found {foreign}); choose another --output"
            )
    elif overwrite:  # claimed before: a plan that owns its place tells which files are its own
        make_way(storage, look(storage))
        return True
    return False
