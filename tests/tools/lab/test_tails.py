"""Tails that attend through the index, and answers of the needle model by rule; needs PyTorch."""

import math
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

try:
    import torch
    from tools.lab import indexed_tails, needle_prefill, prefill_tasks, system as lab, tail_tasks
    from tools.lab.block_choice import Choice
    from tools.lab.systems.full import Full
    from tools.needle import model as llama
except ImportError as error:
    print(f"skipped: needs PyTorch: {error}")
    sys.exit(77)

ROWS, HEADS, GROUP, WIDTH, TOKENS = 6, 2, 3, 16, 68 + 4096


class AfterQuestionTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.keys = torch.randn(HEADS, TOKENS, WIDTH)
        self.values = torch.randn(HEADS, TOKENS, WIDTH)
        queries = 2 * torch.randn(ROWS, HEADS, GROUP, WIDTH)
        self.step = lab.Step(0, queries, lab.scores(queries, self.keys), torch.arange(1, ROWS + 1),
                             True)

    def attend(self, system):
        index = system.build(0, self.keys, self.values, None)
        choice = system.choose(index, self.step)
        nothing = torch.full((ROWS, HEADS, GROUP, 1), -math.inf)
        return lab.attend(self.step, choice, self.values, nothing, self.values[:, :1])

    def test_the_question_attends_exactly_and_the_answer_through_the_index(self):
        inner = indexed_tails.systems()[0]
        full, index = self.attend(Full()), self.attend(inner)
        found = self.attend(tail_tasks.AfterQuestion(inner, 4))
        torch.testing.assert_close(found[:4], full[:4])
        torch.testing.assert_close(found[4:], index[4:])
        self.assertGreater((full - index).abs().max().item(), 1e-3)

    def test_heads_end_with_a_block_that_leaves_the_tail(self):
        for prompt in range(5000, 5200):
            head = tail_tasks.head_of(prompt, 256)
            self.assertEqual((head - 4) % 64, 0)
            self.assertTrue(256 <= prompt - head < 320)


class CutTest(unittest.TestCase):
    def test_a_document_that_a_longer_one_begins_with_has_its_keys_and_no_index(self):
        whole = types.SimpleNamespace(tokens=40, keys=[torch.randn(2, 40, 8)] * 2,
                                      values=[torch.randn(2, 40, 8)] * 2, _indexes={"a": 1},
                                      build_seconds={"a": 1})
        found = indexed_tails.first(whole, 30)
        self.assertEqual((found.tokens, found._indexes, whole.tokens), (30, {}, 40))
        for a, b in zip(found.keys + found.values, whole.keys + whole.values):
            torch.testing.assert_close(a, b[:, :30])
        self.assertEqual(whole._indexes, {"a": 1})

    def test_tails_of_a_document_count_as_one_document(self):
        part = {"tokens": 10, "loss_full": 10.0, "loss": 10.0, "change": 1.0, "divergence": 0.1,
                "agreed": 9}
        lines = [{"key": ["indexed tail", "m", 100, 256, "code_a", number, "index"],
                  "bins": [part] * 4} for number in (0, [0, 1], [0, 2], 1)]
        self.assertIn("| 4 / 2 |", indexed_tails.report(lines))


class NeedleTest(unittest.TestCase):
    def test_a_document_by_a_rule_has_its_keys_and_another_says_them_exactly(self):
        torch.manual_seed(4)
        shape = llama.Shape(vocab_size=40, hidden_size=32, num_hidden_layers=3, intermediate_size=48,
                            num_attention_heads=4, num_key_value_heads=2, head_dim=16)
        model = llama.Llama(shape).eval()
        ids = torch.randint(0, 40, (600,)).tolist()
        exact = needle_prefill.ByRule(model, ids, 39, None)
        whole = needle_prefill.ByRule(model, ids, 39, Choice("all", dense=200))
        sparse = needle_prefill.ByRule(model, ids, 39, Choice(threshold=0.01, dense=200))
        for a, b in zip(exact.keys, whole.keys):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(exact.keys[0], sparse.keys[0])
        self.assertGreater((exact.keys[1] - sparse.keys[1]).abs().max().item(), 1e-4)
        self.assertLess(sparse.counts.attended, sparse.counts.seen)
        questions = [[1, 2, 3], [4, 5]]
        self.assertEqual(exact.answer(questions, 4), whole.answer(questions, 4))

    def test_one_document_of_each_task_comes_before_a_second_one(self):
        found = needle_prefill.plan(32768)
        labels = [label for label, *_ in found]
        self.assertEqual(len(set(labels)), len(set(labels[:len(set(labels))])))
        self.assertIn((needle_prefill.CROWDED, 100, "multi_key", 1900), found)


class SamplesTest(unittest.TestCase):
    def test_samples_come_in_order_however_many_there_are(self):
        for count in (0, 1, 5, 6, 7, 20):
            todo = [(types.SimpleNamespace(make=lambda _, n=n: 10 * n), [n]) for n in range(count)]
            self.assertEqual(list(prefill_tasks.coming(todo, None)),
                             [([n], 10 * n) for n in range(count)])

    def test_what_was_begun_is_dropped_when_nobody_takes_it(self):
        made = []
        todo = [(types.SimpleNamespace(make=lambda _, n=n: made.append(n)), [n])
                for n in range(100)]
        samples = prefill_tasks.coming(todo, None)
        next(samples)
        samples.close()
        self.assertLess(len(made), 20)


class AskTest(unittest.TestCase):
    def test_questions_are_asked_once_unless_a_result_of_theirs_is_missing(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(
                prefill_tasks, Models=mock.DEFAULT, Chat=mock.DEFAULT, questions=mock.DEFAULT) as made:
            made["Models"].return_value.name.return_value = "m"
            made["questions"].side_effect = lambda _: [types.SimpleNamespace(
                key=["ruler", 100, "vt", n], make=lambda _, n=n: n) for n in range(3)]
            arguments = types.SimpleNamespace(out=pathlib.Path(folder) / "out", model=None,
                                              device="cpu", dtype=torch.float32, seconds=1e9,
                                              samples=None, only_samples=None)
            asked = []

            def ask(models, chat, sample, results, key):
                asked.append(sample)
                for name in ("a", "b")[:1 if sample == 1 and asked.count(1) == 1 else 2]:
                    results.add([*key, name], {})
            for _ in range(2):
                prefill_tasks.ask_all(arguments, "task", ["a", "b"], ask)
        self.assertEqual(asked, [0, 1, 2, 1])


class ReportTest(unittest.TestCase):
    def test_settings_are_laid_beside_exact_attention(self):
        def line(setting, number, right, surprise):
            return {"key": ["tail task", "m", "ruler", 100, "vt", number, 1, setting],
                    "right": right, "surprise": surprise, "tokens": 5}
        lines = [line("exact", 0, 1, 1.0), line("exact", 1, 0, 2.0),
                 line("both by the index", 0, 0, 1.5), line("both by the index", 1, 0, 2.0)]
        self.assertIn("| 100 | tracking | both by the index | 0.0 | -50.0 | 1 / 0 | +0.250 | "
                      "+0.0500 | 2 |", tail_tasks.report(lines))

    def test_needles_are_laid_beside_exact_prefill(self):
        def line(rule, right):
            return {"key": ["needle prefill", 100, "single", 0, rule], "right": right,
                    "attended": 1, "seen": 4}
        found = needle_prefill.report([line("exact", [True, True]), line("rule", [True, False])])
        self.assertIn("| 100 | single | rule | 25.0 | 50.0 | -50.0 | 1 / 0 | 2 |", found)


if __name__ == "__main__":
    unittest.main()
