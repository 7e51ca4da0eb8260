"""What was tried, and the table of it."""
import datetime
import re

ROWS = []
SECTION = "## Under load"  # of the document


def case(client, what):
    """Runs what it decorates; the table has whether it worked, and what it returned."""
    def run(function):
        try:
            ROWS.append((client, what, "yes", function() or ""))
        except Exception as error:  # the table says which
            ROWS.append((client, what, "**no**", " ".join(f"{type(error).__name__}: {error}".split())[:200]))
    return run


def expect(condition, what=""):
    if not condition:
        raise AssertionError(what)


def text():
    lines = ["| client | what | works | |", "|---|---|---|---|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in ROWS]) + "\n"


def write_into(document):
    """Puts table and date in the place of those that the document has."""
    before, heading, old = document.read_text(encoding="utf-8").partition(SECTION)
    new = re.sub(r"(?<=^On )[0-9-]{10}", datetime.date.today().isoformat(), old, flags=re.MULTILINE)
    new, found = re.subn(r"(?:^\|.*\n)+", lambda _: text(), new, count=1, flags=re.MULTILINE)
    expect(found == 1, f"{document} has no table")
    document.write_text(before + heading + new, encoding="utf-8")


def all_worked():
    return all(row[2] == "yes" for row in ROWS)
