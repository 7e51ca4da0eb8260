#!/usr/bin/env python3
"""The manifests of deploy/kubernetes, as kubectl renders them: confined, sized by their own settings, whole.

Schemas are checked where the Python package kubernetes-validate is installed (pip install kubernetes-validate).
Where there is no kubectl, the test says so and is skipped.
"""
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[3]
KUBERNETES = ROOT / "deploy/kubernetes"
OVERLAYS = ("cpu", "gpu", "fleet")
try:
    import yaml
except ImportError:
    print("skipped: needs python3-yaml (scripts/bootstrap.sh)")
    sys.exit(SKIPPED)


def kustomize():
    """The command that renders, or None. Before 1.27 kubectl's kustomize lacks some of what is used."""
    if shutil.which("kubectl") is not None:
        version = subprocess.run(["kubectl", "version", "--client"], capture_output=True, text=True, check=False)
        found = re.search(r"Kustomize Version: v(\d+)", version.stdout)
        if found and int(found[1]) >= 5:
            return ["kubectl", "kustomize"]
    return ["kustomize", "build"] if shutil.which("kustomize") else None


if kustomize() is None:
    print("skipped: needs kubectl 1.27 or later, or kustomize 5")
    sys.exit(SKIPPED)
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30,
         "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# What is made beside the manifests: docs/operate/containers.md and the components say how.
MADE_BY_HAND = {("Secret", "retroinfer-api-key"), ("Secret", "retroinfer-tls"),
                ("PersistentVolumeClaim", "retroinfer-model")}
# Of the services, besides arena and weights: docs/operate/operations.md, "Sizes".
STORE_BYTES = 512 << 20
STORE_SHARE_OF_ARENA = 1 / 64
WORKER_SHARE = 1 / 8


def bytes_of(text):
    number, unit = re.fullmatch(r"([\d.]+)([A-Za-z]*)", str(text)).groups()
    return float(number) * UNITS[unit]


def seconds_of(text):
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


