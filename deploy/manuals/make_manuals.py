#!/usr/bin/env python3
"""Writes manual pages and shell completion from the programs' own lists of options.

usage: make_manuals.py BIN_DIR OUTPUT_DIR

BIN_DIR has retroinfer, gpu_worker, kv_store_service and http_gateway; each prints its options for --option-list
(common/config/option_list.h). OUTPUT_DIR gets man/*.1, retroinfer.bash, _retroinfer (zsh) and
retroinfer.fish. The same programs give the same bytes.
"""
import json
import pathlib
import re
import subprocess
import sys

SERVICES = {
    "gpu_worker": "loads a model and serves the generation API of RetroInfer Server",
    "kv_store_service": "keeps the KV pages of a gpu_worker in shared memory",
    "http_gateway": "serves OpenAI's HTTP API for a gpu_worker of RetroInfer Server",
}
# What a value names, where the list of options does not say: see value_kind().
FOLDER_OPTIONS = ("--model", "--socket-dir", "--cache-dir", "--bin-dir")
FILE_OPTIONS = ("--config", "--file", "--json-file", "--result-file", "--api-key-file",
                "--tls-certificate", "--tls-key", "--tls-client-ca", "--tls-ca", "--log-file",
                "--chat-template", "--worker-api-key-file", "--worker-tls-ca",
                "--worker-tls-certificate", "--worker-tls-key")


class Command:
    """One program or subcommand: its words, one line about it, its options, its subcommands."""

    def __init__(self, words, summary, bin_dir):
        self.words = words
        self.summary = summary
        self.options = []
        self.commands = []
        text = ask(bin_dir, [*words, "--option-list"])
        if text.startswith("{"):
            listed = json.loads(text)
            self.description = listed["description"]
            self.options = listed["options"]
            for option in self.options:
                option["default"] = printable_default(option["default"])
        else:
            self.description = ""
            for line in text.splitlines():
                name, help_text = line.split("\t", 1)
                self.commands.append(Command([*words, name], help_text, bin_dir))

    @property
    def page(self):
        return "-".join(self.words)

    def walk(self):
        yield self
        for command in self.commands:
            yield from command.walk()

    def flags(self):
        return [flag for option in self.options for flag in option["flags"]]


def ask(bin_dir, words):
    result = subprocess.run([str(bin_dir / words[0]), *words[1:]], capture_output=True, text=True,
                            check=False, env={"LC_ALL": "C"})
    if result.returncode != 0:
        sys.exit(f"make_manuals: {' '.join(words)} failed:\n{result.stderr}")
    return result.stdout


def printable_default(text):
    """A default as people write it, and the same whoever makes the page."""
    if text.startswith("[") and text.endswith("]"):  # a list
        text = text[1:-1]
    return re.sub(r"/tmp/retroinfer-\d+", "$XDG_RUNTIME_DIR/retroinfer or /tmp/retroinfer-UID", text)


# --- Manual pages

def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\n".join("\\&" + line if line.startswith(".") else line for line in text.split("\n"))


def version(bin_dir):
    # The number alone: a page need not change with every commit.
    return next(word for word in ask(bin_dir, ["retroinfer", "--version"]).split()
                if word[0].isdigit())


def option_entry(option):
    names = option["flags"] or [option["name"]]
    value = option["value"] and f" \\fI{roff(option['value'])}\\fR"
    lines = [".TP", ", ".join(f"\\fB{roff(name)}\\fR" for name in names) + (value or "")]
    help_text = option["help"].rstrip()
    lines.append(roff(help_text) + ("" if help_text.endswith((".", ":")) else "."))
    facts = []
    if option["choices"]:
        facts.append("One of " + ", ".join(f"\\fB{roff(choice)}\\fR" for choice in option["choices"]))
    if option["default"]:
        facts.append(f"Default: {roff(option['default'])}")
    if option["environment"]:
        facts.append(f"Environment: \\fB{roff(option['environment'])}\\fR")
    if facts:
        lines += [".br", ". ".join(facts) + "."]
    return lines


