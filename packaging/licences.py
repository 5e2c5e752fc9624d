"""licences.py TARGET: the licences of all crates that are linked into the binary for that target, as they came with the crates."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("license", "licence", "copying", "copyright", "notice", "unlicense")


def linked(metadata):
    """The packages that the binary is made of: not those that only build or test it."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    found, waiting = set(), [root]
    while waiting:
        package = waiting.pop()
        if package in found:
            continue
        found.add(package)
        for dependency in nodes[package]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    found.discard(root)
    return [package for package in metadata["packages"] if package["id"] in found]


def texts(package):
    """The texts of a package's licences, as (file name, text)."""
    folder = Path(package["manifest_path"]).parent
    files = {path for path in folder.iterdir() if path.is_file() and path.name.lower().startswith(NAMES)}
    if package["license_file"]:
        files.add((folder / package["license_file"]).resolve())
    files = sorted(path for path in files if path.suffix != ".rs")
    return [(path.name, path.read_text(encoding="utf-8", errors="replace").strip()) for path in files]


def main():
    target = sys.argv[1]
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = sorted(linked(metadata), key=lambda package: (package["name"], package["version"]))
    users, bare = {}, []
    print(f"meshtf for {target} contains these crates. Their licences follow.\n")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        print(f"  {name}: {package['license'] or 'see below'}  {package['repository'] or ''}".rstrip())
        found = texts(package)
        for _, text in found:
            users.setdefault(text, []).append(name)
        if not found:
            bare.append((name, package["license"], ", ".join(package["authors"])))
    if bare:
        print("\nThese crates come without the text of their licence, which is the usual one of its name:\n")
        for name, licence, authors in bare:
            print(f"  {name}: {licence}{'; by ' + authors if authors else ''}")
    for text, names in users.items():
        print(f"\n{'=' * 100}\n{', '.join(names)}\n{'-' * 100}\n\n{text}")


main()
