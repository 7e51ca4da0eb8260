#!/usr/bin/env python3
"""What --help and --version of all programs and commands say.

usage: help_test.py BIN_DIR
"""
import pathlib
import re
import subprocess
import sys
import unittest

BIN = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else pathlib.Path("build/release/bin")
ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVICES = ("gpu_worker", "kv_store_service", "http_gateway")
OPTION = re.compile(r"^  (?:-\w,)?--([a-z0-9-]+)", re.MULTILINE)


def run(*command):
    result = subprocess.run([str(BIN / command[0]), *command[1:]], capture_output=True, text=True,
                            stdin=subprocess.DEVNULL, check=False)
    return result


def commands():
    listing = run("retroinfer", "--help").stdout
    names = re.findall(r"^  (\w+) ", listing, re.MULTILINE)
    cache = run("retroinfer", "cache", "--help").stdout
    actions = re.findall(r"^  (\w+) ", cache, re.MULTILINE)
    found = [("retroinfer", name) for name in names]
    return found + [("retroinfer", "cache", name) for name in actions] + [(name,) for name in SERVICES]


def options_of(command):
    """Option -> its whole text in the help."""
    text = run(*command, "--help").stdout
    places = [(match.start(), match.group(1)) for match in OPTION.finditer(text)]
    ends = [start for start, _ in places[1:]] + [len(text)]
    return {name: text[start:end] for (start, name), end in zip(places, ends)}


class Help(unittest.TestCase):
    def test_there_are_commands(self):
        self.assertGreater(len(commands()), 10)

    def test_help_fits_80_columns(self):
        for command in [*commands(), ("retroinfer",)]:
            result = run(*command, "--help")
            self.assertEqual(result.returncode, 0, command)
            self.assertEqual(result.stderr, "", command)
            for line in result.stdout.splitlines():
                self.assertLessEqual(len(line), 80, f"{command}: {line}")

    def test_version_has_the_name_and_the_commit(self):
        for command in [("retroinfer",), *[(name,) for name in SERVICES]]:
            result = run(*command, "--version")
            self.assertEqual(result.returncode, 0)
            self.assertRegex(result.stdout, rf"^{command[0]} \d+\.\d+\.\d+ \(\w+\)\n$")

    def test_all_settings_are_known_to_all_programs(self):
        """Otherwise one program would warn of the other's variable."""
        source = (ROOT / "common/config/setting_names.cc").read_text(encoding="utf-8")
        listed = set(re.findall(r'"([a-z0-9-]+)"', source[:source.index("kVariables")]))
        for command in commands():
            for name in options_of(command):
                if name not in ("help", "version"):
                    self.assertIn(name, listed, f"add --{name} of {command} to setting_names.cc")

    def test_no_variable_means_two_things(self):
        """A variable that several programs read stands for options of one name."""
        meaning = {}
        for command in commands():
            for name, text in options_of(command).items():
                if command == ("retroinfer", "serve"):  # has the options of both
                    name = {"store-metrics-address": "metrics-address"}.get(name, name)
                for variable in re.findall(r"\[(RETROINFER_\w+)\]", text):
                    if variable == "RETROINFER_METRICS_ADDRESS":
                        self.assertNotEqual(command, ("kv_store_service",))
                    self.assertEqual(meaning.setdefault(variable, name), name, variable)
        # Same name, other thing: the services' listening ends, the certificates of the two sides.
        self.assertEqual(meaning["RETROINFER_STORE_LISTEN"], "listen")
        self.assertEqual(meaning["RETROINFER_STORE_METRICS_ADDRESS"], "metrics-address")

    def test_serve_shows_the_defaults_of_the_services(self):
        serve = options_of(("retroinfer", "serve"))
        default = re.compile(r"\[default: ([^\]]*)\]")
        compared = 0
        for service in SERVICES:
            for name, text in options_of((service,)).items():
                if service == "kv_store_service" and name == "metrics-address":
                    name = "store-metrics-address"
                if (service, name) == ("http_gateway", "http"):  # which serve starts only if asked
                    continue
                if name not in serve or not default.search(text):
                    continue
                shown = default.search(" ".join(serve[name].split()))
                self.assertIsNotNone(shown, f"serve --help lacks the default of --{name}")
                self.assertEqual(shown.group(1), default.search(" ".join(text.split())).group(1), name)
                compared += 1
        self.assertGreater(compared, 20)


if __name__ == "__main__":
    unittest.main()