def manual_page(command, number, see_also):
    title = roff(command.page.upper())
    lines = [f'.TH "{title}" 1 "" "RetroInfer Server {number}" "User Commands"',
             ".SH NAME", f"{roff(command.page)} \\- {roff(command.summary)}", ".SH SYNOPSIS",
             f".B {roff(' '.join(command.words))}"]
    positional = [option for option in command.options if not option["flags"]]
    lines.append("COMMAND [OPTIONS]" if command.commands else " ".join(
        ["[OPTIONS]"] + [option["name"] if option["required"] else f"[{option['name']}]"
                         for option in positional]))
    if command.description:
        lines += [".SH DESCRIPTION", roff(command.description)]
    if command.commands:
        lines.append(".SH COMMANDS")
        for inner in command.commands:
            lines += [".TP", f"\\fB{roff(inner.words[-1])}\\fR",
                      f"{roff(inner.summary)}; see \\fB{roff(inner.page)}\\fR(1)."]
    groups = {}
    for option in command.options:
        groups.setdefault(option["group"] if option["flags"] else "Arguments", []).append(option)
    for group, options in groups.items():
        lines.append(f'.SH "{roff(group.upper())}"')
        for option in options:
            lines += option_entry(option)
    if command.options:
        lines += [".SH SETTINGS", roff(
            "An option on the command line wins over its environment variable, that over the file "
            "that --config names (TOML, a line option = value each), and that over the default.")]
    lines += [".SH \"SEE ALSO\"",
              ", ".join(f"\\fB{roff(page)}\\fR(1)" for page in see_also if page != command.page)]
    return "\n".join(lines) + "\n"


# --- Completion

def value_kind(option):
    """What to offer for an option's value: 'choices', 'folder', 'file' or '' (nothing)."""
    if option["choices"]:
        return "choices"
    for names, kind in ((FOLDER_OPTIONS, "folder"), (FILE_OPTIONS, "file")):
        if any(flag in names for flag in option["flags"]):
            return kind
    return ""


def bash_function(command):
    name = "_retroinfer_options_" + "_".join(command.words).replace("-", "_")
    lines = [f"{name}() {{", '  case "$1" in']
    for option in command.options:
        if not option["flags"] or not option["value"]:
            continue
        kind = value_kind(option)
        reply = {"choices": f"compgen -W '{' '.join(option['choices'])}' -- \"$2\"",
                 "folder": 'compgen -d -- "$2"', "file": 'compgen -f -- "$2"', "": ":"}[kind]
        lines.append(f"    {' | '.join(option['flags'])}) {reply}; return ;;")
    flags = " ".join(command.flags())
    lines += ["  esac", f"  [[ $2 == -* ]] && compgen -W '{flags}' -- \"$2\"",
              "  [[ $2 == -* ]] || compgen -f -- \"$2\"", "}"]
    return lines


BASH_MAIN = r'''
# _retroinfer: finds the command that is being written and asks its function above.
_retroinfer() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local command=${COMP_WORDS[0]##*/} index word
  # "--flag=value" comes as three words.
  if [[ $current == = ]]; then current=; fi
  if [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD - 2]}; fi
  for ((index = 1; index < COMP_CWORD; ++index)); do
    word=${COMP_WORDS[index]}
    [[ -n ${_retroinfer_commands[$command]-} ]] || break
    [[ " ${_retroinfer_commands[$command]} " == *" $word "* ]] || break
    command+=" $word"
  done
  COMPREPLY=()
  if [[ -n ${_retroinfer_commands[$command]-} ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${_retroinfer_commands[$command]} --help --version" -- "$current")
    return
  fi
  local function=_retroinfer_options_${command//[ -]/_}
  declare -F "$function" >/dev/null || return
  mapfile -t COMPREPLY < <("$function" "$previous" "$current")
  compopt -o filenames 2>/dev/null
}
'''


