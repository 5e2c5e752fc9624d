"""The public interface of the package meshtf, read from its documentation, and compared with the list in docs/api.txt. Each item
must have an example that is compiled.

    tests/api.py DOC            DOC is the folder that `cargo doc` wrote: target/doc/meshtf
    tests/api.py DOC --write    writes the list

The list has each item with its declaration, its methods and the traits that it implements. A difference is a change that programs
may notice. The page of an item is the source, since it has what a re-export shows of a crate below, which the compiler's own formats
leave out.

An example stands in the documentation of the item itself, not only in that of a method or a field, and uses the package as other
programs do.
"""

import html.parser
import pathlib
import re
import sys

LIST = pathlib.Path(__file__).parent.parent / "docs/api.txt"
# Most items that the interface may have.
MOST = 150


class Page(html.parser.HTMLParser):
    """The declaration of an item, the examples in its own documentation, and the headers of its methods and implementations, outside
    those of auto traits and blankets."""

    def __init__(self, text):
        super().__init__()
        self.declaration, self.headers, self.examples = "", [], []
        self.into, self.section = None, ""
        # Elements `details` that are open, the first of which is the item's own documentation; and whether an example is compiled.
        self.details, self.is_compiled = 0, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        classes = (attrs.get("class") or "").split()
        if attrs.get("id") in ("synthetic-implementations", "blanket-implementations"):
            self.section = "other"
        elif attrs.get("id") in ("implementations", "trait-implementations", "required-methods", "provided-methods"):
            self.section = attrs["id"]
        if tag == "details" and (self.details > 0 or "top-doc" in classes):
            self.details += 1
        elif tag == "div" and "example-wrap" in classes:
            self.is_compiled = not {"ignore", "compile_fail"} & set(classes)
        elif self.into is None and self.details > 0 and self.is_compiled and tag == "pre" and "rust" in classes:
            self.into, self.tag = "example", tag
            self.examples.append("")
        elif self.into is None and tag == "pre" and "item-decl" in classes:
            self.into, self.tag = "declaration", tag
        elif self.into is None and tag in ("h3", "h4") and "code-header" in classes and self.section not in ("", "other"):
            # Of the implementation of a trait, its first line says all.
            if self.section != "trait-implementations" or tag == "h3":
                self.into, self.tag = "header", tag
                self.headers.append("")
        elif tag == "br" and self.into == "declaration":
            self.declaration += "\n"

    def handle_endtag(self, tag):
        if tag == "details" and self.details > 0:
            self.details -= 1
        if self.into and tag == self.tag:
            self.into = None
        elif self.into == "declaration" and tag == "div":
            self.declaration += "\n"

    def handle_data(self, data):
        if self.into == "declaration":
            self.declaration += data
        elif self.into == "header":
            self.headers[-1] += data
        elif self.into == "example":
            self.examples[-1] += data


def item(path):
    """What the list has of an item, and its examples."""
    text = path.read_text()
    page = Page(text)
    # Crates with other features implement their traits for a type of another project.
    source = re.search(r'class="src[^"]*" href="([^"]*)"', text)
    if source is None or "src/meshtf" not in source[1]:
        page.headers = []
    # A long declaration is folded in a browser.
    lines = [line.rstrip() for line in re.sub(r"Show \d+ \w+", "", page.declaration).splitlines()]
    headers = sorted({re.sub(r"\s+", " ", header).strip() for header in page.headers})
    # An inherent implementation has no content but its methods; the compiler adds the other.
    nothing = re.compile(r"impl(<.*>)? (\w+(<.*>)?|StructuralPartialEq for .*)")
    headers = [header for header in headers if not nothing.fullmatch(header)]
    return "\n".join([line for line in lines if line] + [f"    {header}" for header in headers]), page.examples


def interface(doc):
    """The number of items, the list, and what is wrong with examples."""
    names = re.findall(r'href="([^"]+)"', (doc / "all.html").read_text())
    kinds = ("struct.", "enum.", "trait.", "fn.", "type.", "constant.", "macro.", "static.", "union.")
    pages = sorted(name for name in set(names) if name.rsplit("/", 1)[-1].startswith(kinds))
    text, wrong = [], []
    for name in pages:
        *modules, page = name.split("/")
        module = "::".join(["meshtf", *modules])
        listed, examples = item(doc / name)
        text.append(f"# {module}\n{listed}\n")
        full = f"{module}::{page.split('.')[1]}"
        if not examples:
            wrong.append(f"{full} has no example in its documentation, or none that is compiled")
        elif any("meshtf_" in example for example in examples):
            wrong.append(f"an example of {full} uses a crate that programs do not name; it stands on the `pub use` in src")
    return len(pages), "\n".join(text), wrong


def main():
    doc = pathlib.Path(sys.argv[1])
    count, text, wrong = interface(doc)
    if "--write" in sys.argv:
        LIST.write_text(text)
    if count > MOST:
        sys.exit(f"the interface has {count} items, more than {MOST}")
    if not LIST.is_file() or LIST.read_text() != text:
        import difflib

        before = LIST.read_text().splitlines() if LIST.is_file() else []
        sys.stdout.writelines(line + "\n" for line in difflib.unified_diff(before, text.splitlines(), "docs/api.txt", "now", n=1, lineterm=""))
        sys.exit("the public interface differs from docs/api.txt: `make api` writes it, if that is intended")
    if wrong:
        sys.exit("\n".join(wrong))


main()
