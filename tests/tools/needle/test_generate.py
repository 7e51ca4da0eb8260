"""The generator: reproducible, true to its splits, exact in length, clear about the impossible."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tools.needle import bpe, generate, keys, prompt, tasks, words  # noqa: E402

MODEL = ROOT / "models" / "needle"


class WordsTest(unittest.TestCase):
    def test_no_word_is_in_two_lists(self):
        everything = [w for name in dir(words) if name.isupper() for w in getattr(words, name)]
        self.assertEqual(len(everything), len(set(everything)))

    def test_every_word_is_one_token(self):
        encoder = bpe.Encoder(MODEL)
        for name in filter(str.isupper, dir(words)):
            for word in getattr(words, name):
                self.assertEqual(len(encoder.encode(" " + word)), 1, word)


class KeysTest(unittest.TestCase):
    def test_splits_are_disjoint_and_complete(self):
        train, evaluation = (set(keys.KEYS[split]) for split in keys.SPLITS)
        self.assertFalse(train & evaluation)
        self.assertEqual(len(train | evaluation), len(words.ADJECTIVES) * len(words.NOUNS))

    def test_refuses_more_keys_than_there_are(self):
        import random
        with self.assertRaisesRegex(ValueError, "split has"):
            keys.draw_keys(random.Random(0), "eval", 40000)


class GeneratorTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.encoder = bpe.Encoder(MODEL)
        cls.generator = generate.Generator(cls.encoder, "eval", 3)

    def lines(self, task, length=2048, **options):
        return list(self.generator.lines(task, length, 0, **options))

    def test_same_arguments_give_same_lines(self):
        again = generate.Generator(self.encoder, "eval", 3)
        for task in tasks.TASKS:
            self.assertEqual(self.lines(task), list(again.lines(task, 2048, 0)))

    def test_another_seed_gives_another_document(self):
        other = generate.Generator(self.encoder, "eval", 4)
        self.assertNotEqual(self.lines("single")[0]["document"],
                            next(other.lines("single", 2048, 0))["document"])

    def test_prompt_and_answer_fit_and_nearly_fill_the_length(self):
        for task in tasks.TASKS:
            sizes = []
            for line in self.lines(task):
                text = line["prompt"] + prompt.completion_text(line["answer"])
                sizes.append(len(self.encoder.encode(text)) + 2)  # begin and end of text
            self.assertLessEqual(max(sizes), 2048, task)
            self.assertGreater(max(sizes), 2048 - 48, task)

    def test_answers_follow_from_the_document(self):
        for line in self.lines("multi_key"):
            key = line["question"].removeprefix("What is the secret number of the ")[:-1]
            self.assertIn(f"The secret number of the {key} is {line['answer']}.", line["document"])
            self.assertEqual(keys.split_of(key), "eval")

    def test_values_of_a_key_come_in_document_order(self):
        for line in self.lines("multi_value"):
            places = [line["document"].index(f"is {value}.") for value in line["answers"]]
            self.assertEqual(places, sorted(places))
            self.assertEqual(len(places), tasks.VALUES_PER_KEY)

    def test_chain_is_followed_link_by_link(self):
        for line in self.lines("variable_tracking"):
            source = line["question"].split("set to ")[1][:-1]
            for name in line["answers"]:
                self.assertIn(f"Set {name} to {source}.", line["document"])
                source = name

    def test_word_lists_are_counted_right(self):
        for task, count in (("common_words", 5), ("frequent_words", 3)):
            line = self.lines(task)[0]
            tokens = line["document"].replace(".", " ").replace(":", " ").split()
            by_count = sorted(set(tokens) & {*words.NOUNS, *words.CODE_WORDS},
                              key=lambda word: -tokens.count(word))
            pool = words.NOUNS if task == "common_words" else words.CODE_WORDS
            best = [word for word in by_count if word in pool][:count]
            self.assertEqual(sorted(best), sorted(line["answers"]))

    def test_depth_is_where_the_fact_stands(self):
        for depth in (0.0, 0.25, 0.5, 1.0):
            line = self.lines("single", questions=1, needles=1, depth=depth)[0]
            self.assertAlmostEqual(line["depth"], depth, delta=0.01)

    def test_every_sentence_can_be_a_needle(self):
        made, asked = self.generator.make("multi_key", 8192, 0, needles=470)
        self.assertEqual(len(asked), 470)
        self.assertLess(len(made.sentences), 490)

    def test_refuses_what_cannot_be(self):
        for task, options, message in (
                ("multi_key", {"needles": 700}, "ask for at most"),
                ("multi_key", {"length": 200000}, "256 to 131072"),
                ("multi_key", {"needles": 0}, "multiples of 1"),
                ("multi_value", {"needles": 6}, "multiples of 4"),
                ("multi_value", {"depth": 0.5}, "several depths"),
                ("single", {"depth": 1.5}, "0 is the start"),
                ("common_words", {"needles": 3}, "leave needles"),
                ("poetry", {}, "choose from")):
            with self.subTest(task=task, **options), self.assertRaisesRegex(ValueError, message):
                self.lines(task, **options)

    def test_refuses_an_unknown_split(self):
        with self.assertRaisesRegex(ValueError, "train, eval"):
            generate.Generator(self.encoder, "test")


if __name__ == "__main__":
    unittest.main()
