"""Tasks are what they say, follow from their seed, fit their length, and are judged rightly."""

import dataclasses
import json
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tools.tasks import (asking, facts, haystack, long_answers, manuals, report,  # noqa: E402
                         ruler)
from tools.tasks.client import Scored, Setting  # noqa: E402
from tools.tasks.sample import Sample, fit, seeded, stands_in  # noqa: E402


def words(text):
    return len(text.split())


class SampleTest(unittest.TestCase):
    def test_a_key_stands_as_words_of_its_own(self):
        self.assertTrue(stands_in("60", "It is 60\nseconds."))
        self.assertTrue(stands_in("TLS  1.2", "at least tls 1.2"))
        self.assertTrue(stands_in("--track", "`--track`"))
        self.assertFalse(stands_in("60", "1601"))
        self.assertFalse(stands_in("NA", "a name"))
        self.assertFalse(stands_in("1.2", "112"))

    def test_the_share_of_the_answers_counts(self):
        sample = Sample("t", "?", "They are", ("12", "34", "56", "78"), 20)
        self.assertEqual(sample.right("34, 12 and 99"), 0.5)
        self.assertEqual(sample.right(sample.lead + sample.reference), 1)

    def test_what_does_not_fit_is_refused(self):
        with self.assertRaisesRegex(ValueError, "larger --length"):
            fit(ruler.builder("cwe", 1, 100, 0), words, 100)


