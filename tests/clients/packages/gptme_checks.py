"""gptme, a command line: a provider of its configuration file, tools in each of its forms."""
import json
import os
import pathlib

from checking import check, expect, heard, main, play, run, when
from shapes import ANSWER, QUESTION, call

AGENT = "You are gptme"  # the package names conversations, too, by a prompt without this
SHELL = "echo $((6 * 7))0"


def ask(at, prompt, *options, tools="shell"):
    folder = pathlib.Path(os.environ["HOME"]) / ".config/gptme"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(
        f'[[providers]]\nname = "mine"\nbase_url = "{at.url}"\napi_key = "{at.key}"\ndefault_model = "{at.model}"\n'
        '[env]\n[prompt]\n', encoding="utf-8")
    pathlib.Path("work").mkdir(exist_ok=True)
    return run(["gptme", "-n", "-m", f"mine/{at.model}", "-w", "work", "--no-workspace", "-t", tools,
                *options, prompt])


@check("gptme", "an answer, streamed", model="real")
def _(at):
    expect(ask(at, QUESTION, "--stream", tools="none"))


@check("gptme", "an answer, not streamed")
def _(at):
    play(ANSWER)
    printed = ask(at, QUESTION, "--no-stream", tools="none")
    expect(ANSWER in printed, printed)


@check("gptme", "tools as blocks of Markdown")
def _(at):
    play(when(AGENT, f"I look.\n```shell\n{SHELL}\n```\n"), when(AGENT, ANSWER))
    printed = ask(at, QUESTION, "--tool-format", "markdown")
    expect(ANSWER in printed, printed)
    expect("420" in heard()[-1]["prompt"], heard()[-1]["prompt"][-1500:])


@check("gptme", "tools as XML")
def _(at):
    play(when(AGENT, f"I look.\n<tool-use>\n<shell>\n{SHELL}\n</shell>\n</tool-use>\n"), when(AGENT, ANSWER))
    printed = ask(at, QUESTION, "--tool-format", "xml")
    expect(ANSWER in printed, printed)
    expect("420" in heard()[-1]["prompt"], heard()[-1]["prompt"][-1500:])


@check("gptme", "tools as calls of the API")
def _(at):
    play(when(AGENT, call("shell", command=SHELL)), when(AGENT, ANSWER))
    printed = ask(at, QUESTION, "--tool-format", "tool")
    expect(ANSWER in printed, printed)
    expect("420" in heard()[-1]["prompt"], heard()[-1]["prompt"][-1500:])


@check("gptme", "--output-format json, save a file")
def _(at):
    play(when(AGENT, "```save made.txt\nwell\n```\n"), when(AGENT, ANSWER))
    expect(ask(at, QUESTION, "--output-format", "json", "--tool-format", "markdown", tools="save"))
    expect(pathlib.Path("work/made.txt").read_text(encoding="utf-8").strip() == "well", json.dumps(os.listdir("work")))


main()
