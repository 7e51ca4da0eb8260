#!/usr/bin/env python3
"""What Helm makes of the chart of deploy/helm: the pod of deploy/kubernetes, and refusals of values that are wrong.

usage: render_test.py BIN_DIR (the programs whose options the chart names; those that are not there are not asked)
Needs `helm`, or the Python package helm-python-sdk, which is Helm as a library. Schemas of Kubernetes are checked
where kubernetes-validate is installed, and the likeness to the overlays where kubectl is.
"""
import copy
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import unittest

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN_DIR = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "none"
try:
    import yaml
except ImportError:
    print("skipped: needs python3-yaml (scripts/bootstrap.sh)")
    sys.exit(SKIPPED)
import renderer

if not renderer.is_there():
    print("skipped: needs helm, or the Python package helm-python-sdk")
    sys.exit(SKIPPED)
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None

CUSTOM = ("ServiceMonitor", "ScaledObject")  # Kubernetes itself has no schema of these
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}


def example(name):
    return yaml.safe_load((renderer.CHART / f"examples/{name}.yaml").read_text(encoding="utf-8"))


VARIANTS = {
    "defaults": {},
    "demo": example("demo"),
    "gpu": example("gpu"),
    "open": {"apiKey": {"secret": ""}, "gateway": {"enabled": False}, "networkPolicy": {"enabled": False},
             "podDisruptionBudget": {"enabled": False}, "cache": {"existingClaim": "contexts"}},
    "everything": {
        "fullnameOverride": "llm", "device": "cuda", "replicas": 2, "runtimeClassName": "nvidia",
        "priorityClassName": "high", "nodeSelector": {"gpu": "h100"}, "podAnnotations": {"a": "b"},
        "podLabels": {"team": "search"}, "affinity": {"podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}]}},
        "images": {"pullSecrets": [{"name": "registry"}], "worker": {
            "repository": "registry.example:5000/retroinfer/gpu-worker", "digest": "sha256:" + "0" * 64}},
        "model": {"fetch": {"image": "registry.example/fetch:1", "args": ["Qwen/Qwen3-8B"], "scratchSize": "1Gi",
                            "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "t"}}}]}},
        "worker": {"settings": {"max-batch": 16, "max-model-len": 1048576, "kv-dtype": "int8",
                                "retrieval-ratio": 0.018}},
        "store": {"settings": {"cache-ttl": "24h", "cache-optional": True}},
        "gateway": {"settings": {"page": "off", "max-body-bytes": 67108864, "strict-parameters": True,
                                 "served-model-name": ["gpt-4o", "*"]}},
        "cache": {"perPod": True, "storageClass": "local"},
        "tenants": {"secret": "tenants"}, "tls": {"secret": "cert", "clientCa": True},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "ingress": {"enabled": True, "className": "nginx", "host": "llm.example", "tlsSecret": "llm-tls",
                    "annotations": {"a": "b"}},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "autoscaling": {"enabled": True},
    },
}
VARIANTS["by an adapter"] = {"cache": {"perPod": True}, "autoscaling": {"enabled": True, "by": "hpa"}}
RENDERED = {name: renderer.render(values) for name, values in VARIANTS.items()}


def one(documents, kind):
    found = [document for document in documents if document["kind"] == kind]
    assert len(found) == 1, f"{kind}: {len(found)}"
    return found[0]


def pod(documents):
    return one(documents, "Deployment")["spec"]["template"]["spec"]


def container(documents, name):
    return next(c for c in pod(documents)["containers"] + pod(documents).get("initContainers", [])
                if c["name"] == name)


def bytes_of(text):
    number, unit = re.fullmatch(r"(\d+)([A-Z]i)", text).groups()
    return int(number) * UNITS[unit]


def settings_of(documents, file):
    return tomllib.loads(one(documents, "ConfigMap")["data"][file])


class Likeness(unittest.TestCase):
    """An example is the overlay of the same machine, but for names and labels."""

    def setUp(self):
        version = shutil.which("kubectl") and subprocess.run(
            ["kubectl", "version", "--client"], capture_output=True, text=True, check=False).stdout
        if not version or not re.search(r"Kustomize Version: v([5-9]|\d\d)", version):
            self.skipTest("needs kubectl 1.27 or later, which renders the overlays")

    def overlay(self, name):
        result = subprocess.run(["kubectl", "kustomize", ROOT / "deploy/kubernetes/overlays" / name],
                                capture_output=True, text=True, check=True)
        return [document for document in yaml.safe_load_all(result.stdout) if document]

    def alike(self, documents):
        """What both must have, without what only one of the two tools adds: {kind: document}."""
        found = {}
        for document in copy.deepcopy(documents):
            kind = document["kind"]
            document["metadata"] = {}
            if kind == "ConfigMap":
                document["data"] = {name: settings_of(documents, name) for name in document["data"]}
                # The chart says it where the overlay relies on `auto`.
                if document["data"]["gpu_worker.conf"].get("device") == "cpu":
                    del document["data"]["gpu_worker.conf"]["device"]
            if kind == "Deployment":
                template = document["spec"]["template"]
                template["metadata"] = {}
                for volume in template["spec"]["volumes"]:
                    if "configMap" in volume:
                        volume["configMap"]["name"] = volume["configMap"]["name"].split("settings")[0]
                for two in template["spec"]["containers"] + template["spec"].get("initContainers", []):
                    two.pop("imagePullPolicy", None)
                    for part in two["resources"].values():
                        # Overlays round up to whole GiB.
                        part["memory"] = -(-bytes_of(part["memory"]) // (1 << 30))
                    two["args"] = sorted(two.get("args", []))
                    two["volumeMounts"].sort(key=lambda mount: mount["name"])
                template["spec"]["volumes"].sort(key=lambda volume: volume["name"])
            self.assertNotIn(kind, found)
            found[kind] = document
        found["Service"]["spec"].setdefault("type", "ClusterIP")
        return found

    def test_examples_are_the_overlays(self):
        for mine, theirs in (("demo", "cpu"), ("gpu", "gpu")):
            chart, overlay = self.alike(RENDERED[mine]), self.alike(self.overlay(theirs))
            self.assertEqual(set(chart), set(overlay))
            for kind, document in overlay.items():
                with self.subTest(f"{mine}: {kind}"):
                    self.maxDiff = None
                    self.assertEqual(chart[kind], document)


class Rendered(unittest.TestCase):
    def test_lint(self):
        for name, values in VARIANTS.items():
            with self.subTest(name):
                self.assertEqual(renderer.lint(values), [])

    def test_schemas_of_kubernetes(self):
        if kubernetes_validate is None:
            self.skipTest("needs the Python package kubernetes-validate")
        for name, documents in RENDERED.items():
            for document in documents:
                if document["kind"] not in CUSTOM:
                    with self.subTest(f"{name}: {document['kind']}"):
                        kubernetes_validate.validate(document, "1.30", strict=True)

    def test_limits_and_times_follow(self):
        for arena, memory, drain in ((1, 2, 120), (100, 48, 1), (1024, 700, 3600)):
            documents = renderer.render({"store": {"arenaGiB": arena}, "worker": {"memoryGiB": memory},
                                         "drainSeconds": drain})
            # docs/operate/operations.md, "Sizes".
            self.assertEqual(bytes_of(container(documents, "kv-store")["resources"]["limits"]["memory"]),
                             (arena << 30) * 65 // 64 + (512 << 20))
            self.assertEqual(bytes_of(container(documents, "gpu-worker")["resources"]["limits"]["memory"]),
                             (memory << 30) * 9 // 8)
            self.assertEqual(settings_of(documents, "kv_store_service.conf")["arena-bytes"], f"{arena}GiB")
            self.assertEqual(settings_of(documents, "gpu_worker.conf")["memory"], f"{memory}GiB")
            for two in pod(documents)["containers"]:
                self.assertEqual(two["resources"]["requests"]["memory"], two["resources"]["limits"]["memory"])
                self.assertNotIn("cpu", two["resources"]["limits"])
            wait = next(word for word in container(documents, "kv-store")["lifecycle"]["preStop"]["exec"]["command"]
                        if word.startswith("--wait="))
            wait = int(re.fullmatch(r"--wait=(\d+)s", wait)[1])
            self.assertEqual(settings_of(documents, "gpu_worker.conf")["drain-timeout"], f"{drain}s")
            self.assertIn(f"--drain-timeout={drain}s", container(documents, "http-gateway")["args"])
            self.assertGreater(wait, 5 + drain)
            self.assertLessEqual(wait + 10, pod(documents)["terminationGracePeriodSeconds"])

    def test_settings_reach_the_programs(self):
        documents = RENDERED["everything"]
        worker = settings_of(documents, "gpu_worker.conf")
        self.assertEqual((worker["max-batch"], worker["max-model-len"], worker["kv-dtype"]),
                         (16, 1048576, "int8"))
        self.assertEqual(settings_of(documents, "kv_store_service.conf")["cache-optional"], True)
        words = container(documents, "http-gateway")["args"]
        for word in ("--page=off", "--max-body-bytes=67108864", "--served-model-name=gpt-4o,*",
                     "--tenants-file=/etc/retroinfer-tenants/tenants.toml"):
            self.assertIn(word, words)
        self.assertFalse([word for name in ("http-gateway", "gpu-worker")
                          for word in container(documents, name)["args"] if "api-key" in word])
        self.assertIn("--tls-client-ca=/etc/retroinfer-tls/ca.crt", container(documents, "gpu-worker")["args"])

    def test_a_draft_model_is_named(self):
        worker = settings_of(renderer.render({"model": {"draft": "small"}}), "gpu_worker.conf")
        self.assertEqual((worker["draft-model"], worker["speculation"]), ("/models/model/small", "auto"))
        self.assertNotIn("draft-model", settings_of(RENDERED["open"], "gpu_worker.conf"))

    def test_options_are_those_of_the_programs(self):
        asked = 0
        for name, program, file in (("gpu-worker", "gpu_worker", "gpu_worker.conf"),
                                    ("kv-store", "kv_store_service", "kv_store_service.conf"),
                                    ("http-gateway", "http_gateway", None)):
            if not (BIN_DIR / program).exists():
                continue
            text = subprocess.run([BIN_DIR / program, "--help"], capture_output=True, text=True, check=True).stdout
            known = set(re.findall(r"^\s*--([\w-]+)", text, re.MULTILINE))
            for variant, documents in RENDERED.items():
                if variant == "open" and name == "http-gateway":
                    continue
                used = {word[2:].split("=")[0] for word in container(documents, name)["args"]}
                used |= set(settings_of(documents, file)) if file else set()
                self.assertEqual(used - known, set(), f"{variant}: {program}")
            asked += 1
        if not asked:
            self.skipTest(f"no programs in {BIN_DIR}")

    def test_every_container_is_confined(self):
        for name, documents in RENDERED.items():
            spec = pod(documents)
            self.assertEqual(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertIs(spec["automountServiceAccountToken"], False)
            for two in spec["containers"] + spec.get("initContainers", []):
                self.assertEqual(two["securityContext"], {"allowPrivilegeEscalation": False, "capabilities": {
                    "drop": ["ALL"]}, "readOnlyRootFilesystem": True}, f"{name}: {two['name']}")
            mounted = {mount["name"] for two in spec["containers"] + spec.get("initContainers", [])
                       for mount in two["volumeMounts"]}
            self.assertEqual(mounted, {volume["name"] for volume in spec["volumes"]}, name)

    def test_selectors_choose_the_pod(self):
        for name, documents in RENDERED.items():
            labels = one(documents, "Deployment")["spec"]["template"]["metadata"]["labels"]
            for document in documents:
                spec = document.get("spec", {})
                selector = spec.get("selector", spec.get("podSelector"))
                if selector:
                    selector = selector.get("matchLabels", selector)
                    self.assertEqual(len(selector), 3)
                    self.assertLessEqual(selector.items(), labels.items(), f"{name}: {document['kind']}")
                self.assertEqual(document["metadata"]["labels"]["app.kubernetes.io/managed-by"], "Helm")

    def test_optional_parts(self):
        kinds = {name: sorted(d["kind"] for d in documents) for name, documents in RENDERED.items()}
        self.assertEqual(kinds["open"], ["ConfigMap", "Deployment", "Service", "ServiceAccount"])
        self.assertEqual(kinds["everything"], sorted([
            "ConfigMap", "Deployment", "Service", "ServiceAccount", "NetworkPolicy", "PodDisruptionBudget",
            "Ingress", "ServiceMonitor", "ScaledObject"]))
        self.assertIn("PersistentVolumeClaim", kinds["defaults"])
        self.assertNotIn("Ingress", kinds["defaults"])
        self.assertEqual(len(pod(RENDERED["open"])["containers"]), 2)
        everything = RENDERED["everything"]
        self.assertNotIn("replicas", one(everything, "Deployment")["spec"])  # the autoscaler's
        self.assertIn("ephemeral", next(v for v in pod(everything)["volumes"] if v["name"] == "cache"))
        self.assertEqual(container(everything, "gpu-worker")["image"],
                         "registry.example:5000/retroinfer/gpu-worker@sha256:" + "0" * 64)
        claim = next(v for v in pod(everything)["volumes"] if v["name"] == "model")["persistentVolumeClaim"]
        self.assertIs(claim["readOnly"], False)  # the init container writes
        self.assertIn("HorizontalPodAutoscaler", kinds["by an adapter"])
        self.assertNotIn("ScaledObject", kinds["by an adapter"])
        self.assertNotIn("replicas", one(RENDERED["by an adapter"], "Deployment")["spec"])
        query = one(everything, "ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
        self.assertIn("| `retroinfer_requests_waiting` | gauge |",
                      (ROOT / "docs/operate/metrics.md").read_text(encoding="utf-8"))
        self.assertIn("retroinfer_requests_waiting{", query)
        pattern = re.search(r'node=~"([^"]+)"', query)[1]
        self.assertTrue(re.fullmatch(pattern, "llm-7d9f8b6c5d-x2x4z"))
        self.assertFalse(re.fullmatch(pattern, "llm-other-7d9f8b6c5d-x2x4z"))

    def test_a_change_of_settings_rolls_the_pod(self):
        sums = {one(renderer.render(values), "Deployment")["spec"]["template"]["metadata"]["annotations"]
                ["checksum/settings"]
                for values in ({}, {"store": {"arenaGiB": 2}}, {"worker": {"settings": {"max-batch": 3}}})}
        self.assertEqual(len(sums), 3)

    def test_names_are_of_the_release(self):
        for document in renderer.render({}, release="blue"):
            self.assertTrue(document["metadata"]["name"].startswith("blue-retroinfer"), document["kind"])

    def test_notes(self):
        text = renderer.notes({})
        self.assertIn("create secret generic retroinfer-api-key", text)
        self.assertIn("1552Mi", text)
        self.assertNotIn("WARNING", text)
        self.assertEqual(renderer.notes(VARIANTS["open"]).count("WARNING"), 2)
        self.assertIn("https://llm.example/v1", renderer.notes(VARIANTS["everything"]))

    def test_wrong_values_are_refused(self):
        for values, reason in (
                ({"arena": 3}, "arena"),
                ({"device": "gpu"}, "device"),
                ({"store": {"arenaGiB": 0}}, "arenaGiB"),
                ({"store": {"arenaGiB": "1GiB"}}, "arenaGiB"),
                ({"worker": {"gpuMemoryUtilization": 1.5}}, "gpuMemoryUtilization"),
                ({"worker": {"gpus": {"count": 2}}}, "count"),
                ({"worker": {"settings": {"socket-dir": "/tmp"}}}, "socket-dir"),
                ({"worker": {"settings": {"chat-template": 'a" b'}}}, "chat-template"),
                ({"worker": {"settings": {"policy": "wave\ndevice = cpu"}}}, "policy"),
                ({"worker": {"settings": {"policy": {"a": 1}}}}, "policy"),
                ({"gateway": {"settings": {"--page": "off"}}}, "--page"),
                ({"images": {"worker": {"digest": "latest"}}}, "digest"),
                ({"podLabels": {"app.kubernetes.io/name": "x"}}, "app.kubernetes.io/name"),
                ({"networkPolicy": {"clients": []}}, "clients"),
                ({"cache": {"contextsGiB": 10}}, "95 %"),
                ({"replicas": 2}, "cache.perPod"),
                ({"autoscaling": {"enabled": True}}, "cache.perPod"),
                ({"autoscaling": {"minReplicas": 4}}, "minReplicas"),
                ({"cache": {"perPod": True, "existingClaim": "a"}}, "existingClaim"),
                ({"model": {"claim": ""}}, "model.fetch.image"),
                ({"model": {"draft": "../other"}}, "draft"),
                ({"device": "cuda", "model": {"draft": "small"}, "worker": {"gpus": {"count": 2}}}, "model.draft"),
                ({"ingress": {"enabled": True}}, "ingress.host"),
                ({"ingress": {"enabled": True, "host": "a.example"}, "gateway": {"enabled": False}}, "gateway"),
                ({"tls": {"clientCa": True}}, "tls.secret")):
            with self.subTest(str(values)):
                with self.assertRaises(renderer.Refused) as refused:
                    renderer.render(values)
                self.assertIn(reason, str(refused.exception))


if __name__ == "__main__":
    unittest.main()