class RulerTest(unittest.TestCase):
    def test_there_are_thirteen_and_each_fits_nearly(self):
        self.assertEqual(len(ruler.TASKS), 13)
        for task in ruler.TASKS:
            for most in (700, 3000):
                with self.subTest(task, most=most):
                    sample = fit(ruler.builder(task, 1, most, 0), words, most)
                    self.assertLessEqual(words(sample.text), most)
                    self.assertGreater(words(sample.text), 0.9 * most)
                    self.assertEqual(sample.task, task)

    def test_equal_seeds_give_equal_texts_and_others_others(self):
        for task in ruler.TASKS:
            one, same, other, third = (ruler.builder(task, seed, 100, index)(40)
                                       for seed, index in ((1, 0), (1, 0), (2, 0), (1, 1)))
            self.assertEqual(one, same)
            self.assertEqual(len({one.text, other.text, third.text}), 3)

    def test_answers_are_told_once_and_are_what_is_asked(self):
        for task in ruler.TASKS:
            sample = ruler.builder(task, 3, 100, 5)(60)
            document, _, question = sample.text.rpartition("Question:")
            with self.subTest(task):
                for answer in sample.answers:
                    self.assertTrue(stands_in(answer, document))
                    self.assertFalse(stands_in(answer, question))
                if task.startswith("niah"):
                    for answer in sample.answers:
                        self.assertEqual(document.count(answer), 1)
                    for key in sample.lead.split(" of ")[1:]:
                        key = key.split(",")[0].removesuffix(" is").removesuffix(" are")
                        self.assertIn(key, question)
                        self.assertIn(f"of {key} is", document)

    def test_a_chain_is_told_in_its_order(self):
        sample = ruler.builder("vt", 1, 100, 0)(50)
        value = sample.text.rpartition("have the value ")[2].split("?")[0]
        at = [sample.text.index(f"VAR {name} = {source}.") for name, source in zip(
            sample.answers, [value, *(f"VAR {name}" for name in sample.answers)])]
        self.assertEqual(at, sorted(at))

    def test_counted_words_are_the_most_frequent(self):
        for task, size in (("cwe", 30), ("cwe", 400), ("fwe", 200)):
            sample = ruler.builder(task, 1, 100, 0)(size)
            listed = sample.text.split("\n\n")[1].split()
            counts = {word: listed.count(word) for word in set(listed)}
            least = min(counts[word] for word in sample.answers)
            others = [count for word, count in counts.items() if word not in sample.answers]
            self.assertGreater(least, max(others))

    def test_two_steps_need_both_paragraphs(self):
        world = facts.World(seeded("w"), 30)
        for number in range(20):
            asked = world.ask(seeded("q", number), 2)
            name = next(one for one in world.people if one.name in asked.question)
            self.assertIn(asked.answer, (name.town.river, name.town.year, name.town.goods))
            self.assertNotIn(name.town.name, asked.question)
            self.assertNotIn(asked.answer, name.paragraph(seeded(1)))

    def test_names_and_words_differ(self):
        self.assertEqual(len(set(haystack.pairs(seeded(1), 5000))), 5000)
        self.assertEqual(len(set(haystack.made_up(seeded(1), 500))), 500)
        with self.assertRaisesRegex(ValueError, "can be made"):
            haystack.pairs(seeded(1), 10**6)

    def test_a_text_can_be_the_haystack(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "text.txt"
            path.write_text(" ".join(f"This is the sentence number {n}." for n in range(150)))
            essay = haystack.from_file(path)
            sample = ruler.builder("niah_single_2", 1, 100, 0, essay)(40)
            self.assertIn("This is the sentence number 7.", essay(seeded(1), 200))
            self.assertEqual(sample.text.count("This is the sentence"), 40)
            path.write_text("Too short.")
            with self.assertRaisesRegex(ValueError, "needs 100"):
                haystack.from_file(path)


class ManualsTest(unittest.TestCase):
    def test_there_are_100_questions_and_each_is_another_one(self):
        asked = manuals.questions()
        self.assertEqual(len(asked), 100)
        self.assertEqual(len({one.question for one in asked}), 100)
        for one in asked:
            self.assertIn(one.manual, manuals.SOURCES)
            self.assertLess(len(one.place), 80)  # a place and not a text of others
            self.assertFalse(stands_in(one.key, one.question), one)

    def test_each_answer_stands_at_its_place_where_the_texts_are(self):
        folder = os.environ.get("RETROINFER_MANUALS")
        if not folder:
            self.skipTest("RETROINFER_MANUALS names no folder of tools/tasks/manuals.py")
        texts = manuals.load(pathlib.Path(folder))
        for one in manuals.questions():
            with self.subTest(one.question):
                begin, end = one.span(texts[one.manual])
                cut = manuals.parts(texts[one.manual], words, 2000)
                part = manuals.part_of((begin, end), cut)
                self.assertTrue(stands_in(one.key, texts[one.manual][slice(*part)]))

    def test_parts_cover_a_text_and_overlap(self):
        text = "\n\n".join(f"Paragraph {n} " + "of some words " * 20 for n in range(200))
        cut = manuals.parts(text, words, 1000)
        self.assertGreater(len(cut), 5)
        self.assertEqual((cut[0][0], cut[-1][1]), (0, len(text)))
        for (_, end), (begin, _) in zip(cut, cut[1:]):
            self.assertGreaterEqual(end - begin, manuals.OVERLAP)
        for begin, end in cut:
            self.assertLessEqual(words(text[begin:end]), 1000)
        for at in range(0, len(text) - manuals.SPAN, 97):
            manuals.part_of((at, at + manuals.SPAN), cut)
        with self.assertRaisesRegex(ValueError, "longer than"):
            manuals.parts(text, words, 100)

    def test_questions_get_the_part_that_answers_them(self):
        text = "\n\n".join(f"Paragraph {n} " + "of some words " * 20 for n in range(300))
        asked = [one for one in manuals.questions() if one.manual == "ctest"]
        places = {}
        for n, one in enumerate(asked):
            at = len(text) // (len(asked) + 1) * (n + 1)
            places[one] = f"place-{n}"
            text = f"{text[:at]} {places[one]} {one.key} {text[at:]}"

        class Counting:
            def count(self, text):
                return words(text)
        cuts = asking.Cuts({"ctest": text}, 1500)
        for one, place in places.items():
            sample = cuts.sample(Counting(), dataclasses.replace(one, place=place + " "))
            self.assertLess(words(sample.text), 1500 - sample.most)
            self.assertTrue(stands_in(one.key, sample.text.split(place)[1]))
            self.assertTrue(sample.text.endswith(one.question))

    def test_a_wrong_place_is_told(self):
        text = "one two two " + "x " * manuals.SPAN + "three"
        for place, words_of_error in (("two", "2 times"), ("four", "0 times"),
                                      ("one", "does not stand")):
            with self.assertRaisesRegex(ValueError, words_of_error):
                manuals.Question("m", place, "?", "three").span(text)

    def test_another_text_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(ValueError, "is missing"):
                manuals.load(pathlib.Path(folder))
            for name in manuals.SOURCES:
                (pathlib.Path(folder) / f"manual_{name}.txt").write_text("other")
            with self.assertRaisesRegex(ValueError, "another text"):
                manuals.load(pathlib.Path(folder))


class ClientTest(unittest.TestCase):
    def test_settings_are_read_and_wrong_ones_refused(self):
        self.assertEqual(Setting.parse("full").fields(), {"policy": "full"})
        self.assertEqual(Setting.parse("wave:0.07").fields(),
                         {"policy": "wave", "retrieval_ratio": 0.07})
        for text in ("", "exact", "full:0.1", "wave:2", "wave:x"):
            with self.assertRaises(ValueError):
                Setting.parse(text)

    def test_what_is_behind_the_lead_counts(self):
        scored = Scored(["It", " is", " 1", "2"], [-1.0, -2.0, -3.0, -4.0],
                        [True, False, True, False], {})
        self.assertEqual(scored.behind("It is").logprobs, [-3.0, -4.0])


class LongAnswersTest(unittest.TestCase):
    def test_repeated_grams_are_counted_by_stretch(self):
        ids = list(range(1024)) + [7] * 1024
        first, second = long_answers.stretches(ids, [-1.0] * 2048)
        self.assertEqual((first["tokens"], first["grams"], first["repeated"], first["distinct"]),
                         (1024, 1017, 0, 1024))
        # Seven windows reach back into the first stretch, the eighth is the first of sevens alone.
        self.assertEqual((second["grams"], second["repeated"], second["distinct"]),
                         (1024, 1016, 1))
        self.assertEqual(second["logprob"], -1024)

    def test_kinds_of_texts_take_turns(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for text in ("code_a", "code_b", "prose_a", "prose_short"):
                (folder / f"{text}.txt").write_text("x" * (5 if "short" in text else 500))
            self.assertEqual([one for one, _ in long_answers.texts(folder, 3, 100)],
                             ["code_a", "prose_a", "code_b"])
            with self.assertRaisesRegex(ValueError, "corpora"):
                long_answers.texts(folder, 3, 1000)


class ReportTest(unittest.TestCase):
    def line(self, setting, index, right, logprobs, task="vt"):
        return {"key": ["ruler", 4096, task, index, 1, "m", "int8", setting], "right": right,
                "logprobs": logprobs, "kv_read": 1 if setting == "full" else 0.25}

    def test_only_pairs_count_and_changes_are_signed(self):
        lines = [self.line("full", 0, 1.0, [-1.0, -1.0]), self.line("wave", 0, 0.5, [-2.0, -1.5]),
                 self.line("full", 1, 0.0, [-3.0, None]), self.line("wave", 1, 1.0, [-2.5, None]),
                 self.line("full", 2, 1.0, [-1.0])]
        table = report.questions(lines, "ruler")
        self.assertIn("m, int8, 4,096 tokens:", table)
        # 2 questions; -1.5 and +0.5; 2 of 4 tokens change by 1.0, 0.5 and 0.5.
        self.assertIn("| wave | vt | 2 | 50.0 | 75.0 | 1 / 1 | -52.50 | -0.500 | 1.000 | -1.50 | "
                      "0.5000 | 25 |", table)

    def test_long_answers_are_added_up(self):
        one = {"tokens": 1024, "logprob": -1024.0, "grams": 1000, "repeated": 100}
        two = {"tokens": 1024, "logprob": 0.0, "grams": 1000, "repeated": 900}
        lines = [{"key": ["long", 8192, 2048, "greedy", text, 1, "m", "int8", "wave"],
                  "stretches": [one, two], "kv_read": 0.1} for text in "ab"]
        self.assertIn("| greedy | wave | 2 | 2.72 / 10 | 1.00 / 90 | 1.65 / 50 | 90 | 10 |",
                      report.long_answers(lines))

    def test_the_page_is_written_between_its_markers(self):
        with tempfile.TemporaryDirectory() as name:
            results, page = pathlib.Path(name) / "r.jsonl", pathlib.Path(name) / "p.md"
            results.write_text("".join(json.dumps(self.line(s, 0, 1.0, [-1.0])) + "\n"
                                       for s in ("full", "wave")))
            page.write_text("a\n<!-- tasks: begin -->\nold\n<!-- tasks: end -->\nz\n")
            sys.argv = ["report", str(results), str(page)]
            report.main()
            self.assertIn("| wave | vt | 1 |", page.read_text())
            self.assertNotIn("old", page.read_text())
            self.assertTrue(page.read_text().endswith("z\n"))


if __name__ == "__main__":
    unittest.main()
