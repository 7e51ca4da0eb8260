"""Documents, text behind them, and what is measured about it; needs PyTorch."""

import collections
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

try:
    import torch
    from tools.lab import catalogue, document, locality, measures, sources, text, unseen
    from tools.lab.systems import full, wave
    from tools.needle import model as llama, wave as reference
except ImportError as error:
    print(f"skipped: needs PyTorch: {error}")
    sys.exit(77)

SHAPE = llama.Shape(vocab_size=50, hidden_size=32, num_hidden_layers=2, intermediate_size=32,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16)
TOKENS = 68 + 8 * 1024


class DocumentTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(1)
        cls.model = llama.Llama(SHAPE).eval()
        for parameter in cls.model.parameters():
            parameter.data *= 4
        cls.ids = torch.randint(0, 48, (TOKENS + 1200,))
        cls.document = document.Document(cls.model, cls.ids[:TOKENS].tolist())

    @torch.inference_mode()
    def whole(self, end):
        positions = torch.arange(end)[None]
        return self.model(self.ids[None, :end], positions)[0, TOKENS:]

    def test_full_attention_behind_a_document_is_that_of_the_whole(self):
        tail = self.ids[TOKENS:TOKENS + 30]
        hidden, read = self.document.follow(full.Full(), tail)
        torch.testing.assert_close(hidden, self.whole(TOKENS + 30), atol=2e-3, rtol=2e-3)
        self.assertEqual(read["pages"], 2 * 2 * TOKENS * 4 * 16)

    def test_a_document_that_grows_is_still_the_whole(self):
        tail = self.ids[TOKENS:TOKENS + 1150]
        everything = reference.dataclasses.replace(wave.PRODUCT, retrieval_ratio=1.0)
        shapes = []
        hidden, _ = self.document.follow(
            wave.Wave("all", everything), tail, True,
            lambda seen: shapes.append((seen.first_row, seen.values.shape[1],
                                        seen.index.sizes.shape[1])))
        torch.testing.assert_close(hidden, self.whole(TOKENS + 1150), atol=2e-3, rtol=2e-3)
        self.assertEqual({(tokens, clusters) for row, tokens, clusters in shapes if row < 1088},
                         {(TOKENS, 512)})
        self.assertEqual({(tokens, clusters) for row, tokens, clusters in shapes if row >= 1088},
                         {(TOKENS + 1024, 576)})

    def test_sections_follow_the_plan_of_the_product(self):
        parts = document.sections(3000, True)
        self.assertEqual([(p.begin, p.end, p.grown) for p in parts],
                         [(0, 1088, 0), (1088, 2112, 1024), (2112, 3000, 2048)])
        self.assertEqual(len(document.sections(3000, False)), 1)

    def test_short_and_long_documents_are_refused(self):
        for count in (100, 131073):
            with self.assertRaisesRegex(ValueError, f"a document of {count} tokens"):
                document.Document(self.model, [1] * count)

    def test_the_prediction_of_a_query_comes_from_the_layer_before(self):
        found = {}
        with document.Predictor(self.model) as predictor:
            def attend(layer, q, k, v):
                found[layer] = predictor.queries(layer, 2), q
                return torch.zeros_like(q)
            with torch.inference_mode():
                self.model(self.ids[None, :6], torch.arange(6)[None], attend)
        self.assertIsNone(found[0][0])
        # What a layer adds is what makes the guess differ: with no attention, the MLP's part.
        guess, true = found[1][0].flatten(1, 2), found[1][1][0].transpose(0, 1)
        self.assertEqual(guess.shape, true.shape)
        self.assertGreater(torch.nn.functional.cosine_similarity(guess, true, dim=-1).mean(), 0.1)

    def test_questions_under_systems_that_attend_everything(self):
        questions = [[1, 2, 3], [4, 5, 6, 7, 8]]
        wanted = self.document.answer(questions, 4)
        everything = reference.dataclasses.replace(wave.PRODUCT, retrieval_ratio=1.0)
        for system in (full.Full(), wave.Wave("all", everything)):
            with document.Predictor(self.model) as predictor:
                policy = document.SystemPolicy(self.document, system, predictor)
                self.assertEqual(self.document.answer(questions, 4, policy), wanted)
            self.assertEqual(policy.steps, 4)
            self.assertGreater(policy.read["pages"] / policy.steps, 2 * 2 * 8192 * 4 * 16)

    def test_promised_mass_follows_what_is_there(self):
        system = catalogue.ours()
        observer = unseen.Promise(system)
        tail = self.ids[TOKENS:TOKENS + 20]
        with torch.inference_mode():
            self.document.follow(system, tail, observer=observer)
            result = observer.result(torch.zeros(20))
        # Jensen: what centroids promise is less than what is there, and follows it.
        self.assertLess(result["predicted"], result["true"] + 1e-6)
        self.assertGreater(result["rank_correlation"]["true_mass"], 0.7)
        self.assertGreater(result["rank_correlation"]["output_error"], 0.3)

    def test_measures_of_equal_and_of_other_words(self):
        hidden = torch.randn(10, 32)
        targets = torch.randint(0, 50, (10,))
        sums, change = measures.compare(self.model.logits, hidden, hidden, targets, 3)
        self.assertEqual([part.tokens for part in sums], [3, 3, 4])
        found = sums[0].add(sums[1]).add(sums[2]).measures()
        self.assertEqual((found["perplexity_ratio"], found["top1_agreement"]), (1.0, 1.0))
        self.assertEqual(float(change.abs().max()), 0.0)
        other = torch.randn(10, 32)
        sums, change = measures.compare(self.model.logits, hidden, other, targets, 1)
        wanted = [x.log_softmax(-1)[range(10), targets] for x in
                  (self.model.logits(hidden), self.model.logits(other))]
        torch.testing.assert_close(change.float(), wanted[0] - wanted[1], atol=1e-4, rtol=1e-4)
        self.assertAlmostEqual(sums[0].change, float((wanted[0] - wanted[1]).detach().abs().sum()), 2)
        self.assertGreater(sums[0].divergence, 0)


