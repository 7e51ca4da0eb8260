"""Rules and dashboards against what the services really export: one server with the demo model, one run of load,
one Prometheus that scrapes both, shared by all tests here.

    tests/deploy/live/test_live.py BIN_DIR
"""
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "deploy"), str(ROOT / "tests" / "deploy" / "live"),
                str(ROOT / "deploy" / "grafana")]

SKIPPED = 77  # what ctest shows as skipped
try:
    import yaml
except ImportError:
    print("skipped: needs python3-yaml (scripts/bootstrap.sh)")
    sys.exit(SKIPPED)
for program in ("prometheus", "promtool"):
    if shutil.which(program) is None:
        print(f"skipped: needs {program} (scripts/bootstrap.sh)")
        sys.exit(SKIPPED)

import load  # noqa: E402
import picture  # noqa: E402
import promql  # noqa: E402
import stack as live  # noqa: E402

DASHBOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8"))
              for path in sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))}
RULES = [rule for path in sorted((live.PROMETHEUS / "rules").glob("*.yml"))
         for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
RECORDS = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
OF_PROMETHEUS = {"up", "ALERTS"}


def samples(exposition):
    """Yields (metric, labels as text, value) of a service's /metrics."""
    for line in exposition.splitlines():
        match = re.match(r"([a-zA-Z_:]\w*)(?:\{(.*)\})? (\S+)", line)
        if match and not line.startswith("#"):
            yield match.group(1), match.group(2) or "", match.group(3)


class Life:
    """What was seen of the stack: from its start, over idleness and load, to its end."""

    def __init__(self, stack):
        self.stack = stack
        self.stack.make_certificate()
        self.stack.start_store()
        self.store_early = self.stack.metrics("kv_store_service")
        self.stack.start_gateway()
        self._ask_early()
        self.stack.start_worker(on_port=self._look_early)
        self.stack.start_prometheus()
        self.begin = time.time()
        self.stack.wait_for_scrapes(3)
        self.alerts_of_idle = self.stack.value("ALERTS")
        self.idle = {service: self.stack.metrics(service) for service in self.stack.ports}
        load.run(self.stack)
        self.stack.wait_for_scrapes(3)
        self.end = time.time()

    def _look_early(self):
        self.worker_early = self.stack.metrics("gpu_worker")

    def _ask_early(self):
        """A client and a probe that come before there is a worker."""
        for method, path, body in (("POST", "/v1/completions", {"prompt": "x"}), ("GET", "/health", None)):
            status, text = self.stack.http(method, path, body)
            if status != 503:
                raise AssertionError(f"{path}: {status} {text}")
        self.gateway_early = self.stack.metrics("http_gateway")

    def query(self, expression):
        """The answer to a dashboard's query, with its variables replaced."""
        return self.stack.range(load.substitute(expression), self.begin, self.end, 1)


def exported():
    return set(life.stack.api("label/__name__/values"))


def setUpModule():
    global life
    stack = live.Stack(BIN_DIR, worker_options=load.WORKER_OPTIONS)
    unittest.addModuleCleanup(stack.close)
    life = Life(stack)


class DashboardsTest(unittest.TestCase):
    def test_every_query_has_an_answer(self):
        for name, dashboard in DASHBOARDS.items():
            for panel in dashboard["panels"]:
                for target in panel.get("targets", ()):
                    with self.subTest(f"{name}: {panel['title']}: {target['legendFormat']}"):
                        values = [value for _, points in life.query(target["expr"]) for _, value in points]
                        self.assertTrue(any(map(math.isfinite, values)), target["expr"])
                        if panel["fieldConfig"]["defaults"]["unit"] == "percentunit" \
                                and panel["fieldConfig"]["defaults"].get("max") == 1:
                            # A share, not a percentage. A rate over seconds is more than the share where a
                            # scrape began late and Prometheus takes the time at which it was due.
                            self.assertLessEqual(max(filter(math.isfinite, values)), 2, target["expr"])

    def test_the_load_shows_in_the_panels_that_an_operator_looks_at(self):
        """Zeros everywhere would be answers, too."""
        quiet = {"Alerts", "Firing alerts", "Waiting", "Requests that were refused"}
        for panel in DASHBOARDS["overview"]["panels"]:
            if panel["type"] != "row" and panel["title"] not in quiet:
                with self.subTest(panel["title"]):
                    values = [value for target in panel["targets"] for _, points in life.query(target["expr"])
                              for _, value in points]
                    self.assertGreater(max(filter(math.isfinite, values)), 0)

    def test_variables_find_their_values(self):
        for variable in DASHBOARDS["overview"]["templating"]["list"]:
            if variable["type"] == "query":
                selector, label = re.match(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
                selector = selector.replace("$node", ".*")
                found = life.stack.api(f"label/{label}/values", **{"match[]": selector})
                self.assertEqual(len(found), {"node": 1, "instance": 3}[label])

    def test_the_overview_can_be_drawn(self):
        results = picture.collect(DASHBOARDS["overview"], life.query)
        root = xml.etree.ElementTree.fromstring(picture.draw(DASHBOARDS["overview"], results))
        text = " ".join(root.itertext())
        for panel in DASHBOARDS["overview"]["panels"]:
            self.assertIn(panel["title"], text)
        self.assertNotIn("nan", text.lower().split())


class SeriesTest(unittest.TestCase):
    """A series that no service exports, or a label value that it does not have, makes a rule that never fires."""

    def test_rules_use_series_that_are_there(self):
        for rule in RULES:
            for metric, matchers in promql.selectors(rule["expr"]):
                if metric in OF_PROMETHEUS:
                    continue
                # The tests' server computes on the CPU.
                selector = metric + matchers.replace('backend="cuda"', 'backend="cpu"')
                with self.subTest(rule.get("alert") or rule["record"], selector=selector):
                    self.assertTrue(life.stack.api("series", **{"match[]": selector}), selector)

    def test_dashboards_use_series_that_are_there(self):
        used = {metric for dashboard in DASHBOARDS.values() for panel in dashboard["panels"]
                for target in panel.get("targets", ())
                for metric in promql.metrics(load.substitute(target["expr"]))}
        self.assertEqual(used - OF_PROMETHEUS - exported(), set())

    def test_recording_rules_have_values(self):
        for record in sorted(RECORDS):
            with self.subTest(record):
                self.assertTrue(life.stack.api("series", **{"match[]": record}))

    def test_reasons_of_refusals_that_rules_count_as_load_are_those_of_the_service(self):
        reasons = set(life.stack.api("label/reason/values",
                                     **{"match[]": "retroinfer_requests_refused_total"}))
        for rule in RULES:
            for listed in re.findall(r'requests_refused_total\{reason=~?"([^"]+)"', rule["expr"]):
                self.assertLessEqual(set(listed.split("|")), reasons)

    def test_series_of_the_unit_tests_and_of_the_runbook_are_there(self):
        known = exported() | OF_PROMETHEUS
        for path in (ROOT / "tests/deploy/prometheus/rules").glob("*_test.yml"):
            text = path.read_text(encoding="utf-8")
            self.assertEqual(set(re.findall(r"series: ([a-z_:]+)", text)) - known, set(), path.name)
        runbook = (ROOT / "docs/operate/runbook.md").read_text(encoding="utf-8")
        self.assertEqual(set(re.findall(r"`(retroinfer_\w+)`", runbook)) - known, set())

    def test_every_series_of_the_services_is_in_a_dashboard_or_left_out_on_purpose(self):
        used = {promql.base_name(metric) for dashboard in DASHBOARDS.values() for panel in dashboard["panels"]
                for target in panel.get("targets", ())
                for metric in promql.metrics(load.substitute(target["expr"]))}
        used |= {promql.base_name(metric) for rule in RULES for metric in promql.metrics(rule["expr"])}
        shown = {promql.base_name(name) for service in life.idle.values()
                    for name, _, _ in samples(service) if name.startswith("retroinfer_")}
        self.assertEqual(shown - used - LEFT_OUT, set())
        self.assertEqual(LEFT_OUT & used, set())


# Names of builds and models, what only the log itself is about, and totals of what the dashboards show as bytes or rates.
LEFT_OUT = {
    "retroinfer_model_info", "retroinfer_cache_config_info",
    "retroinfer_clusters", "retroinfer_memory_adoptions_total", "retroinfer_durable_tier",
    "retroinfer_durable_restored_total", "retroinfer_durable_evicted_bytes_total",
    "retroinfer_contexts_expired_total",
    "retroinfer_log_lines_dropped_total",
    "retroinfer_mirror_slots", "retroinfer_mirror_slots_used",
}


class AlertsTest(unittest.TestCase):
    def test_nothing_fires_or_is_about_to_on_an_idle_server(self):
        self.assertEqual([alert["metric"] for alert in life.alerts_of_idle], [])

    def test_nothing_fired_under_a_load_that_the_server_can_take(self):
        fired = life.stack.value('count_over_time(ALERTS{alertstate="firing"}[1h])')
        self.assertEqual([alert["metric"] for alert in fired], [])

    def test_nothing_fires_in_a_normal_start_and_eight_idle_hours(self):
        """The series are the real ones: of the first moment, and of the idle server; time is promtool's.

        Minute 0: nothing runs yet. From minute 2 on the processes answer, the worker loads its model until
        minute 12, and is idle then.
        """
        hours, step = 8, 2
        steps = hours * 60 // step
        loaded = 6
        inputs = {}

        def add(job, exposition, begin, end):
            for name, labels, value in samples(exposition):
                if name == "process_start_time_seconds":
                    value = "100"
                elif name.endswith("_timestamp_seconds") and float(value) > 0:
                    value = str(float(value) - life.begin)
                series = f'{name}{{job="{job}", instance="{job}:1", node="here"{", " * bool(labels)}{labels}}}'
                values = inputs.setdefault(series, ["_"] * steps)
                values[begin:end] = [value] * (end - begin)

        add("http-gateway", life.gateway_early, 1, loaded)
        add("http-gateway", life.idle["http_gateway"], loaded, steps)
        add("kv-store", life.store_early, 1, loaded)
        add("kv-store", life.idle["kv_store_service"], loaded, steps)
        # The demo model may have been loaded before the first look.
        add("gpu-worker", life.worker_early.replace("retroinfer_ready 1", "retroinfer_ready 0"), 1, loaded)
        add("gpu-worker", life.idle["gpu_worker"], loaded, steps)
        for job in live.JOBS:
            inputs[f'up{{job="{job}", instance="{job}:1", node="here"}}'] = ["0"] + ["1"] * (steps - 1)
        test = {
            "rule_files": [str(live.PROMETHEUS / "rules" / "*.yml")], "evaluation_interval": f"{step}m",
            "tests": [{
                "interval": f"{step}m",
                "input_series": [{"series": series, "values": " ".join(values)}
                                 for series, values in inputs.items() if "Nan" not in values],
                "promql_expr_test": [
                    {"expr": f'count_over_time(ALERTS{{alertstate="firing"}}[{hours}h])',
                     "eval_time": f"{hours * 60 - step}m", "exp_samples": []},
                    {"expr": "count(up == 1) + count(retroinfer_ready == 1)",
                     "eval_time": f"{hours * 60 - step}m", "exp_samples": [{"labels": "{}", "value": 4}]}]}]}
        path = life.stack.folder / "idle_test.yml"
        path.write_text(json.dumps(test), encoding="utf-8")
        result = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True,
                                check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    unittest.main()
