#!/usr/bin/env python3
"""deploy/compose, deploy/kubernetes and deploy/helm have the same sizes, on a CPU and on a GPU.

Each has them in a format of its own, none of which can include another's: whoever changes one changes all three.
Other tests hold that limits follow from the sizes.
"""
import pathlib
import re
import sys
import tomllib
import unittest

SKIPPED = 77
DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
try:
    import yaml
except ImportError:
    print("skipped: needs python3-yaml (scripts/bootstrap.sh)")
    sys.exit(SKIPPED)

UNITS = {"m": 1 << 20, "MiB": 1 << 20, "Mi": 1 << 20, "g": 1 << 30, "GiB": 1 << 30, "Gi": 1 << 30}


def bytes_of(text):
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]+)", text).groups()
    return int(number) * UNITS[unit]


def load(name):
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def settings(name):
    return {key: str(value) for key, value in tomllib.loads((DEPLOY / name).read_text(encoding="utf-8")).items()}


def compose(name=".env"):
    lines = (DEPLOY / "compose" / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def requested(documents, name):
    (found,) = [one for one in documents["spec"]["template"]["spec"]["containers"] if one["name"] == name]
    return found["resources"]["limits"]["memory"]


class Settings(unittest.TestCase):
    def test_every_file_is_toml_of_one_level(self):
        files = [*DEPLOY.rglob("*.conf"), *DEPLOY.rglob("*.conf.in")]
        self.assertGreaterEqual(len(files), 8)
        for file in files:
            text = file.read_text(encoding="utf-8")
            # What is commented out is an example.
            text = re.sub(r'^#(?=[\w-]+ = )', "", text, flags=re.MULTILINE)
            for name, value in tomllib.loads(text).items():
                self.assertIsInstance(value, (str, int, float, bool, list), f"{file}: {name}")


class Sizes(unittest.TestCase):
    def same(self, **places):
        self.assertEqual(len(set(places.values())), 1, f"change all of them: {places}")

    def test_on_a_cpu(self):
        env, values = compose(), load("helm/retroinfer/values.yaml")
        store = settings("kubernetes/base/kv_store_service.conf")
        worker = settings("kubernetes/base/gpu_worker.conf")
        pod = load("kubernetes/base/deployment.yaml")
        claim = load("kubernetes/base/cache-claim.yaml")
        self.same(compose=bytes_of(env["ARENA"]), kubernetes=bytes_of(store["arena-bytes"]),
                  helm=values["store"]["arenaGiB"] << 30)
        self.same(compose=bytes_of(env["CACHE"]), kubernetes=bytes_of(store["cache-bytes"]),
                  helm=values["cache"]["contextsGiB"] << 30)
        self.same(compose=bytes_of(env["WORKER_MEMORY"]), kubernetes=bytes_of(worker["memory"]),
                  helm=values["worker"]["memoryGiB"] << 30)
        self.same(compose=bytes_of(env["STORE_LIMIT"]), kubernetes=bytes_of(requested(pod, "kv-store")))
        self.same(compose=bytes_of(env["WORKER_LIMIT"]), kubernetes=bytes_of(requested(pod, "gpu-worker")))
        self.same(kubernetes=bytes_of(claim["spec"]["resources"]["requests"]["storage"]),
                  helm=values["cache"]["volumeGiB"] << 30)
        gateway = load("compose/compose.yaml")["services"]["http-gateway"]
        self.same(compose=bytes_of(gateway["mem_limit"]), helm=values["gateway"]["memoryMiB"] << 20)
        self.same(kubernetes=int(worker["drain-timeout"].removesuffix("s")), helm=values["drainSeconds"])

    def test_on_a_gpu(self):
        env, values = compose("gpu.env"), load("helm/retroinfer/values.yaml")
        example = load("helm/retroinfer/examples/gpu.yaml")
        store = settings("kubernetes/components/gpu/kv_store_service.conf")
        worker = settings("kubernetes/components/gpu/gpu_worker.conf")
        pod = load("kubernetes/components/gpu/sizes.yaml")
        self.same(compose=bytes_of(env["ARENA"]), kubernetes=bytes_of(store["arena-bytes"]),
                  helm=example["store"]["arenaGiB"] << 30)
        self.same(compose=bytes_of(env["CACHE"]), kubernetes=bytes_of(store["cache-bytes"]),
                  helm=example["cache"]["contextsGiB"] << 30)
        for name in ("GPU_MEMORY_UTILIZATION", "GPU_WORKER_LIMIT"):
            self.same(env=compose()[name], gpu_env=env[name])
        self.same(compose=float(env["GPU_MEMORY_UTILIZATION"]), kubernetes=float(worker["gpu-memory-utilization"]),
                  helm=values["worker"]["gpuMemoryUtilization"])
        self.same(compose=bytes_of(env["GPU_WORKER_LIMIT"]), kubernetes=bytes_of(requested(pod, "gpu-worker")),
                  helm=values["worker"]["hostMemoryGiB"] << 30)

    def test_images_are_of_one_version(self):
        chart = load("helm/retroinfer/Chart.yaml")
        demo = load("helm/retroinfer/examples/demo.yaml")["model"]["fetch"]["image"]
        tags = {image["newTag"] for image in load("kubernetes/base/kustomization.yaml")["images"]}
        self.assertEqual(tags, {compose()["TAG"]})
        on_a_gpu = {image["newTag"] for image in load("kubernetes/components/gpu/kustomization.yaml")["images"]}
        self.assertEqual(on_a_gpu, {compose("gpu.env")["TAG"]})
        self.same(compose=compose()["TAG"], helm=str(chart["appVersion"]), demo=demo.split(":")[1])


if __name__ == "__main__":
    unittest.main()
