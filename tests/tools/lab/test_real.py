"""A checkpoint of others, codes of tokens and pages, and their report; needs PyTorch."""

import json
import math
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

try:
    import torch
    from tools.lab import checkpoint, real_report, real_text, system as lab
    from tools.lab.systems.coded import Coded, Codes
    from tools.lab.systems.wave import Options
    from tools.needle import model as llama
    from safetensors.torch import save_file
except ImportError as error:
    print(f"skipped: needs PyTorch: {error}")
    sys.exit(77)

CONFIG = {"architectures": ["Qwen2ForCausalLM"], "vocab_size": 40, "hidden_size": 24,
          "num_hidden_layers": 2, "intermediate_size": 32, "num_attention_heads": 3,
          "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
          "rope_theta": 10000.0, "tie_word_embeddings": True}
HEADS, GROUP, WIDTH, TOKENS = 2, 3, 16, 68 + 1024


def folder_of(case, config, scale=0.3):
    """Writes a folder with random weights and returns it."""
    folder = tempfile.TemporaryDirectory()
    case.addCleanup(folder.cleanup)
    path = pathlib.Path(folder.name)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(5)
    names = checkpoint.Checkpoint(config).state_dict()
    save_file({name: torch.randn(tensor.shape) * scale for name, tensor in names.items()},
              path / "model.safetensors")
    return path


class CheckpointTest(unittest.TestCase):
    def logits(self, model, ids):
        with torch.inference_mode():
            return model.logits(model(ids, torch.arange(ids.shape[1])[None]))

    def test_biases_change_what_qwen2_says_and_are_read(self):
        path = folder_of(self, CONFIG)
        model = checkpoint.load(path, dtype=torch.float32)
        ids = torch.arange(12)[None]
        before = self.logits(model, ids)
        with torch.no_grad():
            model.model.layers[0].self_attn.v_proj.bias += 1
        self.assertGreater((self.logits(model, ids) - before).abs().max().item(), 1e-3)

    def test_without_what_families_add_it_is_the_laboratorys_own_model(self):
        config = {**CONFIG, "architectures": ["LlamaForCausalLM"], "head_dim": 8}
        path = folder_of(self, config)
        model = checkpoint.load(path, dtype=torch.float32)
        own = llama.Llama(model.shape)
        own.load_state_dict(model.state_dict())
        ids = torch.arange(20)[None]
        torch.testing.assert_close(self.logits(model, ids), self.logits(own.eval(), ids))

    def test_yarn_leaves_fast_channels_and_stretches_slow_ones(self):
        config = checkpoint.with_yarn({**CONFIG, "max_position_embeddings": 32768}, "yarn:4")
        self.assertEqual(config["max_position_embeddings"], 131072)
        rope, plain = checkpoint.Rope(config, 64), checkpoint.Rope(CONFIG, 64)
        self.assertAlmostEqual(rope.factor, 0.1 * math.log(4) + 1)
        ratio = plain.frequencies / rope.frequencies
        self.assertAlmostEqual(ratio[0].item(), 1.0)
        self.assertAlmostEqual(ratio[-1].item(), 4.0)
        self.assertTrue((ratio.diff() >= -1e-9).all())

    def test_what_is_not_known_is_refused(self):
        with self.assertRaisesRegex(ValueError, "MistralForCausalLM"):
            checkpoint.Checkpoint({**CONFIG, "architectures": ["MistralForCausalLM"]})
        with self.assertRaisesRegex(ValueError, "use_sliding_window"):
            checkpoint.Checkpoint({**CONFIG, "use_sliding_window": True})
        with self.assertRaisesRegex(ValueError, "longrope"):
            checkpoint.Rope({**CONFIG, "rope_scaling": {"rope_type": "longrope"}}, 8)
        with self.assertRaisesRegex(ValueError, "yarn:FACTOR"):
            checkpoint.with_yarn(CONFIG, "linear:4")


class CodedTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.keys = torch.randn(HEADS, TOKENS, WIDTH)
        self.keys += 2 * torch.randn(HEADS, -(-TOKENS // 32), WIDTH).repeat_interleave(
            32, 1)[:, :TOKENS]
        self.values = torch.randn(HEADS, TOKENS, WIDTH)
        self.queries = torch.randn(4, HEADS, GROUP, WIDTH)
        self.step = lab.Step(0, self.queries, lab.scores(self.queries, self.keys),
                             torch.arange(4), True)

    def run_system(self, **codes):
        system = Coded("coded", real_text.INT8, Codes(**codes), Options(index_bits=8))
        index = system.build(0, self.keys, self.values, None)
        return index, system.choose(index, self.step)

    def test_every_page_chosen_is_full_attention(self):
        own = torch.full((4, HEADS, GROUP, 1), -math.inf)
        full = lab.attend(self.step, lab.Choice(torch.ones(4, HEADS, 1, TOKENS, dtype=torch.bool),
                                                {}), self.values, own, self.values[:, :1])
        for unit in ("token", "page"):
            _, choice = self.run_system(unit=unit, bits=2, candidates=1.0, least_pages=TOKENS)
            self.assertTrue(choice.exact.all())
            found = lab.attend(self.step, choice, self.values, own, self.values[:, :1])
            torch.testing.assert_close(found, full)

    def test_more_bits_guess_logits_better_and_without_bias(self):
        errors = []
        for bits in (1, 2, 3):
            system = Coded("coded", real_text.INT8, Codes(bits=bits), Options())
            index = system.build(0, self.keys, self.values, None)
            logits = torch.einsum("bhgd,hcd->bhgc", self.queries, index.centroids) * WIDTH ** -0.5
            real = index.owner < index.sizes.shape[1]
            error = (system._guessed(index, self.step, logits) - self.step.logits)
            error = error[:, real[:, None].expand(-1, GROUP, -1)]
            errors.append(error.std().item())
            self.assertLess(abs(error.mean().item()), 0.1 * errors[-1])
        self.assertLess(errors[1], 0.7 * errors[0])
        self.assertLess(errors[2], 0.7 * errors[1])

    def test_the_best_pages_are_chosen_and_no_more(self):
        index, choice = self.run_system(bits=3, candidates=1.0, pages=0.1, least_pages=8)
        real = index.owner[0] < index.sizes.shape[1]
        weights = self.step.logits.masked_fill(~real, -math.inf).softmax(-1).amax(2)
        taken = (weights * choice.exact[:, :, 0]).sum(-1) / weights.sum(-1)
        pages = round(0.1 * real.sum().item() / 4)
        self.assertLessEqual(choice.exact[0, 0, 0][real].sum().item(), pages * 4)
        best = torch.stack([weights[..., index.page[h] == p].sum(-1)[:, h] for h in range(HEADS)
                            for p in range(index.pages)], -1)
        limit = best.view(4, HEADS, -1).topk(pages, -1).values.sum(-1) / weights.sum(-1)
        self.assertTrue((taken > 0.9 * limit).all())


class ReportTest(unittest.TestCase):
    def test_documents_of_a_kind_are_averaged(self):
        sums = {"tokens": 10, "loss_full": 10.0, "loss": 10.0, "divergence": 0.1, "agreed": 9}
        lines = [{"key": ["real", "m", 100, 512, name, 0, "paper"],
                  "read": {"index": 1e6, "sums": 0, "pages": 2e6},
                  "bins": [{**sums, "change": change}]}
                 for name, change in (("code_a", 1.0), ("code_b", 3.0), ("prose_a", 4.0))]
        table = real_report.block(lines, "real", ["paper"])
        self.assertIn("(2 of code, 1 of prose)", table)
        self.assertIn("1.000 / 0.200 ± 0.100 / 90.0 | 1.000 / 0.400 / 90.0", table)
        self.assertIn("| paper | 1.0 | 0.0 | 2.0 | 3.0 |", table)


if __name__ == "__main__":
    unittest.main()
