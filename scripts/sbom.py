"""Write the software bill of materials of a release, in CycloneDX's JSON.

It lists this package, the libjpeg-turbo that its wheels contain, and every package of constraints.txt that one of its
extras needs, with the extras that need it. Extras of development and those of TPU VMs are left out: the latter's pins
are files inside the wheel. Who needs whom is read from the metadata of the packages that are installed here, but for
those of NOT_INSTALLED.
"""

from __future__ import annotations

import configparser
import datetime
import json
import uuid
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType, Pedigree
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dataprep import __version__
from dataprep.errors import DISTRIBUTION
from dataprep.host.versions import WHEEL_LIBJPEG
from scripts.wheel import JPEG_LICENSE, ROOT, SOURCE, SOURCE_SHA256, SOURCE_VERSION

CPE = f"cpe:2.3:a:libjpeg-turbo:libjpeg-turbo:{WHEEL_LIBJPEG}:*:*:*:*:*:*:*"

NOT_INSTALLED = {"pyspark": ["py4j"], "py4j": []}
"""What the packages need that are not installed where a release is made, because Spark is large."""


def read_pins(path: Path) -> dict[str, str]:
    """Return the versions that a file of constraints pins for this Python, by name."""
    lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
    pinned = [Requirement(line) for line in lines]
    here = [each for each in pinned if each.marker is None or each.marker.evaluate()]
    return {canonicalize_name(each.name): next(iter(each.specifier)).version for each in here}


def extras_of(setup: Path) -> dict[str, list[Requirement]]:
    """Return what the package needs without an extra (under the name `""`), and with each."""
    parser = configparser.ConfigParser()
    parser.read(setup)
    texts = {"": parser["options"]["install_requires"], **parser["options.extras_require"]}
    return {
        extra: [Requirement(line) for line in text.splitlines() if line and not line.startswith("#")]
        for extra, text in texts.items()
        if extra not in ("dev", "docs", "test") and not extra.startswith("tpu-")
    }


def needs_of(name: str, extras: Iterable[str]) -> list[Requirement]:
    """Return what a package needs on this machine, by its own metadata or by NOT_INSTALLED."""
    lines = NOT_INSTALLED[name] if name in NOT_INSTALLED else distribution(name).requires or []
    found = [Requirement(line) for line in lines]
    environments = [{"extra": extra} for extra in ("", *extras)]
    return [each for each in found if each.marker is None or any(map(each.marker.evaluate, environments))]


def walk(asked: list[Requirement]) -> Iterator[tuple[str, set[str]]]:
    """Yield every package that is needed directly or through another, with the names of what it needs."""
    queue, seen = list(asked), set()
    while queue:
        requirement = queue.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (requirement.marker is None or requirement.marker.evaluate({"extra": ""})) and (name, extras) not in seen:
            seen.add((name, extras))
            needed = needs_of(name, extras)
            queue += [Requirement(str(each).partition(";")[0]) for each in needed]
            yield name, {canonicalize_name(each.name) for each in needed}


def make_bom(timestamp_s: int, setup: Path = ROOT / "setup.cfg", pins: Path = ROOT / "constraints.txt") -> Bom:
    """Return the bill of materials of this version, as of an instant."""
    versions, extras = read_pins(pins), extras_of(setup)
    used_by: dict[str, set[str]] = {}
    needs: dict[str, set[str]] = {}
    for extra, asked in extras.items():
        for name, needed in walk(asked):
            used_by.setdefault(name, set()).add(extra)
            needs.setdefault(name, set()).update(needed)
    ours, jpeg = own_component(), jpeg_component()
    packages = {name: package_component(name, versions[name], used_by[name]) for name in sorted(used_by)}
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, f"{DISTRIBUTION} {__version__}"),
        metadata=BomMetaData(component=ours, timestamp=datetime.datetime.fromtimestamp(timestamp_s, datetime.UTC)),
        components=[jpeg, *packages.values()],
    )
    direct = {canonicalize_name(each.name) for asked in extras.values() for each in asked} & packages.keys()
    bom.register_dependency(ours, [jpeg, *(packages[name] for name in sorted(direct))])
    for name, component in packages.items():
        bom.register_dependency(component, [packages[each] for each in sorted(needs[name]) if each in packages])
    return bom


def own_component() -> Component:
    """Return the component that the document describes."""
    purl = PackageURL("pypi", name=DISTRIBUTION, version=__version__)
    return Component(
        name=DISTRIBUTION,
        version=__version__,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
        licenses=[LicenseExpression("Apache-2.0")],
    )


def jpeg_component() -> Component:
    """Return the library that is linked into the extensions, with the crate that its source is from."""
    crate = Component(
        name=SOURCE,
        version=SOURCE_VERSION,
        type=ComponentType.LIBRARY,
        purl=PackageURL("cargo", name=SOURCE, version=SOURCE_VERSION),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=SOURCE_SHA256)],
    )
    purl = PackageURL("generic", name="libjpeg-turbo", version=WHEEL_LIBJPEG)
    return Component(
        name="libjpeg-turbo",
        version=WHEEL_LIBJPEG,
        type=ComponentType.LIBRARY,
        description="Linked statically into the extensions of the wheels; no shared library is in them.",
        purl=purl,
        bom_ref=str(purl),
        cpe=CPE,
        scope=ComponentScope.REQUIRED,
        licenses=[LicenseExpression(JPEG_LICENSE)],
        pedigree=Pedigree(ancestors=[crate], notes="The crate carries the source unchanged; none of its Rust is used."),
    )


def package_component(name: str, version: str, extras: set[str]) -> Component:
    """Return a pinned package, with the extras that need it."""
    purl = PackageURL("pypi", name=name, version=version)
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
        scope=ComponentScope.REQUIRED if "" in extras else ComponentScope.OPTIONAL,
        properties=[Property(name="tpu-dataprep:extra", value=extra) for extra in sorted(extras) if extra],
    )


def bom_text(bom: Bom) -> str:
    """Return the document, which is valid by CycloneDX's schema; the same for the same bill."""
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    if (errors := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) is not None:
        raise ValueError(f"the bill of materials is not valid by CycloneDX 1.6: {errors}")
    return json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n"
