#!/usr/bin/env python3
"""wheel.py BINARY MODULE FOLDER: packs the command and the Python module, both built, into a wheel in a folder; prints its path.

A wheel is a zip with a fixed layout. The name says which C library it needs at least: that is read from the two files.
"""

import argparse
import base64
import hashlib
import os
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "crates" / "python" / "meshtf"

# The oldest C library that the wheel claims to run with, even if it needs an older one still.
LEAST_GLIBC = 28
# What a wheel may expect of any Linux (PEP 600): its shared libraries.
EXPECTED = {
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}
MACHINES = {62: "x86_64", 183: "aarch64"}
# 1 January 1980, the first that a zip can state: the same files make the same wheel.
MADE = (1980, 1, 1, 0, 0, 0)

METADATA = """\
Metadata-Version: 2.4
Name: meshtf
Version: {version}
Summary: TensorFlow 1's distributed runtime as one small binary, with a Python module: numpy arrays in and out
Home-page: {repository}
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-MIT
License-File: LICENSE-APACHE
{licences}Requires-Python: >=3.10
Requires-Dist: numpy>=1.22
Provides-Extra: bfloat16
Requires-Dist: ml_dtypes>=0.3; extra == "bfloat16"
Provides-Extra: progress
Requires-Dist: tqdm>=4; extra == "progress"
Provides-Extra: sklearn
Requires-Dist: scikit-learn>=1.6; extra == "sklearn"
Provides-Extra: torch
Requires-Dist: torch>=2; extra == "torch"
Requires-Dist: onnx>=1.16; extra == "torch"
Requires-Dist: onnxscript>=0.1; extra == "torch"
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Rust
Classifier: Operating System :: POSIX :: Linux
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{text}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: meshtf
Root-Is-Purelib: false
Tag: {tag}
"""


def stated(key: str) -> str:
    """A value of the workspace's manifest."""
    found = re.search(rf'^{key} = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert found, f"Cargo.toml states no {key}"
    return found[1]


def check(path: Path) -> tuple[str, int]:
    """The machine of an ELF file, and the second number of the C library's version that it needs."""
    content = path.read_bytes()
    if content[:4] != b"\x7fELF":
        sys.exit(f"{path} is no ELF file")
    machine = MACHINES.get(int.from_bytes(content[18:20], "little"))
    if machine is None:
        sys.exit(f"{path} is for a machine that has no tag here; there are {', '.join(MACHINES.values())}")
    if b"GLIBC_ABI_DT_RELR\0" in content:
        sys.exit(f"{path} has relocations of a form that only glibc 2.36 reads: link it without pack-relative-relocs")
    # The names of versions and of libraries are texts of the dynamic section's table.
    needed = max((int(found) for found in re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", content)), default=0)
    libraries = {name.decode() for name in re.findall(rb"\0((?:lib|ld-)[\w+-]+\.so(?:\.\d+)+)(?=\0)", content)}
    others = sorted(
        name for name in libraries - EXPECTED if name.startswith(("libstdc++", "libssl", "libcrypto", "libz.", "libpython"))
    )
    if others:
        sys.exit(f"{path} needs {', '.join(others)}, which not every Linux has")
    return machine, needed


def has_fixed_thread_variables(content: bytes) -> bool:
    """Whether a library has variables of threads at fixed places (DF_STATIC_TLS): a process has room for few of them."""
    start, size, count = (int.from_bytes(content[at : at + length], "little") for at, length in ((32, 8), (54, 2), (56, 2)))
    for header in (content[start + i * size :][:size] for i in range(count)):
        # The dynamic section, and in it the flags.
        if header[:4] == (2).to_bytes(4, "little"):
            offset, length = (int.from_bytes(header[at : at + 8], "little") for at in (8, 32))
            for at in range(offset, offset + length, 16):
                tag, value = (int.from_bytes(content[at + i : at + i + 8], "little") for i in (0, 8))
                if tag == 30:
                    return bool(value & 0x10)
    return False


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("binary", type=Path)
    arguments.add_argument("module", type=Path)
    arguments.add_argument("folder", type=Path)
    given = arguments.parse_args()
    machine, glibc = check(given.binary)
    other, needed = check(given.module)
    if machine != other:
        sys.exit(f"{given.binary} is for {machine}, and {given.module} for {other}")
    if has_fixed_thread_variables(given.module.read_bytes()):
        sys.exit(
            f"{given.module} has variables of threads at fixed places: a Python with other libraries cannot load it"
        )
    version = stated("version")
    tag = f"cp310-abi3-manylinux_2_{max(glibc, needed, LEAST_GLIBC)}_{machine}"
    info = f"meshtf-{version}.dist-info"
    files: list[tuple[str, bytes, int]] = []
    for path in sorted(PACKAGE.iterdir()):
        if path.suffix in (".py", ".pyi") or path.name == "py.typed":
            files.append((f"meshtf/{path.name}", path.read_bytes(), 0o644))
    files.append(("meshtf/_native.abi3.so", given.module.read_bytes(), 0o755))
    files.append((f"meshtf-{version}.data/scripts/meshtf", given.binary.read_bytes(), 0o755))
    text = (ROOT / "crates" / "python" / "README.md").read_text()
    more = "License-File: LICENSES-CRATES\n" if os.environ.get("MESHTF_LICENCES") else ""
    metadata = METADATA.format(version=version, repository=stated("repository"), licences=more, text=text)
    files.append((f"{info}/METADATA", metadata.encode(), 0o644))
    files.append((f"{info}/WHEEL", WHEEL.format(tag=tag).encode(), 0o644))
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        files.append((f"{info}/licenses/{name}", (ROOT / name).read_bytes(), 0o644))
    # The texts of the licences of the crates that are linked, if they were collected.
    if licences := os.environ.get("MESHTF_LICENCES"):
        files.append((f"{info}/licenses/LICENSES-CRATES", Path(licences).read_bytes(), 0o644))
    record = "".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, content, _ in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))
    given.folder.mkdir(parents=True, exist_ok=True)
    wheel = given.folder / f"meshtf-{version}-{tag}.whl"
    unfinished = wheel.with_suffix(".part")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=int(os.environ.get("MESHTF_LEVEL", 9))) as packed:
        for name, content, mode in files:
            entry = zipfile.ZipInfo(name, MADE)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, content)
    unfinished.replace(wheel)
    print(wheel)


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main()
