#!/usr/bin/env python3
"""bench/gpu_report with programs that print what the real ones would."""
import json
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/gpu_report"))
sys.dont_write_bytecode = True
import sections  # noqa: E402

# A decode step that takes 4 ms and 1 ms for each 100,000 tokens, wave a third of that.
DECODE = """
import json, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
batch, context = int(options.get("--batch", 1)), int(options["--context"])
ms = 4 + context / 1e5 * batch / (3 if options["--policy"] == "wave" else 1)
print(json.dumps({"benchmark": "decode_throughput", "device": "A GPU", "commit": "0123456789abcdef",
                  "settings": {"policy": options["--policy"], "batch": batch,
                               "context_tokens": context,
                               "overlap": 0.99 if context > 500000 else "as recorded", "arena_gib": 2.0, "cache_slots": 1048576},
                  "step_ms_median": ms, "output_throughput": batch * 1000 / ms,
                  "hit_ratio": 0.98, "pages_evicted_per_step": 3000.0, "host_us_per_step": 20.0}, indent=2))
"""
INDEX = """
print("plain copies: 55.1 GB/s to the host, 55.0 GB/s from it")
print("%-26s %9.3f %5.0f TFLOP/s %11.0f ms" % ("cluster_keys, centred", 0.647, 146, 310))
print("%-26s %9.3f %7.1f GB/s %11.0f ms   %.2f of a plain copy" % ("write_segment", 0.78, 49.9, 374, .91))
"""


def peer(batch, us):
    return {"benchmark": "decode_attention", "who": "PyTorch", "batch": batch,
            "tokens": sections.MODEL_CONTEXT, "us": us}


class GpuReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.results = self.folder / "results.json"

    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def report(self, *options):
        return subprocess.run(
            [sys.executable, ROOT / "bench/gpu_report/report.py", "--bin-dir", self.folder,
             "--results", self.results, *options], capture_output=True, text=True, check=False)

    def test_sections_are_taken_in_turns_and_rendered_together(self):
        self.program("decode_throughput_bench", DECODE)
        self.program("index_construction_bench", INDEX)
        self.assertEqual(self.report("--only", "decode").returncode, 0)
        done = self.report("--only", "index")
        self.assertEqual(done.returncode, 0, done.stderr)
        # 5.2288 ms over 4.4096; 6 * 1000 / 6.4576 over 3 * 1000 / 7.6864; 5.7476 over 4.08192.
        self.assertIn("| 120K, batch 1: wave's tokens a second over full's | 1.4 | 1.19 | **missed** |",
                      done.stdout)
        self.assertIn("largest batches (6 and 3): wave over full | 4 | 2.38 | **missed** |", done.stdout)
        self.assertIn("| a step at 512K over one at 8K | at most 1.6 | 1.41 (made up, cosine "
                      "0.99) | met |", done.stdout)
        self.assertIn("| host work a step | at most 200 us | 20 us | met |", done.stdout)
        self.assertIn("| wave | 524,288 | 1 | 5.75 | 174 | 100 % | made up, cosine 0.99 | 98.0 % | 3,000 "
                      "| 20 |", done.stdout)
        self.assertIn("| wave | 122,880 | 1 | 4.41 | 227 | 100 % | recorded | 98.0 % | 3,000 | 20 |",
                      done.stdout)
        self.assertIn("| write_segment | 0.780 | 374 |", done.stdout)
        self.assertIn("`decode_throughput_bench --backend cuda --policy full --context 8192`",
                      done.stdout)

    def test_a_program_that_fails_is_said_to_have_failed(self):
        self.program("index_construction_bench", "import sys; sys.exit('no memory')")
        done = self.report("--only", "index")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no memory", done.stderr)
        self.assertIn("**Index construction**: no figures", done.stdout)

    def test_a_program_without_a_gpu_gives_no_figures(self):
        self.program("index_construction_bench", "print('no GPU, nothing measured')")
        done = self.report("--only", "index")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no figures", done.stdout)

    def test_writes_between_the_marks_only(self):
        self.program("index_construction_bench", INDEX)
        pages = [self.folder / "benchmarks.md", self.folder / "benchmarks/gpu-report.md"]
        pages[1].parent.mkdir()
        for page in pages:
            page.write_text("before\n<!-- bench/gpu_report: from here, do not edit -->\nold\n"
                            "<!-- bench/gpu_report: to here -->\nafter\n")
        self.assertEqual(self.report("--only", "index", "--write", self.folder).returncode, 0)
        aims, details = texts = [page.read_text() for page in pages]
        for text in texts:
            self.assertTrue(text.startswith("before\n<!--") and text.endswith("-->\nafter\n"), text)
            self.assertNotIn("old", text)
        self.assertIn("| what is aimed at |", aims)
        self.assertNotIn("cluster_keys, centred", aims)
        self.assertIn("cluster_keys, centred", details)
        self.assertNotIn("| what is aimed at |", details)
        self.assertEqual(self.report("--render-only", "--write", self.folder).returncode, 0)
        self.assertEqual([page.read_text() for page in pages], texts)

    def test_refuses_sections_that_do_not_exist(self):
        done = self.report("--only", "decoding")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no section decoding", done.stderr)

    def test_reads_a_layer(self):
        text = "A GPU, commit 0123456789abcdef\nread of 4.0 GB of device memory: 3059 GB/s\n\n"
        for stage, batch, us in (("score", 1, 8.0), ("whole layer, 95 % hits", 1, 58.7),
                                 ("whole layer, 95 % hits", 8, 221.7)):
            text += "%-34s %5d %9.2f\n" % (stage, batch, us)
        text += "\npages ...\n%-8d %10.2f %8.1f %22.2f %8.1f\n" % (4096, 182, 46.1, 183.5, 45.7)
        peers = "\n".join(json.dumps(peer(batch, us)) for batch, us in ((1, 180.5), (1, 171.7),
                                                                        (8, 1299.6)))
        found = sections.read_layer([text, peers])
        self.assertEqual([(aim.measured, aim.is_met) for aim in found.aims],
                         [("0.34 (58.7 us)", False), ("0.17 (221.7 us)", True),
                          ("46.1 GB/s", True), ("45.7 GB/s", True)])

    def test_reads_attention_beside_its_peers(self):
        ours = json.dumps({"benchmark": "decode_attention", "shape": "dense", "batch": 1,
                           "tokens": sections.MODEL_CONTEXT, "us": 170.7, "share_of_read": 0.84,
                           "commit": "0123456789abcdef"})
        peers = json.dumps({"torch": "2.11", "device": "A GPU"}) + json.dumps(peer(1, 171.7))
        found = sections.read_attention([ours, peers])
        self.assertEqual([aim.is_met for aim in found.aims], [False, True])


if __name__ == "__main__":
    unittest.main()