def render(folder):
    result = subprocess.run([*kustomize(), str(folder)], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{folder}: {result.stderr}")
    return [document for document in yaml.safe_load_all(result.stdout) if document]


RENDERED = {name: render(KUBERNETES / "overlays" / name) for name in OVERLAYS}


def of_kind(documents, *kinds):
    return [document for document in documents if document["kind"] in kinds]


def workloads(documents):
    return of_kind(documents, "Deployment", "StatefulSet")


def containers(workload):
    spec = workload["spec"]["template"]["spec"]
    return spec.get("initContainers", []) + spec["containers"]


def container(documents, name):
    found = [c for workload in workloads(documents) for c in containers(workload) if c["name"] == name]
    assert len(found) == 1, f"{name}: {len(found)} containers"
    return found[0]


def settings(documents):
    """The settings files of the services: {"gpu_worker.conf": {"memory": "2GiB", ...}, ...}"""
    config = [d for d in of_kind(documents, "ConfigMap") if "gpu_worker.conf" in d["data"]]
    assert len(config) == 1
    return {name: dict(re.findall(r'^([\w-]+) = "?([^"\n]*)"?$', text, re.MULTILINE))
            for name, text in config[0]["data"].items()}


def matches(selector, labels):
    return all(labels.get(key) == value for key, value in selector.items())


class Overlays(unittest.TestCase):
    overlay = ""

    def each(self):
        for self.overlay, documents in RENDERED.items():
            yield self.overlay, documents

    def _formatMessage(self, msg, standardMsg):
        return f"overlay {self.overlay}: {super()._formatMessage(msg, standardMsg)}"

    def test_every_container_is_confined(self):
        for _, documents in self.each():
            self.assertTrue(workloads(documents))
            for workload in workloads(documents):
                spec = workload["spec"]["template"]["spec"]
                self.assertIs(spec["automountServiceAccountToken"], False)
                self.assertIs(spec["enableServiceLinks"], False)
                for key in ("hostNetwork", "hostPID", "hostIPC"):
                    self.assertFalse(spec.get(key, False), key)
                pod = spec["securityContext"]
                self.assertIs(pod["runAsNonRoot"], True)
                self.assertEqual((pod["runAsUser"], pod["runAsGroup"], pod["fsGroup"]), (10001,) * 3)
                self.assertEqual(pod["seccompProfile"], {"type": "RuntimeDefault"})
                for one in containers(workload):
                    context = one["securityContext"]
                    self.assertIs(context["readOnlyRootFilesystem"], True, one["name"])
                    self.assertIs(context["allowPrivilegeEscalation"], False, one["name"])
                    self.assertEqual(context["capabilities"], {"drop": ["ALL"]}, one["name"])
                    self.assertNotIn("runAsUser", context, "one user for all containers of a pod")
                    self.assertNotIn(":latest", one["image"])
                    self.assertIn(":", one["image"])

    def test_memory_limits_follow_from_the_settings(self):
        for name, documents in self.each():
            found = settings(documents)
            store = container(documents, "kv-store")["resources"]
            arena = bytes_of(found["kv_store_service.conf"]["arena-bytes"])
            needed = arena * (1 + STORE_SHARE_OF_ARENA) + STORE_BYTES
            limit = bytes_of(store["limits"]["memory"])
            self.assertGreaterEqual(limit, needed)
            self.assertLess(limit, needed + (1 << 30), "much more than is needed")
            worker = container(documents, "gpu-worker")["resources"]
            if name == "cpu":
                needed = bytes_of(found["gpu_worker.conf"]["memory"]) * (1 + WORKER_SHARE)
                self.assertGreaterEqual(bytes_of(worker["limits"]["memory"]), needed)
            else:
                ranks = found["gpu_worker.conf"]["tensor-parallel"]
                self.assertEqual(worker["limits"]["nvidia.com/gpu"], str(ranks))
            for resources in (store, worker):
                self.assertEqual(resources["limits"]["memory"], resources["requests"]["memory"])
                self.assertNotIn("cpu", resources["limits"], "a throttled step makes everybody wait")

    def test_the_claim_has_room_for_the_cache(self):
        for _, documents in self.each():
            claims = [d["spec"] for d in of_kind(documents, "PersistentVolumeClaim")] + [
                claim["spec"] for w in workloads(documents)
                for claim in w["spec"].get("volumeClaimTemplates", [])]
            self.assertEqual(len(claims), 1)
            cache = bytes_of(settings(documents)["kv_store_service.conf"]["cache-bytes"])
            self.assertLessEqual(cache, 0.95 * bytes_of(claims[0]["resources"]["requests"]["storage"]))

    def test_probes(self):
        for name, documents in self.each():
            for workload in workloads(documents):
                for one in workload["spec"]["template"]["spec"]["containers"]:
                    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                        self.assertIn(probe, one, one["name"])
            worker = container(documents, "gpu-worker")
            if name == "gpu":  # with TLS
                self.assertIn("--live", worker["livenessProbe"]["exec"]["command"])
                self.assertNotIn("--live", worker["readinessProbe"]["exec"]["command"])
            else:
                self.assertEqual(worker["livenessProbe"]["grpc"], {"port": 50051, "service": "retroinfer.live"})
                self.assertEqual(worker["readinessProbe"]["grpc"], {"port": 50051})
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                self.assertEqual(len({"grpc", "exec"} & set(worker[probe])), 1, probe)
            self.assertGreaterEqual(worker["startupProbe"]["periodSeconds"] *
                                    worker["startupProbe"]["failureThreshold"], 1800)
            store = container(documents, "kv-store")
            self.assertIn("--live", store["livenessProbe"]["exec"]["command"])
            # Sockets that probes ask are those that the settings open.
            listen = worker_listen(documents)
            for text in re.findall(r"unix:[^\s\"',\]]+", str(worker)):
                self.assertIn(text, listen)
            sockets = settings(documents)["kv_store_service.conf"]["socket-dir"]
            self.assertIn(f"unix:{sockets}/kv_store.sock", str(store["livenessProbe"]))
            self.assertEqual(settings(documents)["gpu_worker.conf"]["socket-dir"], sockets)

    def test_there_is_time_to_drain(self):
        for _, documents in self.each():
            drain = seconds_of(settings(documents)["gpu_worker.conf"]["drain-timeout"])
            workload = next(w for w in workloads(documents) if "gpu-worker" in str(w))
            grace = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            before = int(container(documents, "gpu-worker")["lifecycle"]["preStop"]["exec"]["command"][1])
            self.assertGreaterEqual(grace, before + drain + 30)
            stop = container(documents, "kv-store")["lifecycle"]["preStop"]["exec"]["command"]
            wait = next(seconds_of(word[len("--wait="):]) for word in stop if word.startswith("--wait="))
            self.assertIn("--gone", stop)
            self.assertGreater(wait, before + drain)
            self.assertLessEqual(wait + 10, grace)  # the store's own end takes up to 8 s

    def test_one_pod_at_a_time_has_the_volume(self):
        for name, documents in self.each():
            workload = next(w for w in workloads(documents) if "gpu-worker" in str(w))
            if workload["kind"] == "Deployment":
                self.assertEqual(workload["spec"]["replicas"], 1)
                self.assertEqual(workload["spec"]["strategy"], {"type": "Recreate"})
            else:
                self.assertEqual(name, "fleet")
                self.assertEqual(workload["spec"]["serviceName"], "retroinfer-nodes")

    def test_labels_and_selectors(self):
        for _, documents in self.each():
            pods = [(w["metadata"]["name"], w["spec"]["template"]) for w in workloads(documents)]
            for document in documents:
                labels = document["metadata"].get("labels", {})
                for label in ("name", "instance", "part-of", "managed-by"):
                    self.assertIn(f"app.kubernetes.io/{label}", labels, document["metadata"]["name"])
                selector = None
                if document["kind"] == "Service":
                    selector = document["spec"]["selector"]
                elif document["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
                    selector = document["spec"]["selector"]["matchLabels"]
                elif document["kind"] == "NetworkPolicy":
                    selector = document["spec"]["podSelector"]["matchLabels"]
                if selector is None:
                    continue
                chosen = [template for _, template in pods if matches(selector, template["metadata"]["labels"])]
                self.assertEqual(len(chosen), 1, f"{document['kind']} {document['metadata']['name']}")
                ports = {port["name"] for one in chosen[0]["spec"]["containers"] for port in one["ports"]}
                numbers = {port["containerPort"] for one in chosen[0]["spec"]["containers"]
                           for port in one["ports"]}
                named = [port.get("targetPort") for port in document["spec"].get("ports", [])] + [
                    port["port"] for rule in document["spec"].get("ingress", []) for port in rule["ports"]]
                if document["kind"] == "Service":
                    self.assertTrue(named)
                for port in named:
                    self.assertIn(port, ports | numbers)

    def test_what_is_referred_to_is_there(self):
        for _, documents in self.each():
            there = {(d["kind"], d["metadata"]["name"]) for d in documents} | MADE_BY_HAND
            used = set()
            for workload in workloads(documents):
                spec = workload["spec"]["template"]["spec"]
                if "serviceAccountName" in spec:
                    there_account = ("ServiceAccount", spec["serviceAccountName"])
                    self.assertIn(there_account, there)
                names = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
                for volume in spec.get("volumes", []):
                    names.add(volume["name"])
                    if "configMap" in volume:
                        used.add(("ConfigMap", volume["configMap"]["name"]))
                    if "secret" in volume:
                        used.add(("Secret", volume["secret"]["secretName"]))
                        self.assertIs(volume["secret"]["optional"], False)
                        self.assertEqual(volume["secret"]["defaultMode"], 0o440)
                    if "persistentVolumeClaim" in volume:
                        used.add(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]))
                mounted = [mount["name"] for one in containers(workload) for mount in one.get("volumeMounts", [])]
                self.assertEqual(set(mounted), names)
                for one in containers(workload):
                    for mount in one.get("volumeMounts", []):
                        if mount["name"] in ("settings", "api-key", "tls", "config"):
                            self.assertIs(mount["readOnly"], True)
            self.assertEqual(used - there, set())

    def test_files_named_in_options_are_mounted(self):
        for _, documents in self.each():
            for name in ("gpu-worker", "kv-store"):
                one = container(documents, name)
                folders = [mount["mountPath"] for mount in one["volumeMounts"]]
                paths = re.findall(r"=(/\S+)", " ".join(one["args"])) + re.findall(
                    r"(?:^|unix:)(/[\w/.-]+)", "\n".join(
                        settings(documents)[f"{'gpu_worker' if name == 'gpu-worker' else 'kv_store_service'}.conf"]
                        .values()), re.MULTILINE)
                self.assertTrue(paths)
                for path in paths:
                    self.assertTrue(any(path == f or path.startswith(f + "/") for f in folders), path)

    def test_the_gateway_reaches_its_worker(self):
        for name, documents in self.each():
            gateway = container(documents, "http-gateway")
            options = dict(word.split("=", 1) for word in gateway["args"])
            if name == "fleet":
                environment = {e["name"]: e["value"] for e in container(documents, "haproxy")["env"]}
                self.assertEqual(options["--worker"].replace("unix:", "unix@"), environment["INSIDE"])
            else:
                self.assertIn(options["--worker"], worker_listen(documents))
            folders = [mount["mountPath"] for mount in gateway["volumeMounts"]]
            for path in re.findall(r"=(?:unix:)?(/\S+)", " ".join(gateway["args"])):
                self.assertTrue(any(path.startswith(f + "/") for f in folders), path)
            self.assertEqual("--tls-key" in options, name != "cpu")
            drain = seconds_of(settings(documents)["gpu_worker.conf"]["drain-timeout"])
            self.assertEqual(seconds_of(options["--drain-timeout"]), drain)

    def test_the_balancer_knows_every_node(self):
        documents = RENDERED["fleet"]
        nodes = next(w for w in workloads(documents) if w["kind"] == "StatefulSet")
        config = next(d for d in of_kind(documents, "ConfigMap") if "haproxy.cfg" in d["data"])
        servers = re.findall(r'^\s+server (\S+) "\$\{(NODE_\d+)\}"', config["data"]["haproxy.cfg"], re.MULTILINE)
        environment = {e["name"]: e["value"] for e in container(documents, "haproxy")["env"]}
        headless = nodes["spec"]["serviceName"]
        self.assertEqual([environment[variable] for _, variable in servers],
                         [f"{nodes['metadata']['name']}-{i}.{headless}:50051"
                          for i in range(nodes["spec"]["replicas"])])

    def test_names_of_settings_change_with_their_content(self):
        hashes = collections.Counter(
            d["metadata"]["name"] for documents in RENDERED.values() for d in of_kind(documents, "ConfigMap")
            if "gpu_worker.conf" in d["data"])
        self.assertEqual(sorted(hashes.values()), [1, 2])  # gpu and fleet have the same

    def test_schemas(self):
        if kubernetes_validate is None:
            self.skipTest("needs the Python package kubernetes-validate")
        for _, documents in self.each():
            for document in documents:
                kubernetes_validate.validate(document, "1.30", strict=True)


def worker_listen(documents):
    config = next(d for d in of_kind(documents, "ConfigMap") if "gpu_worker.conf" in d["data"])
    return re.search(r"^listen = (.*)$", config["data"]["gpu_worker.conf"], re.MULTILINE)[1]


if __name__ == "__main__":
    unittest.main()
