"""Each system of the laboratory against a plain loop over queries, heads and keys; needs PyTorch."""

import math
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

try:
    import torch
    from tools.lab import indexes, system as lab
    from tools.lab.systems import (full, graph_search, hnsw, infinigen, ivf, lserve, magicpig, quest,
                                   retrieval_attention, streaming, topk, twilight, vattention, wave)
    from tools.needle import wave as reference
except ImportError as error:
    print(f"skipped: needs PyTorch: {error}")
    sys.exit(77)

ROWS, HEADS, GROUP, WIDTH = 5, 2, 3, 16
TOKENS = 68 + 1024


def data(tokens=TOKENS):
    torch.manual_seed(3)
    keys = torch.randn(HEADS, tokens, WIDTH) + torch.randn(HEADS, 1, WIDTH)
    # Neighbours resemble each other, as real keys do.
    keys += 2 * torch.randn(HEADS, -(-tokens // 32), WIDTH).repeat_interleave(32, 1)[:, :tokens]
    values = torch.randn(HEADS, tokens, WIDTH)
    queries = torch.randn(ROWS, HEADS, GROUP, WIDTH) * 2
    own = torch.randn(HEADS, GROUP, 200, WIDTH) * 2
    return keys, values, queries, own


def step(queries, keys, sequential=True, predicted=None):
    behind = torch.arange(1, len(queries) + 1)
    return lab.Step(0, queries, lab.scores(queries, keys), behind, sequential, predicted)


def chosen(choice, row, head, member=0):
    exact = choice.exact[row, head]
    return set(exact[member if len(exact) > 1 else 0].nonzero()[:, 0].tolist())


STEADY = set(range(4)) | set(range(TOKENS - 64, TOKENS))


class SystemCase(unittest.TestCase):
    def setUp(self):
        self.keys, self.values, self.queries, self.own = data()
        self.budget = lab.Budget(0.1)  # 103 tokens

    def run_system(self, system, **more):
        index = system.build(0, self.keys, self.values, self.own)
        return index, system.choose(index, step(self.queries, self.keys, **more))

    def weights(self, row, head, scores):
        """Softmaxes of a group's scores [g][n], combined by their maximum."""
        tables = [torch.tensor(one).softmax(-1) for one in scores]
        return torch.stack(tables).amax(0).tolist()

    def best(self, weights, count):
        return set(sorted(range(len(weights)), key=lambda i: -weights[i])[:count])

    def dot(self, row, head, member, vector):
        return float(self.queries[row, head, member] @ vector) / math.sqrt(WIDTH)


class ExactTest(SystemCase):
    def test_full(self):
        _, choice = self.run_system(full.Full())
        self.assertTrue(bool(choice.exact.all()))
        self.assertEqual(choice.read["pages"].tolist(), [HEADS * TOKENS * 4 * WIDTH] * ROWS)

    def test_window_moves_with_the_row(self):
        _, choice = self.run_system(streaming.Streaming(self.budget))
        for row in range(ROWS):
            wanted = {t for t in range(TOKENS) if t < 4 or TOKENS + row + 1 - t <= 103}
            self.assertEqual(chosen(choice, row, 1), wanted)

    def test_top_k(self):
        _, choice = self.run_system(topk.TopK(self.budget))
        for row in range(ROWS):
            for head in range(HEADS):
                weights = self.weights(row, head, [
                    [self.dot(row, head, g, k) for k in self.keys[head]] for g in range(GROUP)])
                self.assertEqual(chosen(choice, row, head), STEADY | self.best(weights, 103))
        self.assertEqual(choice.read["pages"].tolist(), [HEADS * 103 * 4 * WIDTH] * ROWS)
        self.assertEqual(choice.read["index"].tolist(), [HEADS * TOKENS * 2 * WIDTH] * ROWS)

    def test_an_impossible_budget_is_refused(self):
        for bad in ({"factor": 0}, {"share": 0.0}, {"share": 1.5}, {"least": -1}):
            with self.assertRaisesRegex(ValueError, "needs a factor above 0"):
                lab.Budget(**bad)


class PagesTest(SystemCase):
    def bound(self, row, head, member, page):
        """The largest logit inside a page's extremes, element by element."""
        total = 0.0
        for i, q in enumerate(self.queries[row, head, member].tolist()):
            column = page[:, i].tolist()
            total += max(q * min(column), q * max(column))
        return total / math.sqrt(WIDTH)

    def bounds(self, row, head, size):
        pages = self.keys[head].split(size)
        return self.weights(row, head, [[self.bound(row, head, g, p) for p in pages]
                                        for g in range(GROUP)])

    def test_quest(self):
        _, choice = self.run_system(quest.Quest(self.budget))
        for row in (0, 4):
            for head in range(HEADS):
                best = self.best(self.bounds(row, head, 16), 7)
                wanted = {t for t in range(TOKENS) if t // 16 in best}
                self.assertEqual(chosen(choice, row, head), STEADY | wanted)

    def test_lserve_ranks_by_the_best_part_and_keeps_it_for_four_tokens(self):
        _, choice = self.run_system(lserve.LServe(self.budget))
        for row in (0, 3, 4):
            parts = self.bounds(row // 4 * 4, 0, 16)
            pages = [max(parts[i:i + 4]) for i in range(0, len(parts), 4)]
            wanted = {t for t in range(TOKENS) if t // 64 in self.best(pages, 2)}
            self.assertEqual(chosen(choice, row, 0), STEADY | wanted)

    def test_lserve_in_a_batch_keeps_what_a_step_chose(self):
        system = lserve.LServe(self.budget)
        index = system.build(0, self.keys, self.values, self.own)
        first = system.choose(index, step(self.queries, self.keys, False)).exact
        for call in range(1, 5):
            again = system.choose(index, step(-self.queries, self.keys, False)).exact
            self.assertEqual(torch.equal(first, again), call < 4)


class SamplingTest(SystemCase):
    def test_magicpig(self):
        system = magicpig.MagicPig(tables=20, bits=4, seed=5)
        (_, planes, mean, _, _), choice = self.run_system(system)
        for row, head, member in ((0, 0, 0), (4, 1, 2)):
            query = self.queries[row, head, member]
            wanted = set(STEADY)
            for token in range(TOKENS):
                key = self.keys[head, token] - mean[head, 0]
                signs = [(v @ planes > 0).view(20, 4) for v in (query, key)]
                if sum(bool((a == b).all()) for a, b in zip(*signs)) >= 2:
                    wanted.add(token)
            self.assertEqual(chosen(choice, row, head, member), wanted)
            token = min(wanted - STEADY)
            key = self.keys[head, token] - mean[head, 0]
            angle = math.acos(float(query @ key / query.norm() / key.norm()))
            one = (1 - angle / math.pi) ** 4
            chance = 1 - (1 - one) ** 20 - 20 * one * (1 - one) ** 19
            self.assertAlmostEqual(float(choice.log_weights[row, head, member, token]),
                                   -math.log(chance), places=3)
            self.assertEqual(float(choice.log_weights[row, head, member, 0]), 0.0)

    def test_vattention_draws_more_where_weights_differ_more(self):
        system = vattention.VAttention(self.budget, epsilon=0.05)
        _, choice = self.run_system(system)
        top = self.run_system(topk.TopK(self.budget))[1]
        self.assertTrue(bool((choice.exact | ~top.exact).all()))
        flat = step(self.queries * 0.01, self.keys)
        even = system.choose(self.keys.shape, flat)
        self.assertGreater(int(choice.exact.sum()), int(even.exact.sum()))
        # Weighted by their chance, those drawn stand for about all of the rest.
        drawn = even.exact & (even.log_weights[:, :, :1] > 0)
        stands_for = (drawn * even.log_weights[:, :, :1].exp()).sum(-1)
        rest = TOKENS - (even.exact & ~drawn).sum(-1)
        self.assertLess(float((stands_for.mean() / rest.float().mean() - 1).abs()), 0.3)


class RankedTest(SystemCase):
    def test_infinigen_with_all_dimensions_and_a_large_alpha_is_top_k(self):
        system = infinigen.InfiniGen(self.budget, kept=1.0, alpha=1e9)
        _, choice = self.run_system(system)
        self.assertTrue(torch.equal(choice.exact,
                                    self.run_system(topk.TopK(self.budget))[1].exact))

    def test_infinigen_fetches_what_lies_near_the_top_by_the_predicted_query(self):
        predicted = self.queries.flip(0)
        system = infinigen.InfiniGen(self.budget, kept=0.5, alpha=1.0)
        (_, turn, partial), choice = self.run_system(system, predicted=predicted)
        self.assertEqual(partial.shape[-1], 8)
        for row in (0, 2):
            logits = [[[float(predicted[row, h, g] @ turn[h] @ partial[h, t]) / 4
                        for t in range(TOKENS)] for g in range(GROUP)] for h in range(HEADS)]
            counts = [sum(x > max(one) - 1 for x in one) for head in logits for one in head]
            count = min(103, math.ceil(sum(counts) / len(counts)))
            for head in range(HEADS):
                best = self.best(self.weights(row, head, logits[head]), count)
                self.assertEqual(chosen(choice, row, head), STEADY | best)

    def test_ivf(self):
        system = ivf.Ivf(self.budget, probes=1.0)
        (_, centres, owner, _), choice = self.run_system(system)
        row, head = 1, 1
        lists = [max(float(self.queries[row, head, g] @ c) for g in range(GROUP))
                 for c in centres[head]]
        probed = self.best(lists, math.ceil(0.1 * len(lists)))
        inside = [t for t in range(TOKENS) if int(owner[head, t]) in probed]
        weights = self.weights(row, head, [
            [self.dot(row, head, g, self.keys[head, t]) for t in inside] for g in range(GROUP)])
        best = {inside[i] for i in self.best(weights, 103)}
        self.assertEqual(chosen(choice, row, head), STEADY | best)

    def test_twilight(self):
        system = twilight.Twilight(mass=0.7, proposed=1.0)
        (_, _, _, coarse), choice = self.run_system(system)
        row, head = 2, 0
        wanted = set(STEADY)
        for member in range(GROUP):
            weights = torch.tensor([self.dot(row, head, member, k) for k in coarse[head]]).softmax(0)
            total = 0.0
            for token in weights.argsort(descending=True).tolist():
                if total >= 0.7:
                    break
                wanted.add(token)
                total += float(weights[token])
        self.assertEqual(chosen(choice, row, head), wanted)


class GraphTest(SystemCase):
    def test_search_is_best_first_search(self):
        torch.manual_seed(4)
        keys, queries = self.keys[0, :300], self.queries[:, 0, 0]
        graph = torch.randint(0, 300, (300, 6))
        ids, scored = graph_search.search(keys, graph, torch.tensor([7, 9]), queries, 300)
        for row, query in enumerate(queries):
            # With room for all, what is found is what can be reached.
            reached, todo = {7, 9}, [7, 9]
            while todo:
                for other in graph[todo.pop()].tolist():
                    if other not in reached:
                        reached.add(other)
                        todo.append(other)
            found = [i for i in ids[row].tolist() if i >= 0]
            self.assertEqual(found, sorted(reached, key=lambda i: -float(query @ keys[i])))
            self.assertEqual(int(scored[row]), len(reached))

    def test_edges_are_the_best_of_each_node_once(self):
        graph = graph_search.from_edges(
            torch.tensor([0, 0, 0, 0, 2]), torch.tensor([1, 2, 1, 3, 0]),
            torch.tensor([0.5, 3.0, 1.0, 0.9, 1.0]), 4, 2)
        self.assertEqual(graph.tolist(), [[2, 1], [1, 1], [0, 2], [3, 3]])

    def recall(self, choice, count):
        logits = lab.scores(self.queries, self.keys)
        best = logits.topk(count, dim=-1).indices
        return float(choice.exact.expand_as(logits).gather(-1, best).float().mean())

    def test_the_graph_of_queries_finds_most_of_the_best_keys(self):
        _, choice = self.run_system(retrieval_attention.RetrievalAttention(50))
        self.assertGreater(self.recall(choice, 50), 0.8)

    @unittest.skipUnless(hnsw.available(), "needs hnswlib")
    def test_hnsw_finds_most_of_the_best_keys(self):
        _, choice = self.run_system(hnsw.Hnsw(50))
        self.assertGreater(self.recall(choice, 50), 0.8)


@unittest.skipUnless(indexes.available(), "needs faiss")
class IndexesTest(SystemCase):
    def test_each_index_is_searched_until_it_finds_the_best_keys(self):
        keys, sample = self.keys[0], self.own[0].flatten(0, 1)
        askers = {"queries": self.queries[:, 0].flatten(0, 1)}
        for name in indexes.INDEXES:
            found = indexes.measure(name, keys, sample, askers)["queries"]
            self.assertGreaterEqual(found["recall"], 0.9, name)
            self.assertGreaterEqual(found["scored"], 90, name)
        built = indexes.build_ivf(keys, sample)
        ids, scored = built.search(self.queries[:, 0, 0], built.efforts[-1])
        self.assertGreater(scored, TOKENS / 2)
        wanted = (self.queries[0, 0, 0] @ keys.T).topk(1).indices
        self.assertEqual(ids[0, 0], wanted[0])


class WaveTest(SystemCase):
    def zones(self, row, head, index, settings, retrieved, estimated):
        """Ranks clusters one by one; returns logits by member, and both zones."""
        scores, logits = [], []
        for g in range(GROUP):
            norm = float(self.queries[row, head, g].norm()) / math.sqrt(WIDTH)
            plain = [self.dot(row, head, g, c) if n else -math.inf
                     for c, n in zip(index.centroids[head], index.sizes[head].tolist())]
            logits.append(plain)
            scores.append([x + settings.radius * norm * r
                           for x, r in zip(plain, index.radii[head].tolist())])
        tables = torch.stack([torch.tensor(one).softmax(-1) for one in scores])
        ranking = (tables.sum(0) if settings.rank == "sum" else tables.amax(0)).tolist()
        order = sorted(range(len(ranking)), key=lambda i: -ranking[i])
        return logits, set(order[:retrieved]), set(order[retrieved:retrieved + estimated])

    def expected(self, row, head, member, index, logits, zone, others, rest=0):
        """The output by sums over tokens and clusters."""
        total, mixed = 0.0, torch.zeros(WIDTH)
        count = index.sizes.shape[1]
        for token in range(TOKENS):
            owner = int(index.owner[head, token])
            if owner == count or owner in zone:
                weight = math.exp(self.dot(row, head, member, self.keys[head, token]))
                total, mixed = total + weight, mixed + weight * self.values[head, token]
        for cluster in range(count):
            size = int(index.sizes[head, cluster])
            if not size or cluster in zone:
                continue
            weight = math.exp(logits[member][cluster])
            if cluster in others:
                mixed = mixed + weight * index.value_sums[head, cluster]
            elif rest:
                near = slice(cluster // rest * rest, cluster // rest * rest + rest)
                mean = index.value_sums[head, near].sum(0) / index.sizes[head, near].sum()
                mixed = mixed + weight * size * mean
            else:
                continue
            total += weight * size
        return mixed / total

    def check(self, settings, **options):
        system = wave.Wave("wave", settings, options=wave.Options(**options))
        index, choice = self.run_system(system)
        made = step(self.queries, self.keys)
        none = torch.full((ROWS, HEADS, GROUP, 1), -math.inf)
        out = lab.attend(made, choice, self.values, none, torch.zeros(HEADS, 1, WIDTH))
        retrieved, estimated = reference.budgets(index.sizes.shape[1], settings)
        for row, head in ((0, 0), (3, 1)):
            logits, zone, others = self.zones(row, head, index, settings, retrieved, estimated)
            for member in range(GROUP):
                torch.testing.assert_close(
                    out[row, head, member],
                    self.expected(row, head, member, index, logits, zone, others,
                                  options.get("rest", 0)), atol=2e-4, rtol=2e-4)
        return index, choice

    def test_paper_and_product(self):
        for settings in (wave.PAPER, wave.PRODUCT):
            small = reference.dataclasses.replace(settings, least_clusters=8)
            index, choice = self.check(small)
            self.assertEqual(index.sizes.shape[1], 64)
            scalars = 8 if settings.radius else 4
            self.assertEqual(choice.read["index"][0].item(), HEADS * 64 * (2 * WIDTH + scalars))

    def test_the_rest_by_neighbourhoods(self):
        small = reference.dataclasses.replace(wave.PRODUCT, least_clusters=8)
        _, choice = self.check(small, rest=16)
        self.assertEqual(choice.read["sums"][0].item(), HEADS * (15 + 4) * 2 * WIDTH)

    def test_eight_bits(self):
        x = torch.randn(7, 33)
        back = wave.few_bits(x, 8)
        self.assertLess(float((x - back).abs().max()), float(x.abs().max()) / 250)
        self.assertLessEqual(len(back[0].unique()), 255)
        self.check(reference.dataclasses.replace(wave.PRODUCT, least_clusters=8), index_bits=8)

    def zone(self, **options):
        system = wave.Wave("wave", wave.PRODUCT, lab.Budget(0.125), wave.Options(**options))
        index = system.build(0, self.keys, self.values, self.own)
        made = step(self.queries, self.keys)
        return (system, index, *system.zones(index, made))

    def test_budgets_that_move(self):
        _, index, _, zone, _ = self.zone(joint=True)
        self.assertEqual(zone.sum((1, 2)).tolist(), [HEADS * 8] * ROWS)
        self.assertTrue(bool((zone.sum(-1) >= 2).all()))
        _, index, _, zone, _ = self.zone(joint=True, page_budget=True)
        pages = (zone * (index.sizes / 4).ceil()).sum((1, 2))
        self.assertLessEqual(pages.max().item(), HEADS * 8 * 16 // 4)
        self.assertGreater(pages.min().item(), HEADS * 20)
        _, index, _, zone, _ = self.zone(page_budget=True)
        pages = (zone * (index.sizes / 4).ceil()).sum(-1)
        self.assertLessEqual(pages.max().item(), 8 * 16 // 4)
        self.assertGreater(pages.min().item(), 8)

    def test_the_zone_grows_until_the_unseen_mass_is_small(self):
        counts = []
        for unseen in (0.8, 0.3, 0.1):
            system, index, logits, zone, others = self.zone(unseen=unseen, cap=1000.0)
            self.assertFalse(bool((zone & others).any()))
            counts.append(int(zone.sum()))
            left = system.mass(index, logits, zone)
            self.assertLess(float(left.amin(2).max()), unseen + 1e-3)
        self.assertEqual(counts, sorted(counts))
        self.assertLess(counts[0], counts[2])

    def test_a_document_without_a_segment_is_refused(self):
        with self.assertRaisesRegex(ValueError, "needs at least 1092"):
            wave.segments(1091, 8192)
        self.assertEqual(wave.segments(68 + 8192 + 2048, 8192), [8192, 1024, 1024])
        self.assertEqual(wave.segments(68 + 8192 + 2048, 0), [10240])


if __name__ == "__main__":
    unittest.main()