def bash_completion(programs):
    lines = ["# Completion of RetroInfer Server's commands for bash; made from their lists of options.",
             "declare -gA _retroinfer_commands=("]
    commands = [command for program in programs for command in program.walk()]
    for command in commands:
        if command.commands:
            inner = " ".join(inner.words[-1] for inner in command.commands)
            lines.append(f"  ['{' '.join(command.words)}']='{inner}'")
    lines.append(")")
    for command in commands:
        if not command.commands:
            lines += bash_function(command)
    lines.append(BASH_MAIN)
    lines.append("complete -F _retroinfer " + " ".join(program.words[0] for program in programs))
    return "\n".join(lines) + "\n"


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def zsh_spec(option):
    help_text = option["help"].translate(str.maketrans({"[": "(", "]": ")", ":": ";"}))
    action = {"choices": f"({' '.join(option['choices'])})", "folder": "_files -/", "file": "_files",
              "": " "}[value_kind(option)]
    value = f":{option['value']}:{action}" if option["value"] else ""
    if not option["flags"]:
        return [quoted(f"::{option['name']}:_files")]
    return [quoted(f"*{flag}{'=' if option['value'] and flag.startswith('--') else ''}"
                   f"[{help_text}]{value}") for flag in option["flags"]]


def zsh_function(command):
    name = "_" + "_".join(command.words).replace("-", "_")
    if not command.commands:
        specs = [spec for option in command.options for spec in zsh_spec(option)]
        return [f"{name}() {{", "  _arguments -s -S \\"] + [f"    {spec} \\" for spec in specs[:-1]] + [
            f"    {specs[-1]}", "}"]
    described = " ".join(quoted(f"{inner.words[-1]}:{inner.summary}") for inner in command.commands)
    cases = [f"    {inner.words[-1]}) {'_' + '_'.join(inner.words).replace('-', '_')} ;;"
             for inner in command.commands]
    return [f"{name}() {{", "  if ((CURRENT == 2)); then",
            f"    local -a commands=({described})", "    _describe command commands", "    return",
            "  fi", "  shift words", "  ((CURRENT--))", '  case "$words[1]" in', *cases, "  esac", "}"]


def zsh_completion(programs):
    names = " ".join(program.words[0] for program in programs)
    lines = [f"#compdef {names}",
             "# Completion of RetroInfer Server's commands for zsh; made from their lists of options."]
    for program in programs:
        for command in program.walk():
            lines += zsh_function(command)
    lines += ['case "$service" in'] + [f"  {p.words[0]}) _{p.words[0]} ;;" for p in programs] + ["esac"]
    return "\n".join(lines) + "\n"


def fish_completion(programs):
    lines = ["# Completion of RetroInfer Server's commands for fish; made from their lists of options."]
    for program in programs:
        for command in program.walk():
            outer, inner = command.words[0], command.words[1:]
            seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in inner)
            condition = f" -n {quoted(seen)}" if inner else ""
            for sub in command.commands:
                names = " ".join(other.words[-1] for other in command.commands)
                unseen = f"not __fish_seen_subcommand_from {names}"
                where = f"{seen}; and {unseen}" if inner else unseen
                lines.append(f"complete -c {outer} -f -n {quoted(where)} -a {sub.words[-1]} "
                             f"-d {quoted(sub.summary)}")
            for option in command.options:
                if not option["flags"]:
                    continue
                names = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                                 for flag in option["flags"])
                kind = value_kind(option)
                value = {"choices": f" -x -a {quoted(' '.join(option['choices']))}",
                         "folder": " -x -a '(__fish_complete_directories)'", "file": " -r -F",
                         "": " -x"}[kind] if option["value"] else ""
                lines.append(f"complete -c {outer}{condition} {names}{value} "
                             f"-d {quoted(option['help'])}")
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    bin_dir, output = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    programs = [Command(["retroinfer"], "the command of RetroInfer Server", bin_dir)] + [
        Command([name], summary, bin_dir) for name, summary in SERVICES.items()]
    (output / "man").mkdir(parents=True, exist_ok=True)
    for page in (output / "man").glob("*.1"):
        page.unlink()
    number = version(bin_dir)
    for program in programs:
        for command in program.walk():
            see_also = [other.words[0] for other in programs] + [inner.page for inner in command.commands]
            (output / "man" / f"{command.page}.1").write_text(
                manual_page(command, number, see_also), encoding="utf-8")
    (output / "retroinfer.bash").write_text(bash_completion(programs), encoding="utf-8")
    (output / "_retroinfer").write_text(zsh_completion(programs), encoding="utf-8")
    (output / "retroinfer.fish").write_text(fish_completion(programs), encoding="utf-8")


if __name__ == "__main__":
    main()
