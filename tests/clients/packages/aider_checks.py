"""Aider, a command line: edits in each of its forms, over LiteLLM."""
import pathlib

from checking import REFUSE, TOO_LONG, check, expect, heard, main, play, run

FENCE = "```"
PACKAGE = "aider-chat"


def ask(at, text, *options, message="Change it."):
    path = pathlib.Path("hello.py")
    path.write_text(text, encoding="utf-8")
    pathlib.Path("message").write_text(message, encoding="utf-8")
    printed = run(["aider", "--model", f"openai/{at.model}", "--openai-api-base", at.url, "--openai-api-key", at.key,
                   "--no-git", "--yes-always", "--no-analytics", "--no-check-update", "--no-show-model-warnings",
                   "--no-show-release-notes", "--no-pretty", "--no-suggest-shell-commands", "--no-detect-urls", *options,
                   "--message-file", "message", "hello.py"])
    return path.read_text(encoding="utf-8"), printed


@check(PACKAGE, "whole files, its default, streamed")
def _(at):
    play(f"Well.\n\nhello.py\n{FENCE}\nprint(43)\n{FENCE}\n")
    expect(ask(at, "print(42)\n")[0] == "print(43)\n")


@check(PACKAGE, "--edit-format diff, not streamed")
def _(at):
    play(f"Well.\n\nhello.py\n{FENCE}python\n<<<<<<< SEARCH\nprint(42)\n=======\nprint(43)\n>>>>>>> REPLACE\n{FENCE}\n")
    expect(ask(at, "print(42)\n", "--edit-format", "diff", "--no-stream")[0] == "print(43)\n")


@check(PACKAGE, "--edit-format udiff")
def _(at):
    play(f"Well.\n\n{FENCE}diff\n--- hello.py\n+++ hello.py\n@@ ... @@\n-print(42)\n+print(43)\n{FENCE}\n")
    expect(ask(at, "print(42)\n", "--edit-format", "udiff")[0] == "print(43)\n")


@check(PACKAGE, "an edit that does not fit is asked for again")
def _(at):
    edit = "hello.py\n" + FENCE + "python\n<<<<<<< SEARCH\nprint({})\n=======\nprint(43)\n>>>>>>> REPLACE\n" + FENCE + "\n"
    play(edit.format(99), edit.format(42))
    expect(ask(at, "print(42)\n", "--edit-format", "diff")[0] == "print(43)\n")
    expect(len(heard()) == 2)


@check(PACKAGE, "--architect: two models, one after the other; --reasoning-effort")
def _(at):
    play("Print 43 instead.", f"hello.py\n{FENCE}\nprint(43)\n{FENCE}\n")
    expect(ask(at, "print(42)\n", "--architect", "--reasoning-effort", "low",
               "--no-check-model-accepts-settings", "--editor-edit-format", "editor-whole")[0] == "print(43)\n")


@check(PACKAGE, "a prompt that is too long is named so; load is tried again")
def _(at):
    printed = ask(at, "print(42)\n", message=TOO_LONG)[1]
    expect("context window" in printed.lower() or "token limit" in printed.lower(), printed[-500:])
    play(REFUSE, f"hello.py\n{FENCE}\nprint(43)\n{FENCE}\n")
    expect(ask(at, "print(42)\n")[0] == "print(43)\n")


main()
