"""The tables of what packages could do."""
import datetime
import re

BEGIN = "<!-- packages: written by tests/clients/run.sh -->"
END = "<!-- packages: end -->"


def text(results):
    """How many checks of each package worked, and which did not."""
    rows = []
    for package in dict.fromkeys(result["package"] for result in results):
        own = [result for result in results if result["package"] == package]
        version = next((result["version"] for result in own if result["version"]), "")
        good = sum(not result["error"] for result in own)
        rows.append(f"| {package} {version} | {good} of {len(own)} | {'; '.join(_item(result) for result in own)} |")
    good = sum(not result["error"] for result in results)
    return "\n".join(["| package | work | what was tried |", "|---|---|---|", *rows,
                      f"| **all** | **{good} of {len(results)}** | |"]) + "\n"


def _item(result):
    if not result["error"]:
        return result["what"]
    if result["fails"]:
        return f"*not {result['what']}: {result['fails']}*"
    return f"**not {result['what']}**"


def write_into(document, results):
    old = document.read_text(encoding="utf-8")
    body = f"{BEGIN}\nOn {datetime.date.today().isoformat()}:\n\n{text(results)}{END}"
    new, found = re.subn(f"{BEGIN}.*?{END}", lambda _: body, old, flags=re.DOTALL)
    if found != 1:
        raise SystemExit(f"{document} has no place for the table")
    document.write_text(new, encoding="utf-8")
