"""What packages sent, cut down to what a test needs: no keys, no headers, and no prose but this project's own."""
import json

import answers

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
LONGEST_TEXT = 40  # characters; longer ones may be the packages' own prompts
LARGEST_FILE = 8192  # bytes
# Values that are no prose, however long.
KEPT = ("arguments", "call_id", "encrypted_content", "enum", "id", "model", "pattern", "tool_call_id", "tool_use_id")


def without_prose(value, key=""):
    if isinstance(value, dict):
        return {name: without_prose(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [without_prose(one, key) for one in value]
    if isinstance(value, str) and len(value) > LONGEST_TEXT and key not in KEPT:
        return f"A text of {len(value)} characters."
    return value


def shape(value):
    """What of a request differs from another one, its texts aside."""
    if isinstance(value, dict):
        return sorted((name, shape(one)) for name, one in value.items())
    if isinstance(value, list):
        return sorted({json.dumps(shape(one)) for one in value})
    return value if isinstance(value, bool) else type(value).__name__


def requests_of(result):
    for exchange in result["exchanges"]:
        if exchange.path.split("?")[0] not in PATHS or exchange.status != 200:
            continue
        body = json.loads(exchange.body)
        text, calls = answers.read(exchange.path, exchange.answer.decode())
        yield {"title": result["what"], "path": exchange.path, "body": without_prose(body), "text": text, "calls": calls}


def write(folder, results):
    """A file for each package, with requests of every shape that it sent and that were answered, as far as they fit."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in dict.fromkeys(result["package"] for result in results):
        seen, kept, size = set(), [], 4
        for request in (one for result in results if result["package"] == package for one in requests_of(result)):
            mark = request["path"] + json.dumps(shape(request["body"]))
            line = json.dumps(request, ensure_ascii=False, separators=(",", ":"))
            if mark in seen or size + len(line.encode()) + 2 > LARGEST_FILE:
                continue
            seen.add(mark)
            kept.append(line)
            size += len(line.encode()) + 2
        if kept:
            (folder / f"{package}.json").write_text("[\n" + ",\n".join(kept) + "\n]\n", encoding="utf-8")
