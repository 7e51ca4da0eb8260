#!/usr/bin/env python3
"""Makes the links of installed pages lead to what is installed, and says of the others what they are.

usage: link_docs.py SHARE_DIR (the folder that has doc/retroinfer-server and retroinfer)

Pages are written for the source tree. Of what they link to some lies elsewhere when it is installed, and some is not
installed at all: such a link becomes its text, with the path in the source tree. Run once more it changes nothing.
"""
import pathlib
import posixpath
import re
import sys

DOCS = "doc/retroinfer-server"
# Below SHARE_DIR: folders of pages -> where they are in the source tree.
PAGES = {DOCS: "", "retroinfer/models/needle": "models/needle"}
# Where parts of the source tree are installed; all else is below DOCS.
PLACES = {"deploy/examples": f"{DOCS}/examples", "deploy/prometheus": "retroinfer/prometheus",
          "deploy/grafana": "retroinfer/grafana", "models/needle": "retroinfer/models/needle",
          "proto": "retroinfer/proto"}
CODE = re.compile(r"^( *)(```|~~~).*?^\1\2[`~]*$|(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\3(?!`)", re.M | re.S)
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(\s*([^)\s]+)((?:\s+\"[^\"]*\")?)\s*\)")


def installed_at(source):
    """Where a path of the source tree is below SHARE_DIR if it is installed."""
    for place, target in PLACES.items():
        if source == place or source.startswith(place + "/"):
            return target + source[len(place):]
    return posixpath.join(DOCS, source)


def linked(text, source, page, share):
    """The text of `page`, which is `source` in the source tree."""
    # Links are looked for where there is no code, and replaced in the whole text: lengths stay.
    masked = CODE.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), text)
    parts, end = [], 0
    for match in LINK.finditer(masked):
        target, _, anchor = match[2].partition("#")
        if not target or re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        if (share / posixpath.normpath(posixpath.join(posixpath.dirname(page), target))).exists():
            continue  # as in the source tree, or linked before
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = installed_at(path)
        words = text[match.start(1):match.end(1)]
        if (share / place).exists():
            target = posixpath.relpath(place, posixpath.dirname(page)) + ("#" + anchor if anchor else "")
            new = text[match.start():match.start(2)] + target + text[match.end(2):match.end()]
        else:
            new = words if path in words else f"{words} (`{path}` of the source)"
        parts += [text[end:match.start()], new]
        end = match.end()
    return "".join(parts) + text[end:]


def main():
    share = pathlib.Path(sys.argv[1])
    for folder, origin in PAGES.items():
        for path in sorted((share / folder).rglob("*.md")):
            page = path.relative_to(share).as_posix()
            text = path.read_text(encoding="utf-8")
            new = linked(text, posixpath.join(origin, path.relative_to(share / folder).as_posix()), page, share)
            if new != text:
                path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
