"""A real Alertmanager with the shipped configuration: what is told, to whom, and what is not told as well."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
SKIPPED = 77  # what ctest shows as skipped
PATIENCE_S = 120  # only an Alertmanager that does not work takes so long
PROGRAM = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
if PROGRAM is None:
    print("skipped: needs prometheus-alertmanager (scripts/bootstrap.sh)")
    sys.exit(SKIPPED)


def alert(name, node, job="gpu-worker", severity="warning"):
    return {"labels": {"alertname": name, "node": node, "job": job, "severity": severity,
                       "instance": f"{node}:9401"}, "annotations": {"summary": name}}


class AlertmanagerTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="retroinfer-alertmanager-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        log_path = self.folder / "log"
        with open(log_path, "wb") as log:
            process = subprocess.Popen(
                [PROGRAM, f"--config.file={ROOT / 'deploy/prometheus/alertmanager.yml'}",
                 f"--storage.path={self.folder}", "--web.listen-address=127.0.0.1:0",
                 "--cluster.listen-address="], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

        def port():
            text = log_path.read_text(errors="replace")
            self.assertIsNone(process.poll(), text)
            return re.search(r'msg="Listening on" address=127\.0\.0\.1:(\d+)', text)

        self.url = f"http://127.0.0.1:{self.eventually(port).group(1)}/api/v2/alerts"

    def eventually(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not (result := condition()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        return result

    def post(self, *alerts):
        request = urllib.request.Request(self.url, json.dumps(alerts).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60):
            pass

    def states(self):
        """Returns {(alert, node): (told or not, receiver)}."""
        with urllib.request.urlopen(self.url, timeout=60) as answer:
            return {(one["labels"]["alertname"], one["labels"]["node"]):
                    (not one["status"]["inhibitedBy"], one["receivers"][0]["name"])
                    for one in json.load(answer)}

    def expect(self, expected):
        """Alerts are looked at one after the other, in the background."""
        try:
            self.eventually(lambda: self.states() == expected)
        except AssertionError:
            self.assertEqual(self.states(), expected)

    def test_what_follows_from_a_dead_store_is_not_told_on_its_node(self):
        self.post(alert("RetroInferDown", "a", "kv-store", "critical"),
                  alert("RetroInferStoreDetached", "a", severity="critical"),
                  alert("RetroInferQueueOld", "a"), alert("RetroInferQueueOld", "b"))
        self.expect({("RetroInferDown", "a"): (True, "page"),
                     ("RetroInferStoreDetached", "a"): (False, "page"),
                     ("RetroInferQueueOld", "a"): (False, "ticket"),
                     ("RetroInferQueueOld", "b"): (True, "ticket")})

    def test_corruption_is_told_although_tokens_are_late(self):
        self.post(alert("RetroInferEngineStalled", "a", severity="critical"),
                  alert("RetroInferTokensLate", "a", severity="critical"),
                  alert("RetroInferCorruption", "a", "kv-store", "critical"))
        self.expect({("RetroInferEngineStalled", "a"): (True, "page"),
                     ("RetroInferTokensLate", "a"): (False, "page"),
                     ("RetroInferCorruption", "a"): (True, "page")})


if __name__ == "__main__":
    unittest.main()
