"""Prints the bill of materials of a release, as CycloneDX has it: the crates that are linked into its binaries.

sbom.py [TARGET...]   for these targets of Rust, by default that of this machine
"""

from __future__ import annotations

import os
import sys
import uuid
from datetime import UTC, datetime

from crates import Crate, host, linked, workspace
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from notices import LIBRARIES, PROGRAM
from packageurl import PackageURL


def component(crate: Crate) -> Component:
    url = PackageURL("cargo", name=crate.name, version=crate.version)
    licence = LicenseFactory().make_from_string(crate.licence.replace("/", " OR "))
    return Component(
        name=crate.name,
        version=crate.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(url),
        purl=url,
        licenses=[licence],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=crate.checksum)] if crate.checksum else [],
    )


def binaries(target: str) -> list[str]:
    """The binaries that scripts/dist makes for this target: the program is made for Linux alone."""
    return [*LIBRARIES, PROGRAM] if "-linux-" in target else LIBRARIES


def bom(targets: list[str]) -> str:
    crates = {
        crate for target in targets for package in binaries(target) for crate in linked(package, target)
    }
    version = str(workspace()["redlatch"]["version"])
    parts = sorted(
        (component(c) for c in crates if c.name not in [*LIBRARIES, PROGRAM]),
        key=lambda part: str(part.bom_ref),
    )
    made = Bom(components=parts)
    # The same for the same source: neither the time of day nor a random number is in it.
    made.metadata.timestamp = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    made.serial_number = uuid.uuid5(
        uuid.NAMESPACE_OID, "\n".join([version, *(str(p.bom_ref) for p in parts)])
    )
    whole = Component(
        name="redlatch", version=version, type=ComponentType.LIBRARY, bom_ref="redlatch-packages"
    )
    made.metadata.component = whole
    made.register_dependency(whole, parts)
    text = JsonV1Dot6(made).output_as_string(indent=2)
    if wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise SystemExit(f"sbom: not as CycloneDX wants it: {wrong}")
    return text


if __name__ == "__main__":
    print(bom(sys.argv[1:] or [host()]))
