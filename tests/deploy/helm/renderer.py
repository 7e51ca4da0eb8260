"""Helm, as the program `helm` or as the Python package helm-python-sdk: whichever this machine has."""
import pathlib
import shutil
import subprocess
import tempfile

import yaml

CHART = pathlib.Path(__file__).resolve().parents[3] / "deploy/helm/retroinfer"
RELEASE = "retroinfer"
NAMESPACE = "default"
try:
    import helm_python
except ImportError:
    helm_python = None


class Refused(Exception):
    """Helm does not take these values."""


def is_there():
    return shutil.which("helm") is not None or helm_python is not None


def _run(*arguments, values):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        yaml.safe_dump(values, file)
        file.flush()
        done = subprocess.run(["helm", *arguments, "--values", file.name], capture_output=True, text=True,
                              check=False)
    if done.returncode != 0:
        raise Refused(done.stderr + done.stdout)
    return done.stdout


def render(values, release=RELEASE):
    """The documents that an installation with these values would send; raises Refused."""
    if shutil.which("helm"):
        text = _run("template", release, str(CHART), "--namespace", NAMESPACE, values=values)
        return [document for document in yaml.safe_load_all(text) if document]
    return [document for name, text in _rendered(values, release).items() if not name.endswith(".txt")
            for document in yaml.safe_load_all(text) if document]


def notes(values):
    """What Helm says after an installation; raises Refused."""
    if shutil.which("helm"):
        text = _run("install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--dry-run=client", values=values)
        return text.split("\nNOTES:\n", 1)[1]
    return _rendered(values, RELEASE)["retroinfer/templates/NOTES.txt"]


def _rendered(values, release):
    with helm_python.Chart.load(CHART) as chart:
        try:
            return chart.render(values, name=release, namespace=NAMESPACE)
        except helm_python.HelmError as error:
            raise Refused(str(error)) from error


def lint(values):
    """Complaints of `helm lint --strict`, without the wish for an icon."""
    if shutil.which("helm"):
        try:
            _run("lint", str(CHART), "--strict", values=values)
        except Refused as refused:
            return [str(refused)]
        return []
    report = helm_python.lint(CHART, values, strict=True)
    return report["errors"] + [one["error"] for one in report["messages"] if one["severity"] > 1]
