"""What a file of checks needs: `@check`, the servers' addresses, and a script for the worker.

Runs in the environment of the packages that are tried, so it uses the standard library only. `main()` runs the checks of
the packages that the command line names (all without any), and writes a JSON line for each.
"""
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import urllib.request

PATIENCE = 180  # seconds, for one check

CHECKS = []


class At:
    """Where to ask: the server's URL with /v1, without it (`root`), its key and its model."""

    def __init__(self, kind):
        self.root = os.environ[f"RETROINFER_{kind}_URL"]
        self.url = self.root + "/v1"
        self.key = os.environ[f"RETROINFER_{kind}_KEY"]
        self.model = os.environ[f"RETROINFER_{kind}_MODEL"]


def check(package, what, *, model="scripted", fails=""):
    """Registers a check. `model`: "scripted", the worker plays what `play` was given, or "real", a model does the writing.
    `fails`: why the check is expected to fail, for what this server does not offer."""
    def register(function):
        CHECKS.append((package, what, model, fails, function))
        return function
    return register


def real():
    """The server whose answers a model writes."""
    return At("REAL")


def expect(condition, what=""):
    if not condition:
        raise AssertionError(what)


def _control(path, value=None):
    data = None if value is None else json.dumps(value).encode()
    with urllib.request.urlopen(os.environ["RETROINFER_CONTROL"] + path, data, timeout=PATIENCE) as answer:
        return json.load(answer)


def play(*answers):
    """The scripted worker's next answers: texts, REFUSE, or what `when` makes."""
    _control("/play", list(answers))


def when(words, text):
    """An answer that waits for a prompt with these words, where a package asks other things in between."""
    return {"when": words, "text": text}


def heard():
    """The requests that the worker got since `play`, as the JSON form of GenerateRequest."""
    return _control("/heard")


TOO_LONG = "a b " * 40000  # over the length of both servers' models
REFUSE = {"refuse": "QUEUE_FULL"}


def call(name, **arguments):
    """A call as models of Hermes's form write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def run(arguments, *, text=None, timeout=PATIENCE, **environment):
    """Runs a program; returns what it printed. Raises with its output where it fails."""
    done = subprocess.run(arguments, input=text, capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, **environment}, check=False)
    expect(done.returncode == 0, f"{arguments[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-1500:]}")
    return done.stdout


def expect_raises(error, function):
    """The error that the function raises, which is of this class."""
    try:
        function()
    except error as caught:
        return caught
    raise AssertionError(f"no {error.__name__}")


def _overdue(*_):
    raise TimeoutError(f"not done within {PATIENCE} s")


def main():
    wanted = sys.argv[1:]
    results = os.fdopen(int(os.environ["RETROINFER_RESULTS"]), "w")  # packages print on the standard output
    signal.signal(signal.SIGALRM, _overdue)
    for package, what, model, fails, function in CHECKS:
        if wanted and package not in wanted:
            continue
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        _control("/begin", {"package": package, "what": what, "model": model})
        play()
        result = {"package": package, "version": version, "what": what, "model": model, "fails": fails, "error": ""}
        began = time.monotonic()
        signal.alarm(PATIENCE)
        try:
            result["note"] = function(At(model.upper())) or ""
        except (Exception, SystemExit) as error:  # the driver shows which
            result["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:4000]
            result["trace"] = traceback.format_exc()[-6000:]
        finally:
            signal.alarm(0)
        result["seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps(result), file=results, flush=True)
    os._exit(0)  # threads of packages may still wait for something
