"""Rules of sparse prefill against plain loops, and attention by them; needs PyTorch."""

import contextlib
import dataclasses
import io
import math
import os
import pathlib
import sys
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

try:
    import torch
    import torch.nn.functional as F
    from tools.lab import (block_choice, block_sparse, indexed_tails, prefill_answers, prefill_tasks,
                           rival_choice, sparse_prefill)
    from tools.lab.block_choice import BLOCK, Choice, Units
    from tools.needle import model as llama
except ImportError as error:
    print(f"skipped: needs PyTorch: {error}")
    sys.exit(77)

HEADS, KV_HEADS, WIDTH, TOKENS, DENSE = 4, 2, 16, 1100, 200


def data(tokens=TOKENS, spread=1.0):
    """Queries, keys and values [h, n, d] whose weight lies in few blocks."""
    torch.manual_seed(7)
    blocks = -(-tokens // 32)
    k = torch.randn(KV_HEADS, blocks, WIDTH).repeat_interleave(32, 1)[:, :tokens] * 1.5
    k = k + torch.randn(KV_HEADS, tokens, WIDTH) * 0.3
    # A row looks for the keys of some place before it.
    towards = k[:, (torch.arange(tokens) * 7919) % (torch.arange(tokens) + 1)]
    q = towards.repeat_interleave(HEADS // KV_HEADS, 0) + spread * torch.randn(HEADS, tokens, WIDTH)
    return q, k, torch.randn(KV_HEADS, tokens, WIDTH)


def plain_weights(choice, q, k, begin):
    """The estimate [h][b] of one unit, pair by pair."""
    unit, scale, rows = choice.unit, WIDTH ** -0.5, range(begin, begin + choice.unit)
    stop, blocks = begin + unit, -(-(begin + unit) // BLOCK)
    found = torch.zeros(HEADS, blocks, dtype=torch.float64)
    for head in range(HEADS):
        query, key = q[head].double(), k[head // (HEADS // KV_HEADS)].double()
        if choice.estimate == "pooled":
            means = torch.stack([key[b * BLOCK:min(stop, (b + 1) * BLOCK)].mean(0)
                                 for b in range(blocks)])
            found[head] = (means @ query[begin:stop].mean(0) * scale).softmax(0)
        elif choice.estimate == "true":
            for row in rows:
                weight = (key[:row + 1] @ query[row] * scale).softmax(0)
                found[head] += F.pad(weight, (0, blocks * BLOCK - row - 1)).view(
                    blocks, BLOCK).sum(1)
        else:
            stride = choice.stride
            for first in range(begin, stop, stride):
                last = first + stride  # groups of keys that end at or before the group's last row
                sums = torch.stack([
                    sum(query[first + stride - 1 - i] @ key[at + i] for i in range(stride))
                    for at in range(0, last - stride + 1, stride)]) * scale / stride
                for at, weight in enumerate(sums.softmax(0)):
                    found[head, at * stride // BLOCK] += weight
    return found


def plain_attention(keep_of, q, k, v):
    """Attention of each row to keys [n] bool that keep_of(head, row) gives and that are not ahead."""
    out = torch.empty_like(q)
    for head in range(HEADS):
        keys, values = (x[head // (HEADS // KV_HEADS)] for x in (k, v))
        for row in range(q.shape[1]):
            seen = keep_of(head, row) & (torch.arange(q.shape[1]) <= row)
            weight = (keys[seen] @ q[head, row] / math.sqrt(WIDTH)).softmax(0)
            out[head, row] = weight @ values[seen]
    return out


class WeightsTest(unittest.TestCase):
    def test_estimates_of_many_units_at_once_are_those_of_each(self):
        q, k, _ = data(700)
        for choice in (Choice(dense=DENSE), Choice(stride=8, unit=128, dense=DENSE),
                       Choice("pooled", dense=DENSE), Choice("true", dense=DENSE)):
            units = Units.of(choice, 700)
            found = block_choice.weights(choice, q[:, units.first:units.end],
                                         k[:, :units.end], units)
            for number in (0, units.count // 2, units.count - 1):
                begin = units.first + number * units.rows
                wanted = plain_weights(choice, q, k, begin)
                blocks = wanted.shape[1]
                torch.testing.assert_close(found[:, number, :blocks].double(), wanted, rtol=1e-4,
                                           atol=1e-5, msg=choice.name())
                self.assertEqual(found[:, number, blocks:].abs().sum().item(), 0)

    def test_what_is_chosen_holds_the_threshold_and_not_a_block_more(self):
        q, k, _ = data()
        choice = Choice(threshold=0.6, dense=DENSE)
        units = Units.of(choice, TOKENS)
        mass = block_choice.weights(choice, q[:, units.first:units.end], k[:, :units.end], units)
        keep = block_choice.chosen(choice, mass, units)
        least, seen = block_choice.floor(units, mass.shape[-1], "cpu")
        self.assertTrue(keep[:, least].all())
        self.assertFalse(keep[:, ~seen].any())
        held = (mass * keep).sum(-1)
        self.assertTrue((held >= 0.6 * mass.sum(-1) - 1e-4).all())
        extra = keep & ~least
        self.assertTrue(extra.any())
        smallest = mass.masked_fill(~extra, math.inf).amin(-1)
        fewer = (held - smallest)[extra.any(-1)]
        self.assertTrue((fewer < 0.6 * mass.sum(-1)[extra.any(-1)] + 1e-4).all())


class RivalTest(unittest.TestCase):
    def test_columns_and_diagonals_are_those_of_the_last_rows(self):
        q, k, _ = data(1500)
        choice = Choice("vertical-slash", 0.1, dense=DENSE)
        weight = torch.zeros(HEADS, 64, 1500)
        for head in range(HEADS):
            for i, row in enumerate(range(1436, 1500)):
                weight[head, i, :row + 1] = (k[head // 2, :row + 1] @ q[head, row]
                                             * WIDTH ** -0.5).softmax(0)
        torch.testing.assert_close(rival_choice.last_rows(q, k, 64), weight, rtol=1e-4, atol=1e-6)
        along = torch.zeros(HEADS, 1500)
        for i, row in enumerate(range(1436, 1500)):
            for key in range(row + 1):
                along[:, row - key] += weight[:, i, key]
        torch.testing.assert_close(rival_choice.diagonals(weight), along, rtol=1e-4, atol=1e-5)
        columns = weight.sum(1)
        columns[:, :30] = along[:, :100] = math.inf
        columns, along = (rival_choice._heaviest(x, count) for x, count in
                          ((columns, 30), (along, 120)))
        units = Units.of(choice, 1500)
        keep = rival_choice.VerticalSlash(choice, q, k).keep(units)
        for number in (0, 9, units.count - 1):
            begin = units.first + 64 * number
            for key in range(0, begin + 64):
                floor = key < 128 or key >= (begin - 128) // 128 * 128
                near = along[:, max(0, begin - key):begin + 64 - key].any(1)
                wanted = near | columns[:, key] | floor
                self.assertTrue((keep[:, number, key] == wanted).all(), (number, key))
            self.assertFalse(keep[:, number, begin + 64:].any())

    def test_flexprefill_takes_pairs_where_pooled_keys_tell_and_lines_elsewhere(self):
        torch.manual_seed(3)
        n = 4000
        k = torch.randn(1, 32, WIDTH).repeat_interleave(128, 1)[:, :n] * 2
        q = torch.cat([k[:, 1000:1001].expand(1, n, WIDTH), 4 * torch.randn(1, n, WIDTH)])
        choice = Choice("flexprefill", 0.5, unit=128, dense=DENSE)
        rule = rival_choice.FlexPrefill(choice, q, k)
        self.assertEqual(rule.aware.tolist(), [True, False])
        units = Units.of(choice, n)
        keep = rule.keep(units)
        least, seen = block_choice.floor(units, keep.shape[-1], "cpu")
        self.assertTrue(keep[:, least].all())
        self.assertFalse(keep[:, ~seen].any())
        # Of the first head what its map holds by pairs; of the other blocks of lines alone.
        pooled = block_choice.weights(Choice("pooled", unit=128, dense=DENSE),
                                      q[:, units.first:units.end], k[:, :units.end], units)[0]
        self.assertGreater((pooled * keep[0]).sum().item(), 0.5 * units.count)
        lines = keep[1] & ~least
        columns = [b for b in range(keep.shape[-1]) if lines[b + 4:, b].all()]
        self.assertGreaterEqual(len(columns), 1)

    def test_rows_that_look_a_thousand_tokens_back_have_that_diagonal(self):
        torch.manual_seed(9)
        n, back = 4100, 1000
        k = 8 * F.normalize(torch.randn(1, n, WIDTH), dim=-1)
        q = k.roll(back, 1)  # a row's query is the key so far before
        for rule, unit in ((rival_choice.FlexPrefill, 128), (rival_choice.VerticalSlash, 64)):
            choice = Choice("", 0.05, unit=unit, dense=1300)
            units = Units.of(choice, n)
            keep = rule(choice, q, k).keep(units)[0]
            begins = units.begins("cpu")
            for row in (0, unit // 2):  # a diagonal of a block is the block's first rows'
                at = (begins + row - back) // rule.keys_a_group
                if rule.keys_a_group == BLOCK:
                    at = begins // BLOCK - back // BLOCK
                self.assertTrue(keep[torch.arange(units.count), at].all(), rule.__name__)
            self.assertLess(keep[-1].float().mean().item(), 0.9)

    def test_equal_distributions_have_no_distance_and_parted_ones_the_most(self):
        p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
        q = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
        found = rival_choice.distance_of(p, q)
        self.assertAlmostEqual(found[0].item(), 0)
        self.assertAlmostEqual(found[1].item(), math.log(2) ** 0.5, places=5)


RULES = (("antidiagonal", 64), ("pooled", 64), ("flexprefill", 128), ("vertical-slash", 64),
         ("all", 64))


class AttentionTest(unittest.TestCase):
    def test_rows_attend_to_what_was_chosen(self):
        q, k, v = data()
        for estimate, unit in RULES:
            choice = Choice(estimate, 0.3, unit=unit, dense=DENSE)
            units = Units.of(choice, TOKENS)
            rule = block_sparse.RULES.get(estimate, block_choice.ByUnit)(choice, q, k)
            keep = rule.keep(units).repeat_interleave(rule.keys_a_group, -1)
            keep = F.pad(keep, (0, max(0, TOKENS - keep.shape[-1])))[..., :TOKENS]
            everything = torch.ones(TOKENS, dtype=torch.bool)

            def keep_of(head, row):
                if not units.first <= row < units.end:
                    return everything
                return keep[head, (row - units.first) // unit]
            counts = block_sparse.Counts()
            found = block_sparse.attention(choice, counts, q[None], k[None], v[None])[0]
            torch.testing.assert_close(found, plain_attention(keep_of, q, k, v), rtol=1e-4,
                                       atol=1e-5, msg=estimate)
            # FlexPrefill takes 1,024 tokens at least, which is all here.
            self.assertEqual(counts.attended == counts.seen,
                             estimate in ("all", "flexprefill"), estimate)
            self.assertLessEqual(counts.attended, counts.seen)

    def test_it_does_not_matter_how_many_units_choose_at_once(self):
        q, k, v = data()
        before = dict(block_sparse.ELEMENTS)
        self.addCleanup(block_sparse.ELEMENTS.update, before)
        for estimate, unit in RULES:
            choice, found = Choice(estimate, 0.3, unit=unit, dense=DENSE), []
            for elements in (2 ** 30, 1):
                block_sparse.ELEMENTS["cpu"] = elements
                counts = block_sparse.Counts()
                out = block_sparse.attention(choice, counts, q[None], k[None], v[None])
                found.append((counts.attended, counts.seen, out))
            self.assertEqual(found[0][:2], found[1][:2], estimate)
            torch.testing.assert_close(found[0][2], found[1][2], msg=estimate)

    def test_a_prompt_without_units_is_exact(self):
        q, k, v = data(300)
        found = block_sparse.attention(Choice(dense=4096), block_sparse.Counts(), q[None], k[None],
                                       v[None])
        torch.testing.assert_close(found, F.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, enable_gqa=True))

    def test_the_kernel_and_the_mask_do_what_loops_do(self):
        try:
            from tools.lab import block_kernel
        except ImportError:
            block_kernel = None  # without Triton the mask alone
        q, k, v = data(390)
        torch.manual_seed(5)
        for unit, group in ((64, 128), (128, 128), (64, 1)):
            keep = torch.rand(HEADS, -(-(390 - 68) // unit), -(-390 // group)) < 0.4
            keep[..., 0] = True
            wanted = torch.zeros_like(q)
            block_sparse._one_by_one(keep, group, q, k, v, wanted, 68, unit)
            ways = [block_sparse._masked] + ([block_kernel.attend] if block_kernel else [])
            for way in ways:
                found = torch.zeros_like(q)
                way(keep, group, q, k, v, found, 68, unit)
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


class AnswersTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(2)
        shape = llama.Shape(vocab_size=50, hidden_size=32, num_hidden_layers=3, intermediate_size=48,
                            num_attention_heads=4, num_key_value_heads=2, head_dim=16)
        self.model = llama.Llama(shape).eval()
        for parameter in self.model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.3)
        self.models = types.SimpleNamespace(of=lambda _: (self.model, "m"), dtype=torch.float32,
                                            logits=self.model.logits)
        self.ids = torch.randint(0, 50, (500,))

    def greedy(self, count):
        ids = self.ids
        for _ in range(count):
            hidden = self.model(ids[None], torch.arange(len(ids))[None])[0, -1]
            ids = torch.cat([ids, self.model.logits(hidden).argmax()[None]])
        return ids[len(self.ids):].tolist()

    def test_answers_are_those_of_the_whole_text_read_again(self):
        rules = [None, Choice("all", dense=DENSE), Choice(threshold=0.01, dense=DENSE)]
        with torch.inference_mode():
            wanted = self.greedy(6)
        made = prefill_answers.Prefilled(self.models, self.ids, rules, 8)
        found = made.answers(6, end=-1)
        self.assertEqual(found[0], wanted)
        self.assertEqual(found[1], wanted)
        self.assertGreater(made.counts[2].seen, made.counts[2].attended)
        stopped = made.answers(6, end=wanted[3])
        self.assertEqual(stopped[0], wanted[:wanted.index(wanted[3])])

    def test_surprise_is_that_of_tokens_behind_the_lead(self):
        given = [3, 8, 1, 40]
        ids = torch.cat([self.ids, torch.tensor(given)])
        with torch.inference_mode():
            logits = self.model.logits(self.model(ids[None], torch.arange(len(ids))[None])[0])
        wanted = -sum(logits[len(self.ids) - 1 + i].log_softmax(-1)[given[i]] for i in (1, 2, 3))
        made = prefill_answers.Prefilled(self.models, self.ids, [None], 8)
        self.assertAlmostEqual(made.surprise(given, 1)[0], wanted.item(), places=3)


class ReportTest(unittest.TestCase):
    def test_rules_are_laid_beside_each_other_by_kind_of_text(self):
        sums = {"tokens": 10, "loss_full": 10.0, "loss": 10.1, "change": 1.0, "divergence": 0.1,
                "agreed": 9}
        lines = [{"key": ["sparse prefill", "m", 100, name, 0, dataclasses.asdict(Choice())],
                  "sums": sums, "attended": 1, "seen": 4} for name in ("code_a", "prose_a")]
        table = sparse_prefill.report(lines)
        self.assertIn("Model m, code:", table)
        self.assertEqual(table.count("| 25.0 | +1.01 | 0.100 | 90.0 |"), 2)

    def test_answers_are_compared_with_those_of_exact_prefill(self):
        def line(rule, number, right):
            return {"key": ["prefill task", "m", "ruler", 100, "niah_single_1", number, 1, rule],
                    "right": right, "surprise": 1.0, "attended": 1, "seen": 2}
        lines = [line("exact", n, 1.0) for n in (0, 1)] + [line("rule", 0, 1.0),
                                                            line("rule", 1, 0.5)]
        self.assertIn("| 100 | needles | rule | 50.0 | 75.0 | -25.0 | 1 / 0 | +0.000 | 2 |",
                      prefill_tasks.report(lines))

    def test_tails_are_added_up(self):
        part = {"tokens": 10, "loss_full": 10.0, "loss": 10.0, "change": 1.0, "divergence": 0.1,
                "agreed": 9}
        lines = [{"key": ["indexed tail", "m", 100, 256, name, 0, "index"], "bins": [part] * 4,
                  "attended": share, "read_a_step": 2 * share}
                 for name, share in (("code_a", 0.1), ("prose_a", 0.2))]
        self.assertIn("| 100 | both | index | 15.0 | 30.0 | +0.00 ± 0.00 | +0.00 ± 0.00 | 0.100 | 90.0 | "
                      "2 / 2 |", indexed_tails.report(lines))

    def test_without_a_model_it_is_told_what_is_needed(self):
        for program in (sparse_prefill, indexed_tails, prefill_tasks):
            before, sys.argv = sys.argv, ["program"]
            try:
                with contextlib.redirect_stderr(io.StringIO()) as told, self.assertRaises(SystemExit):
                    program.main()
            finally:
                sys.argv = before
            self.assertIn("are needed, or --report", told.getvalue())


if __name__ == "__main__":
    unittest.main()
