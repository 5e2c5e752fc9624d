"""licences.py TARGET [FLAG…]: the licences of all crates that are linked into the binary for that target, as they came with the crates.
The flags are those by which cargo is told the features of the binary."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The packages that are linked: the command, and for a wheel the Python module.
PACKAGES = os.environ.get("MESHTF_PACKAGES", "meshtf").split()
NAMES = ("license", "licence", "copying", "copyright", "notice", "unlicense")


def cargo(*words):
    command = [os.environ.get("CARGO", "cargo"), *words, "--locked", "--offline"]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(target, features):
    """The packages that the binary is made of: not those that only build or test it. `cargo metadata` alone would have the features that
    any part of the workspace asks for."""
    edges = ["--edges", "normal,no-proc-macro"]
    own = [word for name in PACKAGES for word in ("--package", name)]
    tree = cargo("tree", *own, "--target", target, *features, *edges, "--prefix", "none", "--format", "{p}")
    # `name v1.2.3`, for some with more behind.
    found = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    found = {package for package in found if package[0] != "meshtf" and not package[0].startswith("meshtf-")}
    all_packages = json.loads(cargo("metadata", *features, "--format-version", "1", "--filter-platform", target))["packages"]
    packages = [package for package in all_packages if (package["name"], "v" + package["version"]) in found]
    if len(packages) != len(found):
        sys.exit(f"licences.py: {len(found)} crates are linked, and cargo knows the folders of {len(packages)}")
    return sorted(packages, key=lambda package: (package["name"], package["version"]))


def texts(package):
    """The texts of a package's licences, as (file name, text)."""
    folder = Path(package["manifest_path"]).parent
    files = {path for path in folder.iterdir() if path.is_file() and path.name.lower().startswith(NAMES)}
    # Of fonts in a crate.
    files |= set(folder.glob("fonts/*.txt"))
    if package["license_file"]:
        files.add((folder / package["license_file"]).resolve())
    files = sorted(path for path in files if path.suffix != ".rs")
    return [(path.name, path.read_text(encoding="utf-8", errors="replace").strip()) for path in files]


def main():
    target, *features = sys.argv[1:]
    packages = linked(target, features)
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
