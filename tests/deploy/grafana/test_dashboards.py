"""The dashboards as files: up to date, complete, and of the units that their series promise. That every query
has an answer is shown in tests/deploy/live."""
import json
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "deploy"))

import promql  # noqa: E402

GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8"))
              for path in sorted((GRAFANA / "dashboards").glob("*.json"))}
BUILT_IN = {"__auto_interval_interval", "__all"}

# Which of Grafana's units may stand for a unit of a series: powers of seconds, bytes, things counted.
UNITS = {
    promql.SECONDS: {"s"},
    (1, 0, -1): {"s"},                                    # seconds for each of something
    promql.BYTES: {"bytes"},
    (-1, 1, 0): {"binBps"},
    promql.NONE: {"percentunit", "suffix: tokens", "suffix: cores"},
    promql.COUNT: {"short"},
    (-1, 0, 1): {"reqps", "ops", "suffix: tokens/s"},
}


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries():
    for name, dashboard in DASHBOARDS.items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", panel, target


def plain(expression):
    """The expression with variables replaced by something that PromQL takes."""
    return re.sub(r"\$\w+", "1m", expression)


class GeneratedTest(unittest.TestCase):
    def test_the_files_are_what_the_description_gives(self):
        result = subprocess.run([sys.executable, str(GRAFANA / "generate.py"), "--check"],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)


class DashboardTest(unittest.TestCase):
    def test_there_are_those_that_operators_need(self):
        self.assertEqual(set(DASHBOARDS), {"overview", "latency", "cache", "store", "gateway"})

    def test_each_can_be_told_from_the_others(self):
        for key in ("uid", "title"):
            values = [dashboard[key] for dashboard in DASHBOARDS.values()]
            self.assertEqual(len(values), len(set(values)))
        for dashboard in DASHBOARDS.values():
            self.assertRegex(dashboard["uid"], r"^[a-z-]{1,40}$")

    def test_each_refreshes_and_leaves_the_time_zone_to_the_browser(self):
        for dashboard in DASHBOARDS.values():
            self.assertEqual(dashboard["timezone"], "browser")
            self.assertIn(dashboard["refresh"], dashboard["timepicker"]["refresh_intervals"])
            self.assertEqual(dashboard["time"]["to"], "now")
            self.assertGreaterEqual(dashboard["schemaVersion"], 39)
            self.assertIsNone(dashboard["id"])

    def test_variables_are_defined_before_they_are_used_and_all_are_used(self):
        for name, dashboard in DASHBOARDS.items():
            defined = [variable["name"] for variable in dashboard["templating"]["list"]]
            self.assertEqual(defined, ["datasource", "node", "instance", "interval"], name)
            used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - BUILT_IN
            self.assertEqual(used, set(defined), name)

    def test_everything_asks_the_data_source_that_the_user_chooses(self):
        def look(value):
            if isinstance(value, dict):
                if "datasource" in value:
                    self.assertEqual(value["datasource"], {"type": "prometheus", "uid": "${datasource}"})
                for inner in value.values():
                    look(inner)
            elif isinstance(value, list):
                for inner in value:
                    look(inner)

        for dashboard in DASHBOARDS.values():
            look(dashboard)

    def test_ids_are_unique_and_nothing_overlaps(self):
        for name, dashboard in DASHBOARDS.items():
            ids = [panel["id"] for panel in dashboard["panels"]]
            self.assertEqual(len(ids), len(set(ids)))
            taken = {}
            for panel in dashboard["panels"]:
                place = panel["gridPos"]
                self.assertLessEqual(place["x"] + place["w"], 24)
                for x in range(place["x"], place["x"] + place["w"]):
                    for y in range(place["y"], place["y"] + place["h"]):
                        self.assertNotIn((x, y), taken, f"{name}: {panel['title']}")
                        taken[x, y] = panel["title"]


