"""The reference of wave attention against dense attention; needs PyTorch."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

try:
    import torch
    from tools.needle import model as llama, session, wave
except ImportError as error:
    raise unittest.SkipTest(f"needs PyTorch: {error}") from error

SHAPE = llama.Shape(vocab_size=50, hidden_size=32, num_hidden_layers=2, intermediate_size=32,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16)


class SegmentsTest(unittest.TestCase):
    def test_short_prompts_are_dense(self):
        self.assertEqual(wave.segment_sizes(8191), [])

    def test_rest_of_the_prompt_is_cut_into_small_segments(self):
        self.assertEqual(wave.segment_sizes(8192), [1024] * 7)
        self.assertEqual(wave.segment_sizes(4 + 8192 + 2048 + 64), [8192, 1024, 1024])
        self.assertEqual(wave.segment_sizes(4 + 8192 + 2048 + 63), [8192, 1024])


class IndexTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.keys = torch.randn(2, 4 + 512 + 70, 16)
        self.values = torch.randn_like(self.keys)

    def index(self, **changes):
        return wave.build_index(self.keys, self.values, [256, 256], wave.Settings(**changes))

    def test_every_token_has_one_cluster(self):
        for changes in ({}, {"centre": True}, {"start": "spread"}, {"largest": 20},
                        {"euclidean": True}, {"cluster_tokens": 8}):
            index = self.index(**changes)
            clusters = index.sizes.shape[1]
            counts = torch.stack([owner.bincount(minlength=clusters + 1) for owner in index.owner])
            self.assertTrue(torch.equal(counts[:, :-1].float(), index.sizes), changes)
            self.assertEqual(counts[:, -1].tolist(), [74, 74])

    def test_summary_is_of_the_members(self):
        index = self.index(centre=True)
        inside = index.owner[1] == index.owner[1, 10]
        members = self.keys[1][inside]
        at = index.owner[1, 10]
        torch.testing.assert_close(index.centroids[1, at], members.mean(0))
        torch.testing.assert_close(index.value_sums[1, at], self.values[1][inside].sum(0))
        torch.testing.assert_close(
            index.radii[1, at], (members - members.mean(0)).norm(dim=-1).max())

    def test_radius_bounds_every_member(self):
        index = self.index()
        queries = torch.randn(1, 2, 3, 16)
        logits, _ = wave.rank(index, queries, wave.Settings())
        bound = logits + queries.norm(dim=-1, keepdim=True) / 4 * index.radii[:, None]
        exact = queries @ self.keys.transpose(1, 2) / 4
        for head in range(2):
            for token in range(4, 516):
                over = exact[0, head, :, token] - bound[0, head, :, index.owner[head, token]]
                self.assertLess(over.max().item(), 1e-4)


class SessionTest(unittest.TestCase):
    def test_retrieving_all_is_dense_attention(self):
        torch.manual_seed(2)
        model = llama.Llama(SHAPE).eval()
        for parameter in model.parameters():
            parameter.data *= 4
        ids = torch.randint(0, 48, (9300,)).tolist()
        made = session.Session(model, ids, end=49)
        questions = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
        everything = wave.Settings(retrieval_ratio=1.0)
        policy = session.WavePolicy(made, everything, made.tokens + 5)
        self.assertFalse(policy.dense)
        dense = made.answer(questions, 4)
        self.assertEqual(made.answer(questions, 4, policy), dense)
        whole = self.continue_alone(model, ids + questions[1], 4)
        self.assertEqual(dense[1], whole)

    @torch.inference_mode()
    def continue_alone(self, model, ids, count):
        """Greedy generation by running the whole sequence for every token."""
        written = []
        for _ in range(count):
            tokens = torch.tensor(ids + written)[None]
            hidden = model(tokens, torch.arange(tokens.shape[1])[None])
            written.append(model.logits(hidden[0, -1]).argmax().item())
        return written


if __name__ == "__main__":
    unittest.main()
