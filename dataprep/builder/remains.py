"""Recognises the files of a dataset whose manifest is gone, so that a build of the same plan can go on with them.

A card of this project names its plan and the versions of its codecs. Without a card, an index and no file but those of
the plan are proof enough to build beside them, which replaces nothing. Where a card names the plan and the bytes cannot
be made twice, a shard that was fetched again takes the place of another one (dataprep/fetched/commit.py). `--overwrite`
removes only the files of a plan that a card names: that of this build, or one that differs from it in nothing but the
codecs' versions, which its hash proves, and which therefore has files of the same names.
"""

from __future__ import annotations

import re
from itertools import chain

from dataprep.builder.cards import CODECS_LINE, PLAN_LINE, read_card
from dataprep.builder.claim import claim_place, withdraw
from dataprep.builder.overwrite import leftovers, look, make_way, planned_names
from dataprep.builder.plan import Plan, other_versions, same_but_codecs
from dataprep.builder.recipe import Planned
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
    return _card_line(storage, PLAN_LINE)


def card_codecs(storage: Storage) -> dict[str, str]:
    """Return the versions of the codecs that the card `README.md` names; empty if it names none."""
    pairs = (pair.partition(" ") for pair in (_card_line(storage, CODECS_LINE) or "").split(", "))
    return {name: version for name, _, version in pairs if name}


def _card_line(storage: Storage, pattern: str) -> str | None:
    found = re.search(pattern, (read_card(storage, README) or b"").decode(errors="replace"), re.MULTILINE)
    return found[1] if found else None


def _is_named(storage: Storage, plan: Plan) -> bool:
    """Return whether a card names this plan, or the same one with other versions of the codecs."""
    named = card_plan(storage)
    return named is not None and (named == plan.plan_hash or same_but_codecs(plan, card_codecs(storage), named))


def is_over_remains(storage: Storage, plan: Plan) -> bool:
    """Return whether an unfinished build of a plan began beside files of its dataset, which no `--overwrite` removed.

    A build writes its cards last, so a card beside an unfinished one is that of a dataset whose manifest is gone.
    """
    return _is_named(storage, plan) and storage.stat(OVERWRITTEN) is None


def take_over(storage: Storage, planned: Planned, *, overwrite: bool) -> bool:
    """Claim a place for a plan in which files of its dataset are left; return whether it was cleared instead.

    Args:
        storage: The output, in which `may_be_left` found files.
        planned: The plan of this build.
        overwrite: Remove the files of the plan first, if a card names it.

    Raises:
        UsageError: The files are those of another plan, or some belong to none.
    """
    named = refuse_other_remains(storage, planned.plan, overwrite=overwrite)
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


def refuse_other_remains(storage: Storage, plan: Plan, *, overwrite: bool) -> str | None:
    """Refuse files without a manifest that a card calls another plan's; return the plan that it names, if any.

    Raises:
        UsageError: They are another plan's, and `overwrite` would not remove them.
    """
    named = card_plan(storage)
    if named is not None and named != plan.plan_hash:
        _refuse_other(storage, plan, named, overwrite=overwrite)
    return named


def _refuse_other(storage: Storage, plan: Plan, named: str, *, overwrite: bool) -> None:
    """Raise UsageError about the files of another plan, unless only its codecs differ and `overwrite` removes them."""
    codecs = card_codecs(storage)
    versions = other_versions(codecs, plan.codecs) if codecs else ""
    left = f"{storage.url}: files of a dataset are left there without its {MANIFEST}, of plan {named[:12]}"
    if not _is_named(storage, plan):
        raise UsageError(
            f"{left}{f', {versions}' if versions else ''}, and this build has plan {plan.plan_hash[:12]}; build with "
            f"the options{' and versions' if versions else ''} of that one, remove them yourself, or choose another "
            "--output"
        )
    if not overwrite:
        raise UsageError(
            f"{left}, {versions}, and other versions may write other bytes: install those versions to repair it, or "
            "build all of it anew with --overwrite"
        )