class SourcesTest(unittest.TestCase):
    def test_windows_begin_at_a_file_and_have_their_length(self):
        made = "".join(f"# file: {i}.py\nvalue = {i}\n" for i in range(400))
        ids = text.window(made, lambda part: list(part.encode()), 1, 3, 500)
        self.assertEqual(len(ids), 500)
        self.assertTrue(bytes(ids).startswith(b"# file: "))
        with self.assertRaisesRegex(ValueError, "are possible"):
            text.window(made, lambda part: list(part.encode()), 0, 1, 100_000)

    def test_questions_with_answers_stand_behind_a_needle_document(self):
        source = sources.NeedleText(sources.NEEDLE, 3)
        ids, behind = source.make(0, 12000, 300)
        again, _ = source.make(0, 12000, 300)
        self.assertEqual((ids, len(behind)), (again, 301))
        self.assertTrue(11000 < len(ids) <= 12000)
        shown = source._encoder.decode(behind)
        self.assertIn("Question: What are the 4 secret numbers", shown)
        self.assertRegex(shown, r"Answer: \d{7}, \d{7}")


class LocalityTest(unittest.TestCase):
    def test_distances_tell_what_an_lru_cache_hits(self):
        torch.manual_seed(6)
        zones = torch.rand(40, 2, 2, 30) < 0.1 * torch.rand(30).mul(3)
        pages = torch.randint(1, 9, (2, 2, 30)).float()
        reach = locality.stack_distances(zones, pages) + pages
        for capacity in (20, 60, 150, 400):
            cache = collections.OrderedDict()
            for step, layer, head, cluster in zones.nonzero().tolist():
                key, own = (layer, head, cluster), float(pages[layer, head, cluster])
                hit = float(reach[step, layer, head, cluster]) <= capacity
                # An LRU cache of pages that keeps whatever fits before what is older.
                held, used = set(), 0.0
                for other in reversed(cache):
                    used += float(pages[other])
                    if used > capacity:
                        break
                    held.add(other)
                self.assertEqual(hit, key in held)
                cache[key] = own
                cache.move_to_end(key)

    def test_summary_of_what_is_always_wanted(self):
        zones = torch.zeros(10, 1, 2, 4, dtype=torch.bool)
        zones[:, 0, :, 0] = True
        found = locality.summary(zones, torch.full((1, 2, 4), 5.0))
        self.assertEqual(found["again_at_the_next_step"], [1.0])
        self.assertEqual(found["hits"], {"0.05": 0.0, "0.1": 0.0, "0.2": 0.0, "0.4": 1.0})
        self.assertEqual(found["by_head"][0]["reach"][-3:], [1.0, 1.0, 1.0])
        self.assertEqual((found["ever_touched"], found["first_touches"]), (0.25, 0.0))


if __name__ == "__main__":
    unittest.main()
