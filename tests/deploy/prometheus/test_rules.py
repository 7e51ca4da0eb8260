"""Prometheus' and Alertmanager's configuration: valid, every alert shown firing and not firing, every one in
the runbook. The series that the rules use are compared with those of real services in tests/deploy/live."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "deploy"))

SKIPPED = 77  # what ctest shows as skipped
try:
    import yaml
except ImportError:
    print("skipped: needs python3-yaml (scripts/bootstrap.sh)")
    sys.exit(SKIPPED)
for program in ("promtool", "amtool"):
    if shutil.which(program) is None:
        print(f"skipped: needs {program} (scripts/bootstrap.sh)")
        sys.exit(SKIPPED)

import promql  # noqa: E402

PROMETHEUS = ROOT / "deploy" / "prometheus"
UNIT_TESTS = sorted((pathlib.Path(__file__).parent / "rules").glob("*_test.yml"))
PACKAGED_DOCS = "file:///usr/share/doc/retroinfer-server"
RUNBOOK = (ROOT / "docs/operate/runbook.md").read_text(encoding="utf-8")


def load(path):
    """All scalars as text, as they are written: values like 0x60 are no numbers here."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def rules():
    return [rule for path in sorted((PROMETHEUS / "rules").glob("*.yml"))
            for group in load(path)["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RECORDS = {rule["record"]: rule for rule in rules() if "record" in rule}


def inputs_of(expression):
    """Returns the metrics that an expression reads in the end, through recording rules."""
    found = set()
    for name in promql.metrics(expression):
        found |= inputs_of(RECORDS[name]["expr"]) if name in RECORDS else {name}
    return found


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


class Base(unittest.TestCase):
    def check_program(self, *command):
        result = run(*command)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout


class ConfigurationTest(Base):
    def test_prometheus_takes_configuration_and_rules(self):
        self.check_program("promtool", "check", "config", PROMETHEUS / "prometheus.yml")

    def test_alertmanager_takes_its_configuration(self):
        self.check_program("amtool", "check-config", PROMETHEUS / "alertmanager.yml")

    def test_the_jobs_have_the_names_that_the_rules_use(self):
        jobs = {job["job_name"] for job in load(PROMETHEUS / "prometheus.yml")["scrape_configs"]}
        self.assertEqual(jobs, {"gpu-worker", "http-gateway", "kv-store"})
        for rule in rules():
            for _, matchers in promql.selectors(rule["expr"]):
                for job in re.findall(r'job=~?"([^"]*)"', matchers):
                    self.assertLessEqual(set(job.split("|")), jobs, rule["expr"])

    def test_severities_reach_their_receivers(self):
        for severity, receiver in (("critical", "page"), ("warning", "ticket")):
            routed = self.check_program("amtool", "config", "routes", "test", "--config.file",
                                        PROMETHEUS / "alertmanager.yml", f"severity={severity}")
            self.assertEqual(routed.strip(), receiver)

    def test_inhibitions_name_alerts_that_exist_and_never_the_same_on_both_sides(self):
        for inhibition in load(PROMETHEUS / "alertmanager.yml")["inhibit_rules"]:
            sides = []
            for matchers in (inhibition["source_matchers"], inhibition["target_matchers"]):
                patterns = [match.groups() for text in matchers
                            for match in [re.match(r'alertname(=~?|!=)"(.*)"', text)] if match]
                self.assertEqual(len(patterns), 1, matchers)
                operator, pattern = patterns[0]
                hit = {name for name in ALERTS if re.fullmatch(pattern, name)}
                for part in pattern.split("|"):
                    self.assertTrue(any(re.fullmatch(part, name) for name in ALERTS), part)
                sides.append(set(ALERTS) - hit if operator == "!=" else hit)
            self.assertFalse(sides[0] & sides[1], inhibition)
            self.assertEqual(inhibition["equal"], ["node"])


class KubernetesTest(Base):
    def test_the_operator_gets_the_same_groups(self):
        printed = yaml.load(self.check_program(PROMETHEUS / "prometheus_rule.py"), Loader=yaml.BaseLoader)
        self.assertEqual(printed["kind"], "PrometheusRule")
        self.assertEqual(printed["spec"]["groups"],
                         [group for path in sorted((PROMETHEUS / "rules").glob("*.yml"))
                          for group in load(path)["groups"]])

    def test_config_maps_have_every_file(self):
        generators = load(PROMETHEUS / "kustomization.yaml")["configMapGenerator"]
        listed = {name for generator in generators for name in generator["files"]}
        self.assertEqual(listed, {"prometheus.yml", "alertmanager.yml"} |
                         {f"rules/{path.name}" for path in (PROMETHEUS / "rules").glob("*.yml")})


class AlertTest(Base):
    def test_each_has_a_severity_and_a_text(self):
        for name, rule in ALERTS.items():
            with self.subTest(name):
                self.assertRegex(name, r"^RetroInfer[A-Z][A-Za-z]+$")
                self.assertIn(rule["labels"]["severity"], ("critical", "warning"))
                self.assertEqual(set(rule["annotations"]), {"summary", "description", "runbook_url"})
                self.assertEqual(rule["annotations"]["runbook_url"],
                                 f'{{{{ or $externalLabels.retroinfer_docs "{PACKAGED_DOCS}" }}}}'
                                 f"/docs/operate/runbook.md#{name.lower()}")
                self.assertTrue(rule["annotations"]["description"].endswith("."))

    def test_each_has_a_section_in_the_runbook_and_each_section_an_alert(self):
        sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
        self.assertEqual(set(sections), set(ALERTS))
        for name, text in sections.items():
            parts = re.findall(r"^\* \*\*(\w+):\*\* \S", text, re.MULTILINE)
            self.assertEqual(parts, ["Meaning", "Impact", "Look", "Do"], name)

    def test_targets_are_the_same_at_all_of_their_places(self):
        for prefix, text in (("retroinfer:first_token_late", "{} s"), ("retroinfer:token_late", "{} s")):
            bounds = {bound for name, rule in RECORDS.items() if name.startswith(prefix + ":")
                      for bound in re.findall(r'le="([^"]+)"', rule["expr"])}
            self.assertEqual(len(bounds), 1, prefix)
            users = [rule for rule in ALERTS.values() if prefix + ":" in rule["expr"]]
            self.assertEqual(len(users), 2)
            for rule in users:
                self.assertIn(text.format(bounds.copy().pop()), rule["annotations"]["description"])
        windows = {name: set(re.findall(r"\[(\w+)\]", rule["expr"])) for name, rule in RECORDS.items()}
        for name, ranges in windows.items():
            if match := re.search(r"rate(\w+)$", name):
                self.assertLessEqual(ranges, {match.group(1)}, name)


class UnitTestsOfRules(Base):
    def test_promtool_passes_them(self):
        self.check_program("promtool", "test", "rules", *UNIT_TESTS)

    def test_each_alert_fires_in_one_and_rests_in_one_that_has_its_series(self):
        fires, rests = set(), set()
        for path in UNIT_TESTS:
            for case in load(path)["tests"]:
                given = {series["series"].split("{")[0] for series in case["input_series"]}
                for check in case.get("promql_expr_test", []):
                    self.assertIn('ALERTS{alertstate="firing"}', check["expr"])
                    for sample in check["exp_samples"]:
                        fires.add(re.search(r'alertname="(\w+)"', sample["labels"]).group(1))
                for check in case.get("alert_rule_test", []):
                    name = check["alertname"]
                    self.assertNotIn("exp_alerts", check, "what fires is told by ALERTS")
                    wanted = inputs_of(ALERTS[name]["expr"])
                    if given & (wanted - {"up"} or wanted):
                        rests.add(name)
        self.assertEqual(set(ALERTS) - fires, set(), "never shown firing")
        self.assertEqual(set(ALERTS) - rests, set(), "never shown at rest")

    def test_their_series_are_those_that_the_rules_read(self):
        used = set().union(*(inputs_of(rule["expr"]) for rule in rules()))
        for path in UNIT_TESTS:
            for case in load(path)["tests"]:
                for series in case["input_series"]:
                    self.assertIn(series["series"].split("{")[0], used, path.name)

    def texts_of_firing_alerts(self, paths, external_labels):
        """promtool prints what it got where nothing was expected: so all texts are seen once."""
        texts = {}
        with tempfile.TemporaryDirectory() as folder:
            for path in paths:
                content = load(path)
                content["rule_files"] = [str((path.parent / name).resolve())
                                         for name in content["rule_files"]]
                for case in content["tests"]:
                    case["external_labels"] = external_labels
                    case["alert_rule_test"] = [
                        {"alertname": name, "eval_time": check["eval_time"]}
                        for check in case.pop("promql_expr_test", [])
                        for sample in check["exp_samples"]
                        for name in re.findall(r'alertname="(\w+)"', sample["labels"])]
                copy = pathlib.Path(folder) / path.name
                copy.write_text(yaml.safe_dump(content), encoding="utf-8")
                for name, annotations in re.findall(
                        r'Labels:\{alertname="(\w+)"[^\n]*\n\s*Annotations:(\{[^\n]*\})\n',
                        run("promtool", "test", "rules", copy).stderr):
                    texts[name] = annotations
        return texts

    def test_texts_of_firing_alerts_are_filled_in(self):
        texts = self.texts_of_firing_alerts(UNIT_TESTS, {})
        self.assertEqual(set(texts), set(ALERTS))
        for name, text in texts.items():
            self.assertNotRegex(text, r"error expanding|<no value>|NaN|Inf|  ", name)
            self.assertIn(f'"{PACKAGED_DOCS}/docs/operate/runbook.md#{name.lower()}"', text)

    def test_links_lead_where_the_operator_says(self):
        paths = [path for path in UNIT_TESTS if path.name.startswith("certificates")]
        texts = self.texts_of_firing_alerts(paths, {"retroinfer_docs": "https://wiki.example/retroinfer"})
        self.assertGreaterEqual(len(texts), 3)
        for name, text in texts.items():
            self.assertIn(f'"https://wiki.example/retroinfer/docs/operate/runbook.md#{name.lower()}"', text)

    def test_the_configuration_says_what_the_rules_take_by_themselves(self):
        configuration = load(PROMETHEUS / "prometheus.yml")
        self.assertEqual(configuration["global"]["external_labels"], {"retroinfer_docs": PACKAGED_DOCS})
        self.assertIn({"action": "labeldrop", "regex": "retroinfer_docs"},
                      configuration["alerting"]["alert_relabel_configs"])


if __name__ == "__main__":
    unittest.main()
