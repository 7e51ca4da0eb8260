#!/usr/bin/env python3
"""deploy/compose: confined services, limits that follow from the settings, files that are there. deploy/try.sh
--compose runs it."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
COMPOSE = pathlib.Path(__file__).resolve().parents[3] / "deploy/compose"
try:
    import yaml
except ImportError:
    print("skipped: needs python3-yaml (scripts/bootstrap.sh)")
    sys.exit(SKIPPED)

UNITS = {"m": 1 << 20, "MiB": 1 << 20, "g": 1 << 30, "GiB": 1 << 30}
PROGRAMS = ("kv-store", "cpu-worker", "gpu-worker")


def settings(name=".env"):
    lines = (COMPOSE / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def load(name, more=None):
    """The file with the settings of .env in it, and those of a second file in their place."""
    text = (COMPOSE / name).read_text(encoding="utf-8")
    values = settings() | (settings(more) if more else {})
    return yaml.safe_load(re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], text))


def bytes_of(text):
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * UNITS[unit]


def option(service, name):
    found = [word.split("=", 1)[1] for word in service["command"] if word.startswith(f"--{name}=")]
    assert len(found) == 1, f"{name}: {found}"
    return found[0]


class Compose(unittest.TestCase):
    def setUp(self):
        self.file = load("compose.yaml")
        self.services = self.file["services"]

    def test_every_setting_is_used(self):
        text = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
        unused = [name for name in settings()
                  if f"${{{name}}}" not in text and not name.startswith("COMPOSE_")]
        self.assertEqual(unused, [])

    def test_services_are_confined(self):
        for name, service in self.services.items():
            self.assertEqual(service["cap_drop"], ["ALL"], name)
            self.assertEqual(service["security_opt"], ["no-new-privileges"], name)
            self.assertNotIn("privileged", service)
            self.assertNotIn("network_mode", service)
            if name != "grafana":
                self.assertIs(service["read_only"], True, name)
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), f"{name} is open to others: {port}")
        for name in PROGRAMS:
            self.assertEqual(self.services[name]["user"], "10001:10001")

    def test_limits_follow_from_sizes(self):
        store = self.services["kv-store"]
        arena = bytes_of(option(store, "arena-bytes"))
        self.assertEqual(bytes_of(store["mem_limit"]), arena + arena // 64 + (512 << 20))
        worker = self.services["cpu-worker"]
        self.assertEqual(bytes_of(worker["mem_limit"]), bytes_of(worker["environment"]["RETROINFER_MEMORY"]) * 9 // 8)

    def test_a_worker_on_a_gpu_takes_memory_of_the_gpu(self):
        worker = self.services["gpu-worker"]
        self.assertNotIn("RETROINFER_MEMORY", worker["environment"])
        self.assertFalse([word for word in worker["command"] if word.startswith("--memory")])
        self.assertTrue(0.5 < float(worker["environment"]["RETROINFER_GPU_MEMORY_UTILIZATION"]) < 1)
        self.assertEqual(worker["environment"]["RETROINFER_DEVICE"], "cuda")
        self.assertGreaterEqual(bytes_of(worker["mem_limit"]), 16 << 30)  # operations.md, "Sizes"

    def test_a_worker_has_as_many_gpus_as_it_splits_the_model_over(self):
        worker = self.services["gpu-worker"]
        device, = worker["deploy"]["resources"]["reservations"]["devices"]
        self.assertEqual(str(device["count"]), worker["environment"]["RETROINFER_TENSOR_PARALLEL"])

    def test_settings_for_a_gpu_are_right(self):
        more = settings("gpu.env")
        self.assertEqual(set(more) - set(settings()), set())
        profiles = more["COMPOSE_PROFILES"].split(",")
        self.assertIn("gpu", profiles)
        self.assertNotIn("cpu", profiles)
        self.assertTrue(more["TAG"].endswith("-cuda"))
        services = load("compose.yaml", "gpu.env")["services"]
        arena = bytes_of(option(services["kv-store"], "arena-bytes"))
        self.assertEqual(bytes_of(services["kv-store"]["mem_limit"]), arena + arena // 64 + (512 << 20))
        self.assertGreaterEqual(bytes_of(services["gpu-worker"]["mem_limit"]), 16 << 30)

    def test_an_answer_may_end(self):
        for name in ("cpu-worker", "gpu-worker"):
            drain = int(option(self.services[name], "drain-timeout").removesuffix("s"))
            self.assertEqual(self.services[name]["stop_grace_period"], "1m")
            self.assertLessEqual(drain + 15, 60)
            self.assertEqual(self.services[name]["depends_on"], ["kv-store"])  # which is stopped after it

    def test_the_gateway_reaches_the_worker(self):
        gateway = self.services["http-gateway"]
        listen = option(self.services["cpu-worker"], "listen").split(",")
        self.assertIn(option(gateway, "worker"), listen)
        self.assertIn("sockets:/run/retroinfer", gateway["volumes"])
        self.assertEqual(gateway["user"], "10001:10001")
        secure = load("compose.secure.yaml")["services"]["http-gateway"]
        plain = gateway["command"]
        self.assertEqual(secure["command"][:len(plain)], plain)
        files = dict(word.split("=", 1) for word in secure["command"][len(plain):])
        self.assertEqual(set(files), {"--api-key-file", "--worker-api-key-file", "--tls-certificate",
                                      "--tls-key"})
        self.assertEqual({path.removeprefix("/run/secrets/") for path in files.values()},
                         set(secure["secrets"]))

    def test_services_meet(self):
        sockets = {option(self.services[name], "socket-dir") for name in PROGRAMS}
        self.assertEqual(len(sockets), 1)
        for name in (*PROGRAMS, "ask"):
            self.assertIn("sockets:/run/retroinfer", self.services[name]["volumes"])
        for name in ("cpu-worker", "gpu-worker"):
            address = next(word for word in self.services[name]["healthcheck"]["test"] if "--address=" in word)
            self.assertIn(address.removeprefix("--address="), option(self.services[name], "listen").split(","))

    def test_mounted_files_are_there(self):
        for name, service in self.services.items():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((COMPOSE / source).exists(), f"{name}: {source}")
                    self.assertTrue(volume.endswith(":ro"), f"{name} may change {source}")
                else:
                    self.assertIn(source, self.file["volumes"], name)

    def test_the_secure_worker_differs_in_its_keys_alone(self):
        secure = load("compose.secure.yaml")
        for name in ("cpu-worker", "gpu-worker"):
            plain = self.services[name]["command"]
            words = secure["services"][name]["command"]
            self.assertEqual(words[:len(plain)], plain)
            files = dict(word.split("=", 1) for word in words[len(plain):])
            self.assertEqual(set(files), {"--api-key-file", "--tls-certificate", "--tls-key"})
            self.assertEqual({path.removeprefix("/run/secrets/") for path in files.values()},
                             set(secure["services"][name]["secrets"]))
        self.assertEqual(set(secure["secrets"]), {"api-key", "tls.crt", "tls.key"})

    def test_prometheus_knows_the_services(self):
        for job in ("gpu-worker", "kv-store", "http-gateway", "alertmanager"):
            targets = yaml.safe_load((COMPOSE / "targets" / f"{job}.yml").read_text(encoding="utf-8"))
            (address,) = targets[0]["targets"]
            host, port = address.split(":")
            known = set(self.services) | {alias for service in self.services.values() for alias in
                                          service.get("networks", {}).get("default", {}).get("aliases", [])}
            self.assertIn(host, known)
            listening = next(s for n, s in self.services.items() if n == host)
            if job != "alertmanager":
                name = "http-metrics-address" if job == "http-gateway" else "metrics-address"
                self.assertEqual(option(listening, name), f"0.0.0.0:{port}")

    def test_prometheus_reads_what_is_mounted(self):
        if shutil.which("promtool") is None:
            self.skipTest("needs promtool (scripts/bootstrap.sh)")
        with tempfile.TemporaryDirectory() as folder:
            for volume in self.services["prometheus"]["volumes"]:
                source, target = volume.split(":")[:2]
                if source.startswith("."):
                    place = pathlib.Path(folder) / target.lstrip("/")
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.symlink_to((COMPOSE / source).resolve())
            config = next(word for word in self.services["prometheus"]["command"] if "--config.file=" in word)
            path = pathlib.Path(folder) / config.split("=", 1)[1].lstrip("/")
            result = subprocess.run(["promtool", "check", "config", str(path)], capture_output=True, text=True,
                                    check=False)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertRegex(result.stdout, r"[1-9]\d* rules found")


if __name__ == "__main__":
    unittest.main()
