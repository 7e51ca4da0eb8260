"""Forms of stored keys and values against plain loops, and their studies at toy size; needs PyTorch."""

import json
import math
import pathlib
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

try:
    import torch
    from tools.lab import ablation, document, evaluate, format_jobs, formats, hard_keys, system
    from tools.lab.systems import full, wave
    from tools.needle import model as llama, wave as reference
except ImportError as error:
    print(f"skipped: needs PyTorch: {error}")
    sys.exit(77)

SHAPE = llama.Shape(vocab_size=50, hidden_size=32, num_hidden_layers=2, intermediate_size=32,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16)
TOKENS = 68 + 8 * 1024


class Exact(formats.Form):
    """Gives back what it was given."""

    def keys(self, x, balance=None):
        return x.float()

    def values(self, x):
        return x.float()


EXACT = Exact("exact", "bf16")


def tiny():
    torch.manual_seed(1)
    model = llama.Llama(SHAPE).eval()
    for parameter in model.parameters():
        parameter.data *= 4
    return model


class FormTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.x = torch.randn(2, 200, 16) * torch.linspace(0.1, 3, 200)[:, None]

    def by_token(self, vector, most, power):
        scale = max(map(abs, vector)) / most
        scale = 2.0 ** math.ceil(math.log2(scale)) if power else torch.tensor(scale).half().item()
        return [max(-most, min(most, round(x / scale))) * scale for x in vector]

    def test_integers_by_token_one_by_one(self):
        for form, most in ((formats.form_named("int8 by token"), 127), (formats.CHOSEN, 127),
                           (formats.form_named("int4 by token"), 7)):
            for found in (form.keys(self.x), form.values(self.x)):
                for head, token in ((0, 0), (1, 7), (1, 199)):
                    wanted = self.by_token(self.x[head, token].tolist(), most, form.power)
                    torch.testing.assert_close(found[head, token], torch.tensor(wanted))

    def test_a_power_of_two_is_exact_in_bf16_and_rounds_once(self):
        once = formats.CHOSEN.keys(self.x)
        self.assertTrue(torch.equal(once, once.bfloat16().float()))
        self.assertTrue(torch.equal(once, formats.CHOSEN.keys(once)))
        self.assertTrue(torch.equal(once, formats.BALANCED.keys(once, torch.ones(2, 16))))
        # By token: what else is in the call does not matter.
        self.assertTrue(torch.equal(once[:, 30:50], formats.CHOSEN.keys(self.x[:, 30:50])))
        other = formats.form_named("int8 by token").keys(self.x)
        self.assertFalse(torch.equal(other, other.bfloat16().float()))

    def test_groups_are_segments_and_blocks(self):
        self.assertEqual(formats.groups(130), [64, 64, 2])
        self.assertEqual(formats.groups(TOKENS + 1024 + 70), [4, 8192, 1024, 64, 64, 6])
        self.assertEqual(sum(formats.groups(131072)), 131072)

    def test_scales_of_groups(self):
        found = formats.form_named("e4m3, that, keys centred").keys(self.x)
        for begin, end in ((0, 64), (192, 200)):
            part = self.x[1, begin:end]
            mean = part.mean(0)
            scale = (part - mean).abs().max() / 448
            wanted = ((part - mean) / scale).to(torch.float8_e4m3fn).float() * scale + mean
            torch.testing.assert_close(found[1, begin:end], wanted)
        found = formats.form_named("int8 by channel and segment, keys centred").values(self.x)
        part = self.x[0, 64:128]
        scale = part.abs().amax(0) / 127
        torch.testing.assert_close(found[0, 64:128], (part / scale).round() * scale)

    def test_unscaled_e4m3_saturates(self):
        form = formats.form_named("e4m3, no scale")
        found = form.keys(torch.tensor([[[1e4, -1e4, 0.3, 1.0]]]))
        self.assertEqual(found.tolist(), [[[448.0, -448.0, 0.3125, 1.0]]])

    def test_turning_is_undone(self):
        back = formats._turn(formats._turn(self.x))
        torch.testing.assert_close(back, self.x)
        one = torch.zeros(16)
        one[3] = 1
        self.assertEqual({round(abs(v), 4) for v in formats._turn(one).tolist()}, {0.25})
        with self.assertRaisesRegex(ValueError, "needs a power of two"):
            formats._turn(torch.zeros(12))

    def test_balance_is_the_same_for_a_pair_and_follows_the_weights(self):
        torch.manual_seed(4)
        keys, queries, norm = torch.randn(32, 240), torch.randn(64, 240), torch.ones(240)
        keys[[5, 13]] *= 64  # the first head's sixth pair, and the queries that meet it
        queries[[5, 13, 21, 29]] /= 64
        bias = torch.zeros(32)
        bias[16 + 2] = 64 * 64 * 240 ** 0.5
        found = formats.balance_of(keys, queries, norm, 16, bias)
        self.assertTrue(torch.equal(found[:, :8], found[:, 8:]))
        self.assertEqual((found[0, 5], found[1, 2]), (64, 64))
        rest = torch.ones(2, 8, dtype=torch.bool)
        rest[0, 5] = rest[1, 2] = False
        self.assertTrue(bool((found[:, :8][rest] == 1).all()))

    def test_what_is_hard_for_integers_is_mended_by_the_balance(self):
        case = hard_keys.CASES[-1]
        hard_keys_before, hard_keys.SEGMENT = hard_keys.SEGMENT, 512
        try:
            plain, balanced, eight = (hard_keys.error(form, case, 64)["keys"] for form in (
                formats.CHOSEN, formats.BALANCED, formats.form_named("e4m3, no scale")))
        finally:
            hard_keys.SEGMENT = hard_keys_before
        self.assertGreater(plain, 0.3)
        self.assertLess(balanced, 0.05)
        self.assertLess(2 * balanced, eight)


class StoredTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = tiny()
        cls.ids = torch.randint(0, 48, (TOKENS + 41,))
        cls.document = document.Document(cls.model, cls.ids[:TOKENS].tolist())

    def follow(self, view):
        hidden, _ = view.follow(full.Full(), self.ids[TOKENS:TOKENS + 30])
        return hidden

    def test_a_twin_is_the_same_function(self):
        wanted = self.follow(self.document)
        for twin in formats.TWINS[2::3]:
            for form in (EXACT, formats.dataclasses.replace(EXACT, balanced=True)):
                view = self.document.stored(form, twin)
                torch.testing.assert_close(self.follow(view), wanted, atol=0.03, rtol=0.03)
                size = (view.keys[0].abs().amax() / self.document.keys[0].abs().amax()).item()
                self.assertTrue(size < 3 if form.balanced else size > 3, f"{twin.name}: {size}")

    def test_an_index_over_balanced_keys_is_that_of_easy_ones(self):
        balanced = formats.dataclasses.replace(EXACT, balanced=True)
        plain, hard = (self.document.stored(balanced, twin)
                       for twin in (formats.PLAIN, formats.TWINS[2]))
        for a, b in zip(plain.keys, hard.keys):
            torch.testing.assert_close(a, b)

    def test_rounding_when_made_and_when_read(self):
        ids = self.ids[:TOKENS].tolist()
        made = document.Document(formats.Stored(self.model, formats.CHOSEN), ids)
        read = self.document.stored(formats.CHOSEN)
        # The first layer sees the same; later ones see what rounding made of it.
        self.assertTrue(torch.equal(made.keys[0], read.keys[0]))
        self.assertFalse(torch.equal(made.keys[1], read.keys[1]))
        self.assertTrue(torch.equal(read.keys[1], formats.CHOSEN.keys(self.document.keys[1])))
        off = [(self.follow(view) - self.follow(self.document)).norm() for view in (made, read)]
        size = self.follow(self.document).norm()
        self.assertTrue(all(0 < x < 0.1 * size for x in off))

    def lab(self, folder):
        model = self.model

        class Source:
            def make(source, number, tokens, behind):
                return (self.ids[:tokens].tolist(), self.ids[tokens:tokens + behind + 1].tolist())
        return types.SimpleNamespace(
            model=lambda _: model, source=lambda _: Source(), device="cpu", left=lambda: 1.0,
            arguments=types.SimpleNamespace(seed=1)), evaluate.Results(folder / "out.jsonl")

    def test_studies_measure_all_they_promise_and_go_on(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            lab, results = self.lab(folder)
            studied = pathlib.Path("tiny")
            job = format_jobs.Formats(studied, 0, TOKENS, 8, True)
            job._what, job._keys = job._what[9::50], job._keys[9::50]
            job.keys = job._keys
            self.assertEqual(job.run(lab, results), 0)
            self.assertTrue(all(results.has(key) for key in job.keys))
            before = (folder / "out.jsonl").read_text(encoding="utf-8")
            self.assertEqual(job.run(lab, evaluate.Results(folder / "out.jsonl")), 0)
            self.assertEqual((folder / "out.jsonl").read_text(encoding="utf-8"), before)

    def test_parts_are_compared_at_equal_bytes(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            lab, results = self.lab(folder)
            job = ablation.Ablation(pathlib.Path("tiny"), 0, TOKENS, 8)
            names = ("ours", "radius 0.25 + 8-bit index", "8-bit KV: lean, packed pages of 8")
            job._rows = [row for row in job._rows if row.name in names and row.times == 1.0]
            self.assertEqual(job.run(lab, results), 0)
            lines = [json.loads(line) for line in
                     (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()]
            read = {line["key"][5]: sum(line["read"].values()) for line in lines}
            self.assertEqual(set(read), set(names))
            for name, count in read.items():
                self.assertLess(abs(count / read["ours"] - 1), 0.1, name)
            self.assertTrue(all(0.3 < line["fill"] <= 1 for line in lines))


class EightBitWaveTest(unittest.TestCase):
    """Options of the wave index that come with eight bits, against loops."""

    def setUp(self):
        torch.manual_seed(5)
        self.keys, self.values = torch.randn(2, 2, 68 + 1024, 16)
        self.queries = torch.randn(3, 2, 3, 16)
        behind = torch.zeros(3)
        self.step = system.Step(0, self.queries, system.scores(self.queries, self.keys), behind,
                                False)

    def run_wave(self, settings=wave.PRODUCT, **options):
        small = reference.dataclasses.replace(settings, least_clusters=8)
        made = wave.Wave("w", small, options=wave.Options(**options))
        index = made.build(0, self.keys, self.values, None)
        return made, index, made.choose(index, self.step)

    def test_bytes_of_pages(self):
        for options, a_page in (({"kv_bits": 8, "page_tokens": 8}, 2 * (8 * 16 + 16)),
                                ({"kv_bits": 8, "page_tokens": 4}, 2 * (4 * 16 + 16)),
                                ({"page_tokens": 8}, 2 * 8 * 16 * 2)):
            made, index, choice = self.run_wave(**options)
            _, zone, _ = made.zones(index, self.step)
            for row in range(3):
                count = sum(-(-int(index.sizes[h, c]) // options["page_tokens"])
                            for h, c in zone[row].nonzero().tolist())
                self.assertEqual(choice.read["pages"][row].item(), count * a_page)

    def test_packed_pages(self):
        made, index, choice = self.run_wave(packed=True, page_tokens=8)
        _, zone, _ = made.zones(index, self.step)
        for row in range(3):
            touched = set()
            for head in range(2):
                at = 0
                for cluster, size in enumerate(map(int, index.sizes[head].tolist())):
                    if zone[row, head, cluster]:
                        touched |= {(head, t // 8) for t in range(at, at + size)}
                    at += size
            self.assertEqual(choice.read["pages"][row].item(), len(touched) * 2 * 8 * 16 * 2)

    def test_high_halves(self):
        made, index, choice = self.run_wave(high_halves=0.5, page_budget=True, kv_bits=8)
        estimate = choice.estimates[0]
        seen = estimate.logits[1, 0, 2] > -math.inf
        self.assertFalse(bool((seen & choice.exact[1, 0, 0]).any()))
        self.assertGreater(int(seen.sum()), 16)
        token = int(seen.nonzero()[0])
        vector = self.keys[0, token]
        scale = float(vector.abs().max()) / 127
        rounded = [(round(float(x) / scale) // 16 * 16 + 7.5) * scale for x in vector]
        wanted = sum(a * float(b) for a, b in zip(rounded, self.queries[1, 0, 2])) / 4
        self.assertAlmostEqual(float(estimate.logits[1, 0, 2, token]), wanted, 4)
        owners = {int(index.owner[0, t]) for t in seen.nonzero()[:, 0].tolist()}
        self.assertNotIn(index.sizes.shape[1], owners)
        estimated = estimate_clusters(choice.estimates[1].logits[1, 0, 2])
        self.assertFalse(owners & estimated)

    def test_sampled_starts_are_keys_far_apart(self):
        x = torch.randn(2, 1024, 16)
        x[:, 100:110] += 30
        found = reference._sampled(x, 64)
        self.assertEqual(found.shape, (2, 64, 16))
        far = (found.norm(dim=-1) > 60).sum(1)
        self.assertTrue(bool((far >= 1).all()))
        for vector in found[0]:
            self.assertTrue(bool((x[0] == vector).all(-1).any()))


def estimate_clusters(logits):
    return {i for i, value in enumerate(logits.tolist()) if value > -math.inf}


if __name__ == "__main__":
    unittest.main()
