#!/usr/bin/env python3
"""Packages that people build on, each as it comes, against the gateway: puts a table into docs/use/clients.md.

usage: packages.py BIN_DIR VENVS [--model FOLDER] [--only NAMES] [--report FILE] [--fixtures FOLDER] [--environments]
(tests/clients/run.sh calls it, with Debian's python3: it needs python3-grpcio.) Ends with 1 if a check failed that was not
expected to; a report has the requests and answers of those.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import package_fixtures
import package_table
from control import Control
from scripted_stack import ScriptedStack
from server import ROOT, Server

HERE = pathlib.Path(__file__).resolve().parent
# Package -> environment (requirements/*.txt), file of checks.
PACKAGES = {
    "openai": ("core", "openai_checks"),
    "anthropic": ("core", "anthropic_checks"),
    "langchain-openai": ("core", "langchain_checks"),
    "langchain": ("core", "langchain_checks"),
    "llama-index-core": ("core", "llama_index_checks"),
    "instructor": ("core", "structure_checks"),
    "pydantic-ai-slim": ("pydantic", "pydantic_ai_checks"),
    "llm": ("core", "llm_checks"),
    "litellm": ("litellm", "litellm_checks"),
    "dspy": ("litellm", "dspy_checks"),
    "smolagents": ("litellm", "smolagents_checks"),
    "mini-swe-agent": ("litellm", "mini_swe_agent_checks"),
    "strands-agents": ("litellm", "strands_checks"),
    "openai-agents": ("litellm", "openai_agents_checks"),
    "agno": ("litellm", "agno_checks"),
    "crewai": ("crewai", "crewai_checks"),
    "inspect_ai": ("agents", "inspect_checks"),
    "haystack-ai": ("agents", "haystack_checks"),
    "outlines": ("agents", "outlines_checks"),
    "mirascope": ("agents", "mirascope_checks"),
    "autogen-ext": ("agents", "autogen_checks"),
    "semantic-kernel": ("kernel", "semantic_kernel_checks"),
    "agent-framework-core": ("kernel", "agent_framework_checks"),
    "browser-use": ("browser", "browser_use_checks"),
    "gptme": ("gptme", "gptme_checks"),
    "aider-chat": ("aider", "aider_checks"),
}
# No package tells anybody that it ran, or asks a hub for anything.
QUIET = {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "ANONYMIZED_TELEMETRY": "false",
         "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HAYSTACK_TELEMETRY_ENABLED": "False", "DO_NOT_TRACK": "1",
         "HF_HUB_OFFLINE": "1", "AGNO_TELEMETRY": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1",
         "LANGSMITH_TRACING": "false", "PYTHONWARNINGS": "ignore", "CREWAI_TRACING_ENABLED": "false",
         "TOKENIZERS_PARALLELISM": "false", "NO_COLOR": "1",
         "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "2"}
PATIENCE = 3600  # seconds, for one file of checks


class Runs:
    """Runs files of checks, and keeps what came of each check with its exchanges."""

    def __init__(self, bin_dir, model):
        self.results = []
        self._scripted = ScriptedStack(bin_dir)
        self._real = Server(bin_dir, model=model, remember=True, options=("--served-model-name=real", "--max-model-len=16384"))
        self._real.model = "real"
        self._exchanges = {}
        self._current = None
        self._control = Control(self._scripted.worker, self._begin)

    def stop(self):
        self._control.close()
        self._scripted.stop()
        self._real.stop()

    def run(self, python, file, packages):
        with tempfile.TemporaryDirectory(prefix="retroinfer-packages-") as home:
            log_path = pathlib.Path(home) / "output"
            lines, results = os.pipe()
            with open(log_path, "w", encoding="utf-8") as log:
                process = subprocess.Popen([python, HERE / f"packages/{file}.py", *packages], stdout=log, stderr=log,
                                           stdin=subprocess.DEVNULL, cwd=home, pass_fds=[results],
                                           env=self._environment(python, home, results))
            os.close(results)
            before = len(self.results)
            with os.fdopen(lines) as lines:
                for line in lines:
                    self._add(json.loads(line))
            code = process.wait(PATIENCE)
            self._begin(None)
            missing = [package for package in packages
                       if package not in {result["package"] for result in self.results[before:]}]
            if code != 0 or missing:
                self._add({"package": (missing or packages)[0], "version": "", "what": "its checks run", "fails": "",
                           "model": "scripted", "error": f"ended with {code}",
                           "trace": log_path.read_text(encoding="utf-8")[-4000:]})
        for result in self.results[before:]:
            result["exchanges"] = self._exchanges.get((result["package"], result["what"]), [])

    def _add(self, result):
        self.results.append(result)
        mark = "ok" if not result["error"] else ("expected" if result["fails"] else "FAILED")
        print(f"{mark:8} {result['package']}: {result['what']} ({result.get('seconds', 0)} s) {result['error'][:160]}",
              flush=True)

    def _begin(self, what):
        """A new check is tried; what its predecessor sent and got is put by."""
        for stack in (self._scripted, self._real):
            if self._current is not None:
                self._exchanges.setdefault(self._current, []).extend(stack.recorder.exchanges())
            stack.recorder.begin("packages")
        self._current = (what["package"], what["what"]) if what is not None else None

    def _environment(self, python, home, results):
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "SSL_CERT_FILE") if name in os.environ}
        servers = {}
        for kind, stack in (("SCRIPTED", self._scripted), ("REAL", self._real)):
            servers |= {f"RETROINFER_{kind}_URL": stack.url, f"RETROINFER_{kind}_KEY": stack.key,
                        f"RETROINFER_{kind}_MODEL": stack.model}
        return {**kept, **QUIET, **servers, "RETROINFER_CONTROL": self._control.url,
                "RETROINFER_RESULTS": str(results), "HOME": home, "TMPDIR": home,
                "PATH": f"{pathlib.Path(python).parent}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}


def write_report(path, results):
    """The failures, each with what was asked and answered."""
    with open(path, "w", encoding="utf-8") as report:
        for result in results:
            if not result["error"]:
                continue
            expected = f" (expected: {result['fails']})" if result["fails"] else ""
            report.write(f"## {result['package']} {result['version']}: {result['what']}{expected}\n\n{result['error']}\n\n")
            for exchange in result["exchanges"][-3:]:
                report.write(f"{exchange.method} {exchange.path} -> {exchange.status}\n{shown(exchange.body)}\n"
                             f"=> {shown(exchange.answer)}\n\n")
            report.write(result.get("trace", "") + "\n\n")


def shown(body):
    return body.decode("utf-8", "replace")[:6000]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("venvs", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/needle", help="the model that writes")
    parser.add_argument("--only", default="", help="packages, separated by commas; the document stays as it is")
    parser.add_argument("--report", type=pathlib.Path, help="a file for failures")
    parser.add_argument("--fixtures", type=pathlib.Path, help="a folder for what the packages send")
    parser.add_argument("--environments", action="store_true", help="print those that are needed, and end")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(PACKAGES)
    if unknown := [name for name in wanted if name not in PACKAGES]:
        parser.error(f"no such package: {', '.join(unknown)}; there are {', '.join(PACKAGES)}")
    if options.environments:
        print(*dict.fromkeys(PACKAGES[name][0] for name in wanted))
        return 0
    runs = Runs(options.bin_dir.resolve(), options.model.resolve())
    try:
        for environment, file in dict.fromkeys(PACKAGES[name] for name in wanted):
            runs.run(options.venvs.resolve() / environment / "bin/python", file,
                     [name for name in wanted if PACKAGES[name] == (environment, file)])
    finally:
        runs.stop()
    if options.report is not None:
        write_report(options.report, runs.results)
    if options.fixtures is not None:
        package_fixtures.write(options.fixtures, runs.results)
    print(package_table.text(runs.results))
    if not options.only:
        package_table.write_into(ROOT / "docs/use/clients.md", runs.results)
    return 1 if any(result["error"] and not result["fails"] for result in runs.results) else 0


if __name__ == "__main__":
    sys.exit(main())
