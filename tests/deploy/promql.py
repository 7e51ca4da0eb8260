"""What a PromQL expression reads: enough of the language's lexis to name the series, no more."""
import re

# Functions are followed by a bracket; these words are not, or not always.
_WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right",
          "bool", "offset", "inf", "nan"}
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"' r"|'(?:[^'\\]|\\.)*'")


def selectors(expression):
    """Returns [(metric, matchers)] in the order of the text; matchers as text, with braces, or ''."""
    strings = []

    def hide(match):
        strings.append(match.group(0))
        return f"\x00{len(strings) - 1}\x00"

    def show(text):
        return re.sub("\x00(\\d+)\x00", lambda match: strings[int(match.group(1))], text)

    text = _STRING.sub(hide, expression)
    text = re.sub(r"\[[^\]]*\]", " ", text)                    # ranges
    text = re.sub(r"\boffset\s+-?\w+", " ", text)
    text = _GROUPING.sub(" ", text)
    text = re.sub(r"(?<![a-zA-Z_:0-9])[0-9][0-9.]*(?:e[+-]?[0-9]+)?", " ", text)
    found = []
    for match in re.finditer(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.sub(r"\{[^{}]*\}", blank, text)):
        name = match.group(0)
        after = text[match.end():].lstrip()
        if name.lower() in _WORDS or after.startswith("("):
            continue
        matchers = after[:after.index("}") + 1] if after.startswith("{") else ""
        found.append((name, show(matchers)))
    return found


def blank(match):
    return " " * len(match.group(0))


def metrics(expression):
    """Returns the set of metric names."""
    return {name for name, _ in selectors(expression)}


def base_name(metric):
    """Returns the name under which a service shows a series: histograms have three suffixes more."""
    return re.sub(r"_(bucket|sum|count)$", "", metric)