class PanelTest(unittest.TestCase):
    def test_each_says_what_it_shows(self):
        for name, dashboard in DASHBOARDS.items():
            for panel in panels(dashboard):
                with self.subTest(f"{name}: {panel['title']}"):
                    self.assertTrue(panel["title"])
                    self.assertTrue(panel["description"].endswith("."))
                    self.assertGreater(len(panel["description"]), 20)
                    self.assertTrue(panel["fieldConfig"]["defaults"]["unit"])
                    self.assertTrue(panel["targets"])
                    references = [target["refId"] for target in panel["targets"]]
                    self.assertEqual(len(references), len(set(references)))
                    self.assertTrue(all(target["legendFormat"] for target in panel["targets"]))

    def test_legends_use_labels_that_the_query_keeps(self):
        for where, _, target in queries():
            labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = re.match(r"(?:sum|max|count) by \(([\w, ]+)\)", target["expr"])
            kept = set(grouped.group(1).split(", ")) if grouped else {"job", "instance", "node"}
            self.assertLessEqual(labels, kept, where)
            if not grouped and re.match(r"(sum|min|max|count|histogram_quantile)\(", target["expr"]):
                self.assertFalse(labels, where)

    def test_units_are_those_of_the_series(self):
        for where, panel, target in queries():
            unit = promql.Expression(plain(target["expr"])).unit
            shown = panel["fieldConfig"]["defaults"]["unit"]
            if panel["type"] == "heatmap":
                self.assertEqual(len(unit), 4, f"{where} needs buckets")
                base = promql.base_of_bucket(unit[3])
                self.assertEqual(shown, "s" if promql.measured(unit[3]) == promql.SECONDS else
                                 "percentunit" if base.endswith("_ratio") else "suffix: tokens")
                self.assertEqual(panel["options"]["yAxis"]["unit"], shown)
            else:
                self.assertIn(shown, UNITS[unit], where)
                self.assertEqual("token" in shown, "token" in plain(target["expr"]) and "_tokens" in
                                 plain(target["expr"]) and shown not in ("s", "percentunit", "ops"), where)

    def test_rates_take_the_window_that_the_user_chooses(self):
        for where, _, target in queries():
            for window in re.findall(r"\[([^\]]+)\]", target["expr"]):
                self.assertEqual(window, "$interval", where)

    def test_every_series_of_a_service_names_its_job_and_keeps_to_the_chosen_instances(self):
        for where, _, target in queries():
            for metric, matchers in promql.selectors(plain(target["expr"])):
                if metric == "ALERTS":
                    continue
                self.assertRegex(matchers, r'^\{job=~?"', f"{where}: {metric}")
                self.assertIn('instance=~', matchers, f"{where}: {metric}")

    def test_each_histogram_has_its_heat_map(self):
        shown = {promql.base_of_bucket(metric) for _, panel, target in queries() if panel["type"] == "heatmap"
                 for metric in promql.metrics(plain(target["expr"]))}
        asked = {promql.base_of_bucket(metric) for _, _, target in queries()
                 for metric in promql.metrics(plain(target["expr"])) if metric.endswith("_bucket")}
        self.assertEqual(asked, shown)
        self.assertEqual(len(shown), 9)


class ProvisioningTest(unittest.TestCase):
    def test_grafana_finds_the_data_source_and_the_dashboards(self):
        dashboards = (GRAFANA / "provisioning/dashboards/retroinfer.yml").read_text(encoding="utf-8")
        self.assertIn("path: /var/lib/grafana/dashboards", dashboards)
        source = (GRAFANA / "provisioning/datasources/prometheus.yml").read_text(encoding="utf-8")
        self.assertIn("type: prometheus", source)
        self.assertIn("isDefault: true", source)

    def test_kubernetes_gets_every_dashboard(self):
        listed = re.findall(r"dashboards/(\w+)\.json",
                            (GRAFANA / "kustomization.yaml").read_text(encoding="utf-8"))
        self.assertEqual(sorted(listed), sorted(DASHBOARDS))


if __name__ == "__main__":
    unittest.main()
