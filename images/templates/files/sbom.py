"""List what an image contains, as CycloneDX JSON: Debian's packages, Python's packages, parts that were given by name.

Runs while the image is built, with the image's own Python. The same image gives the same list: sorted, and without
any time but SOURCE_DATE_EPOCH.
"""

import argparse
import importlib.metadata
import json
import os
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 4122's for URLs


def debian(status: Path) -> Iterator[dict[str, str]]:
    """Installed packages in dpkg's status file."""
    if not status.is_file():
        return
    for paragraph in status.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, flags=re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            name, version, machine = fields["Package"], fields["Version"], fields["Architecture"]
            purl = f"pkg:deb/{distribution()}/{name}@{version}?arch={machine}"
            yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def distribution() -> str:
    """`debian`, `ubuntu`."""
    release = Path("/etc/os-release")
    found = re.search(r"^ID=\"?(\w+)", release.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return found.group(1) if found else "debian"


def python() -> Iterator[dict[str, str]]:
    """Packages that this interpreter sees."""
    for one in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()
        purl = f"pkg:pypi/{name}@{one.version}"
        yield {"type": "library", "bom-ref": purl, "name": name, "version": one.version, "purl": purl}


def document(facts: dict[str, object], version: str, parts: list[dict[str, str]]) -> dict[str, object]:
    """The whole list; its serial number is made from the contents."""
    unique = {part["bom-ref"]: part for part in parts}
    components = [unique[key] for key in sorted(unique)]
    image = {"type": "container", "bom-ref": "image", "name": str(facts["row"]), "version": version}
    made = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH") or 0), UTC)
    serial = uuid.uuid5(NAMESPACE, json.dumps([image, components], sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"timestamp": made.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": image},
        "components": components,
    }


def main() -> None:
    """Write the list to stdout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--facts", type=Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--dpkg", type=Path, default=Path("/var/lib/dpkg/status"))
    parser.add_argument("--no-python", action="store_true")
    parser.add_argument("--component", action="append", default=[], metavar="NAME=VERSION")
    given = parser.parse_args()
    parts = [*debian(given.dpkg), *(() if given.no_python else python())]
    for component in given.component:
        name, _, version = component.partition("=")
        purl = f"pkg:generic/{name}@{version}"
        parts.append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
    facts = json.loads(given.facts.read_text(encoding="utf-8"))
    print(json.dumps(document(facts, given.version, parts), indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
