"""First passes over clusters, what they cost, and documents that are kept; needs PyTorch."""

import dataclasses
import math
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

try:
    import torch
    from tools.lab import coarse_forms, coarse_report, coarse_scoring, kept_documents, system as lab
    from tools.lab.block_choice import Choice
    from tools.lab.document import Document
    from tools.lab.systems import coarse
    from tools.lab.systems.full import Full
    from tools.needle import model as llama, wave
except ImportError as error:
    print(f"skipped: needs PyTorch: {error}")
    sys.exit(77)

HEADS, GROUP, WIDTH, TOKENS, ROWS = 2, 3, 16, 68 + 3072, 5


class FirstPassTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.keys = torch.randn(HEADS, TOKENS, WIDTH)
        self.keys += 3 * torch.randn(HEADS, -(-TOKENS // 64), WIDTH).repeat_interleave(
            64, 1)[:, :TOKENS]
        self.values = torch.randn(HEADS, TOKENS, WIDTH)
        queries = 2 * torch.randn(ROWS, HEADS, GROUP, WIDTH)
        self.step = lab.Step(0, queries, lab.scores(queries, self.keys), torch.arange(ROWS), True)
        self.base = coarse.Coarse("base")
        self.index = self.base.build(0, self.keys, self.values, None)

    def zones(self, *passes):
        system = coarse.Coarse("form", *passes)
        system.prepare(self.index, TOKENS)
        return system.zones(self.index, self.step)

    def made(self, one):
        self.zones(one)
        return one.score(self.index.made[one.key()], self.index, self.step)

    def logits(self):
        return wave.rank(self.index, self.step.queries, coarse.INT8)[0]

    def test_a_pass_that_leaves_nothing_out_changes_nothing(self):
        wanted = self.zones()
        for one in (coarse.Groups(candidates=1.0), coarse.Boxes(candidates=1.0),
                    coarse.Projected(candidates=1.0), coarse.Bits(bits=1, candidates=1.0),
                    coarse.History(candidates=1.1)):
            for found, expected in zip(self.zones(one), wanted):
                torch.testing.assert_close(found, expected)

    def test_what_is_retrieved_is_among_the_candidates_and_no_more_than_the_budget(self):
        wanted = self.zones()[1]
        for one in (coarse.Groups(), coarse.Bits(bits=2), coarse.Bits(bits=2, by_segment=True)):
            logits, zone, others = self.zones(one)
            self.assertEqual(zone.sum(-1).unique().tolist(), wanted.sum(-1).unique().tolist())
            self.assertFalse((zone & others).any())
            self.assertTrue(logits.isfinite().all(2)[zone | others].all())
            share = logits.isfinite().any(2).float().mean(-1)
            self.assertTrue((share <= 0.26).all())
        parts = logits.isfinite().any(2).split(self.index.counts, -1)
        self.assertEqual([part.sum(-1).unique().tolist() for part in parts],
                         [[math.ceil(part.shape[-1] / 4)] for part in parts])

    def test_a_box_bounds_its_members_scores_and_a_tighter_one_does_not(self):
        bound = self.made(coarse.Boxes(size=8))
        # Groups in int8 are as wide as rounding: boxes are not rounded here.
        self.assertTrue((bound >= self.logits() - 1e-4).all())
        turned = self.made(coarse.Boxes(size=8, turned=True))
        self.assertTrue((turned >= self.logits() - 1e-4).all())
        self.assertFalse((self.made(coarse.Boxes(size=8, weight=0.1)) >= self.logits()).all())

    def test_more_bits_and_more_channels_are_nearer_to_the_centroids_scores(self):
        def error(one):
            off = self.made(one) - self.logits()
            return (off - off.mean(-1, keepdim=True)).std().item()
        bits = [error(coarse.Bits(bits=bits)) for bits in (1, 2, 3, 4)]
        self.assertEqual(bits, sorted(bits, reverse=True))
        self.assertLess(bits[3], 0.2 * bits[0])
        shares = [error(coarse.Projected(share=share)) for share in (0.25, 0.5, 1.0)]
        self.assertEqual(shares, sorted(shares, reverse=True))
        self.assertLess(shares[2], 0.05 * shares[0])

    def test_a_turn_keeps_products(self):
        a, b = torch.randn(7, 64), torch.randn(7, 64)
        torch.testing.assert_close((coarse.turn(a) * coarse.turn(b)).sum(-1), (a * b).sum(-1))
        with self.assertRaisesRegex(ValueError, "power of two"):
            coarse.turn(torch.randn(2, 48))

    def test_others_are_estimated_by_their_codes(self):
        logits, zone, others = self.zones(coarse.Bits(candidates=0.125, keeps=True))
        wanted = self.zones()
        self.assertEqual(others.sum(-1).unique().tolist(), wanted[2].sum(-1).unique().tolist())
        torch.testing.assert_close(logits.permute(0, 1, 3, 2)[zone],
                                   self.logits().permute(0, 1, 3, 2)[zone])
        self.assertGreater((logits - self.logits()).abs().max().item(), 1e-4)

    def test_groups_are_within_segments(self):
        for clustered in (True, False):
            group = coarse.groups_of(self.index.filled, self.index.counts, 8, clustered)
            first = group[:, :self.index.counts[0]]
            self.assertGreater(group[:, self.index.counts[0]:].min(), first.max())


class RememberedTest(unittest.TestCase):
    def test_groups_that_were_high_stay_and_all_have_their_turn(self):
        ranking = torch.zeros(9, 1, 32)
        ranking[:, :, 5] = 1.0
        ranking[4:, :, 30] = 2.0
        first = coarse.History(candidates=0.5, size=4, turning=0.25)
        found = coarse.remembered(first, ranking)
        self.assertTrue(found[0].all())
        self.assertEqual(found[1:].sum(-1).unique().tolist(), [16])
        self.assertTrue(found[:, 0, 4:8].all())
        self.assertTrue(found[1:5].any(0).all())
        seen = found[4:, 0, 30].nonzero()[0, 0]
        self.assertTrue(found[4 + seen:, 0, 28:].all())


class LayerTest(unittest.TestCase):
    def test_the_error_is_that_of_attention_by_the_choice(self):
        FirstPassTest.setUp(self)
        own_logits, own_values = torch.randn(ROWS, HEADS, GROUP, 4), torch.randn(HEADS, 4, WIDTH)
        full = Full().choose(self.keys.shape, self.step)
        out = lab.attend(self.step, full, self.values, own_logits, own_values)
        seen = coarse_scoring.Seen(0, self.step, full, None, self.values, own_logits, own_values, out)
        choice = self.base.choose(self.index, self.step)
        wave_out = lab.attend(self.step, choice, self.values, own_logits, own_values)
        wanted = ((wave_out - out).norm(dim=-1) / out.norm(dim=-1)).mean().item()
        asked = coarse_scoring.Layer(seen)
        found = asked.measure(self.base, self.index)
        self.assertAlmostEqual(found["error"], wanted, places=4)
        self.assertEqual((found["retrieved"], found["estimated"]), (1.0, 1.0))
        self.assertGreater(wanted, 1e-3)
        rough = coarse.Coarse("rough", coarse.Bits(bits=1, candidates=0.0))
        rough.prepare(self.index, TOKENS)
        self.assertLess(asked.measure(rough, self.index)["retrieved"], 1.0)


class CostTest(unittest.TestCase):
    def test_the_count_of_what_is_measured_is_what_was_measured(self):
        cost = coarse_forms.cost_of(coarse_forms.forms()[0])
        self.assertAlmostEqual(cost.time_us, 86, delta=2)
        self.assertEqual(cost.passes, 3)

    def test_names_are_of_one_form_each(self):
        names = [system.name for system in coarse_forms.forms()]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(names[0], coarse_forms.BASE)


class KeptTest(unittest.TestCase):
    def test_a_kept_document_is_what_was_read(self):
        torch.manual_seed(4)
        shape = llama.Shape(vocab_size=40, hidden_size=32, num_hidden_layers=3,
                            intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
                            head_dim=16, max_position_embeddings=16384)
        model = llama.Llama(shape).eval()
        ids = torch.randint(0, 40, (8192,)).tolist()
        whole = Document(model, ids)
        with tempfile.TemporaryDirectory() as folder:
            path = kept_documents.path_of(pathlib.Path(folder), "m yarn:4", 8192, "code_a", 0)
            part = kept_documents.first_layers(model, 2)
            kept_documents.read(part, ids, [1, 2], Choice("all", dense=8192), path)
            self.assertEqual(len(model.model.layers), 3)
            found = kept_documents.Kept(model, path)
            self.assertEqual([p.name for p in path.parent.iterdir()], ["m_yarn-4-8192-code_a-0.pt"])
        self.assertEqual((found.ids, found.behind, len(found.keys)), (ids, [1, 2], 2))
        for a, b in zip(found.keys + found.values, whole.keys[:2] + whole.values[:2]):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


class ReportTest(unittest.TestCase):
    def test_forms_are_laid_beside_the_base_of_the_same_document(self):
        bits = "2 bits a channel, best 0.25 of the clusters"
        lines = [{"key": ["coarse", f"m_yarn-4-65604-{text}-0", tokens, 48, 1, form],
                  "error": error, "mass": 0.9, "retrieved": 0.5, "estimated": 0.25}
                 for text in ("code_a", "prose_b") for tokens, more in ((8260, 1.0), (65604, 1.5))
                 for form, error in ((coarse_forms.BASE, 0.1), (bits, 0.1 * more))]
        table = coarse_report.errors(lines)
        self.assertIn(f"| {bits} | +50.0 | 50 | 25 | 90.0 | 1/1 | 74 | 5 |", table)
        self.assertIn(f"| {bits} | +0.0 | +50.0 | +0.0 | +50.0 |", coarse_report.lengths(lines))


if __name__ == "__main__":
    unittest.main()
