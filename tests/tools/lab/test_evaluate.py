"""A run that is cut goes on, the report adds up, and what cannot be measured is refused."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

try:
    import torch  # noqa: F401
    from tools.lab import catalogue, collect, evaluate, plot, report, size_study
except ImportError as error:
    print(f"skipped: needs PyTorch: {error}")
    sys.exit(77)

BIN = {"tokens": 10, "loss_full": 10.0, "loss": 11.0, "change": 2.0, "divergence": 0.5,
       "agreed": 9}


def followed(table, name, document, factor=1.0, scale=1.0):
    return {"key": [table, "code", 8260, 20, document, name, factor], "build_s": 0.5,
            "seconds": 1.0, "read": {"index": 1e6, "sums": 0.0, "pages": 3e6 * scale},
            "bins": [BIN, {**BIN, "change": 4.0 * scale}]}


def copy_pages(folder):
    """Copies evaluation.md and the pages beside it, which have the blocks."""
    (folder / "evaluation").mkdir()
    for page in (ROOT / "docs").glob("evaluation*/*.md"):
        shutil.copy(page, folder / "evaluation")
    shutil.copy(ROOT / "docs/evaluation.md", folder)


def read_pages(folder):
    """The text of all of these pages."""
    pages = [folder / "evaluation.md", *sorted((folder / "evaluation").glob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


class ResultsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_what_is_there_is_not_measured_again(self):
        path = self.folder / "out.jsonl"
        evaluate.Results(path).add(["systems", "code", 1, None, 0.5], {"x": 1})
        with path.open("a", encoding="utf-8") as file:
            file.write('{"key": ["cut", "off"')
        again = evaluate.Results(path)
        self.assertTrue(again.has(["systems", "code", 1, None, 0.5]))
        self.assertFalse(again.has(["cut", "off"]))
        # What is written next must not continue the line that was cut off.
        again.add(["after"], {})
        self.assertTrue(evaluate.Results(path).has(["after"]))
        self.assertEqual(len(collect.read_lines([path])), 2)

    def test_documents_add_up(self):
        row, = collect.followed([followed("systems", "ours", i, scale=1 + i) for i in (0, 1)])
        self.assertEqual((row["documents"], row["followed"], row["tokens"]), (2, 40, 8260))
        self.assertAlmostEqual(row["mean_change"], (2 + 4 + 2 + 8) / 40)
        self.assertAlmostEqual(row["perplexity_ratio"], 2.718281828 ** 0.1)
        self.assertAlmostEqual(row["bytes"], 5.5e6)
        self.assertAlmostEqual(row["change_error"], 0.1)

    def test_report_fills_the_document(self):
        target = self.folder / "evaluation.md"
        copy_pages(self.folder)
        lines = [followed("systems", "ours", 0, f) for f in catalogue.FACTORS]
        lines += [followed("candidates", name, 0, scale=s) for name, s in (
            ("ours", 1.0), ("clusters of 8", 0.1))]
        lines += [{"key": ["needle", "multi_key", 32768, 0, None, "full", 1.0], "right": 15,
                   "questions": 16}]
        report.Report(lines, self.folder).write(target)
        text = read_pages(self.folder)
        self.assertIn("| ours | 0.5 | 1.00 | 0.00 | 3.00 | 4.00 | 1.1052 | 0.3000 |", text)
        self.assertIn("| clusters of 8 | 1.0 | 1.30 | 32 |", text)
        self.assertIn("| full |  | 93.8 [72, 99] | 93.8 |", text)
        drawn = (self.folder / "evaluation/systems_8260.svg").read_text(encoding="utf-8")
        self.assertTrue(xml.etree.ElementTree.fromstring(drawn).tag.endswith("svg"))
        self.assertEqual(len(json.loads(
            (self.folder / "evaluation/results.json").read_text(encoding="utf-8"))["text"]), 5)

    def test_report_lays_models_of_two_sizes_side_by_side(self):
        lines = []
        for model, parameters, again in (("large", 69e6, 0.4), ("small", 8e6, 0.6)):
            lines += [{"key": ["size", model, 8260, 20, number, "Quest"], "bytes": 1e6,
                       "of_full": 0.1, "parameters": parameters, "layers": 2,
                       "sums": {**BIN, "change": 2.0 + 2.0 * number}} for number in (0, 1)]
            lines += [{"key": ["locality", model, 8260, 64], "hits": {"0.05": again},
                       "ever_touched": 0.5, "again_at_the_next_step": [again, again]},
                      {"key": ["unseen", model, 8260, 20, 0], "predicted": 0.1, "true": 0.2,
                       "error": 0.05, "rank_correlation": {
                           "true_mass": 0.9, "output_error": 0.8, "change_of_the_token": -0.1}}]
        # What other models were asked elsewhere is not of this study.
        lines.append({"key": ["locality", "needle", 8260, 64], "hits": {"0.05": 0.125},
                      "ever_touched": 0.5, "again_at_the_next_step": [0.5]})
        text = size_study.by_model(lines)
        small = "| Quest | 8 | 2.72 | 10.0 | 1.1052 ± 0.0000 | 0.3000 ± 0.1000 | 0.0500 | 90.0 | 2 |"
        self.assertIn(small, text)
        self.assertLess(text.index(small), text.index("| Quest | 69 |"))
        self.assertIn("| 8,260 | 69 | 40.0 | 50 | 40, 40 |", text)
        self.assertIn("| 8,260 | 8 | 0.100 | 0.200 | 0.050 | 0.90 | 0.80 | -0.10 |", text)
        self.assertNotIn("12.5", text)
        self.assertEqual(size_study.by_model([]), "")

    def test_report_shows_the_studies(self):
        target = self.folder / "evaluation.md"
        copy_pages(self.folder)
        lines = [{**followed("ablation", name, number, 1.0, scale), "retrieval": 1.5, "fill": 0.9}
                 for name, scale in (("ours", 1.0), ("radius 0.25", 0.5)) for number in (0, 1)]
        lines += [followed("formats", f"{form} | as trained | {mode}", 0, "full")
                  for form in ("bf16", "int8 by token") for mode in ("made", "read")]
        lines += [followed("formats", "bf16 | bias 30 | read", 0, "full", 0.1)]
        lines += [{"key": ["hard keys", 64, "bf16", "ordinary"], "keys": 0.125, "values": 0.25},
                  {"key": ["ablation needle", "single", 32768, 0, None, "ours", 1.0], "right": 2,
                   "questions": 3},
                  {"key": ["caching", "trace_code_1"], "prefetch": [
                      {"layer": 1, "of_all": 0.5, "of_new": 0.25, "fetched_for_one": 3.0}],
                   "policies": {"LRU": {str(s): {"hits": 0.75} for s in (1, 2, 3, 4)}}}]
        report.Report(lines, self.folder).write(target)
        text = read_pages(self.folder)
        # Documents changed by 6 of 20 tokens; half as much in the second half: 4 of 20.
        self.assertIn("| radius 0.25 | 62 | 1.0 | 0.0 | 1.5 | 1.50 | 90 | 1.1052 ± 0.0000 | 0.2000 |"
                      " -33 ± 0 | 0.05000 | 2 |", text)
        self.assertIn("| int8 by token | 1.1052 | 0.3000 | 0.05000 | 90.0 | 0.3000, 0.0500 |", text)
        self.assertIn("| bf16 | 0.3000, 0.0500 | - | - | 0.1200, 0.0500 | - | - |", text)
        self.assertIn("| bf16 | 0.125 | - | - | - | - | - | 0.250 |", text)
        self.assertIn("| ours | 1.0 | 2/3 [21, 94] | 2/3 [21, 94] |", text)
        self.assertIn("| code, 1 | LRU | 75.0 | 75.0 | 75.0 | 75.0 |", text)

    def test_single_blocks_can_be_written_alone(self):
        target = self.folder / "evaluation.md"
        copy_pages(self.folder)
        before = read_pages(self.folder)
        lines = [followed("systems", "ours", 0), {
            "key": ["needle", "multi_key", 32768, 0, None, "full", 1.0], "right": 1, "questions": 2}]
        with self.assertRaisesRegex(ValueError, "no block none; there are setup, systems,"):
            report.Report(lines, self.folder).write(target, ("needles", "none"))
        self.assertEqual(read_pages(self.folder), before)
        report.Report(lines, self.folder).write(target, ("needles",))
        after = read_pages(self.folder)
        begin, end = "<!-- needles: begin -->", "<!-- needles: end -->"
        self.assertEqual(before.split(begin)[0], after.split(begin)[0])
        self.assertEqual(before.split(end)[1], after.split(end)[1])
        self.assertIn("| full |  | 50.0 [9, 91] | 50.0 |", after)
        self.assertEqual({path.suffix for path in (self.folder / "evaluation").iterdir()}, {".md"})

    def test_a_plot_keeps_its_points_inside(self):
        drawn = plot.svg("a < b", [plot.Series("one", [(1, 0.01), (1000, 3.0)])],
                         plot.Axis("x", True), plot.Axis("y", True))
        root = xml.etree.ElementTree.fromstring(drawn)
        circles = [one for one in root if one.tag.endswith("circle")]
        places = [(float(c.get("cx")), float(c.get("cy"))) for c in circles[:2]]
        self.assertLess(places[0][0], places[1][0])
        self.assertGreater(places[0][1], places[1][1])
        for x, y in places:
            self.assertTrue(plot.LEFT <= x <= plot.WIDTH - plot.RIGHT)
            self.assertTrue(plot.TOP <= y <= plot.HEIGHT - plot.BOTTOM)
        with self.assertRaisesRegex(ValueError, "nothing to draw"):
            plot.svg("t", [], plot.Axis("x"), plot.Axis("y"))


class RefusalTest(unittest.TestCase):
    def test_what_cannot_be_measured_is_refused_with_what_can(self):
        for arguments, wanted in (
                (["--length", "4096", "--all"], "9216 to 131072 are possible"),
                (["--all", "--tail", "0"], "4 to 1024"),
                (["--all", "--model", "/"], "not a model folder"),
                ([], "--part with one of text")):
            done = subprocess.run(
                [sys.executable, "-m", "tools.lab.evaluate", "--out", "/dev/null", *arguments],
                cwd=ROOT, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(wanted, done.stderr)


class CatalogueTest(unittest.TestCase):
    def test_every_row_makes_a_system_and_has_a_name_of_its_own(self):
        rows = (catalogue.baselines() + catalogue.candidates() + catalogue.promised()
                + catalogue.micro() + catalogue.growing())
        keys = [(row.table, row.name, row.factor) for row in rows]
        self.assertEqual(len(keys), len(set(keys)))
        self.assertTrue(all(row.system().key() for row in rows))
        self.assertLessEqual(set(catalogue.CHOSEN), {row.name for row in catalogue.candidates()})


if __name__ == "__main__":
    unittest.main()
