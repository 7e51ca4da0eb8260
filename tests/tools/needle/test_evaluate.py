"""Scoring, reports, and the client against a server in this process."""

import concurrent.futures
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tools.needle import evaluate, report, tasks  # noqa: E402


def question(task, *answers):
    return tasks.Question(task, "?", answers, 0)


class ScoringTest(unittest.TestCase):
    def test_order_counts_only_where_it_means_something(self):
        for task, right in ((tasks.MULTI_VALUE, True), (tasks.COMMON_WORDS, True),
                            (tasks.MULTI_QUERY, False), (tasks.FREQUENT_WORDS, False)):
            self.assertEqual(evaluate.is_right(question(task, "a", "b"), " b, a"), right, task)

    def test_answers_must_be_whole(self):
        asked = question(tasks.MULTI_VALUE, "12", "34")
        self.assertTrue(evaluate.is_right(asked, " 12, 34"))
        for text in ("", " 12", " 12, 34, 56", " 12, 12", " 12 34", " 012, 34"):
            self.assertFalse(evaluate.is_right(asked, text), text)

    def test_word_tasks_share_documents(self):
        self.assertEqual(evaluate.task_groups(["single", "common_words", "frequent_words"]),
                         [["single"], ["common_words", "frequent_words"]])
        self.assertEqual(evaluate.task_groups(["frequent_words"]), [["frequent_words"]])


class ReportTest(unittest.TestCase):
    def test_only_the_marked_block_changes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.md"
            path.write_text("before\n<!-- x: begin -->\nold\n<!-- x: end -->\nafter\n")
            report.replace_block(path, "x", "new")
            self.assertEqual(path.read_text(),
                             "before\n<!-- x: begin -->\nnew\n<!-- x: end -->\nafter\n")
            with self.assertRaisesRegex(ValueError, "needs the lines"):
                report.replace_block(path, "y", "new")

    def test_shares_and_means(self):
        results = report.Results([
            {"policy": "full", "task": "single", "length": 4096, "right": 50, "questions": 100},
            {"policy": "full", "task": "multi_key", "length": 4096, "right": 100,
             "questions": 100},
            {"policy": "full", "task": "multi_key", "length": 4096, "right": 0,
             "questions": 100, "needles": 9}])
        self.assertEqual(results.share("full", "multi_key", 4096), 100)
        self.assertEqual(results.mean("full", 4096), 75)
        self.assertIn("| single | 100 | 50.0 |", results.by_task("full"))

    def test_few_questions_have_an_interval_beside_them(self):
        # Wilson's: 8 of 10 are (0.8 + 0.19207 +- 0.28907) / 1.38415.
        low, high = report.interval(8, 10)
        self.assertAlmostEqual(low, 0.4902, places=4)
        self.assertAlmostEqual(high, 0.9433, places=4)
        self.assertEqual(report.interval(0, 5)[0], 0)
        self.assertAlmostEqual(report.interval(0, 5)[1], 0.4345, places=4)
        self.assertEqual(report.interval(16, 16)[1], 1)
        for right, asked in ((1, 0), (3, 2), (-1, 2)):
            with self.assertRaisesRegex(ValueError, "questions"):
                report.interval(right, asked)
        self.assertEqual(report.with_interval("49/50", 49, 50), "49/50")
        self.assertEqual(report.with_interval("48/49", 48, 49), "48/49 [89, 100]")
        few = report.Results([{"policy": "full", "task": "single", "length": 4096, "right": 8,
                               "questions": 10}])
        self.assertIn("| single | 10 | 80.0 [49, 94] |", few.by_task("full"))


class ClientTest(unittest.TestCase):
    def test_text_is_sent_whole_and_received_in_pieces(self):
        try:
            import grpc
            from tools.needle import server_client
            messages = server_client.load_messages()
        except (ImportError, OSError) as error:
            self.skipTest(f"needs grpcio and protoc: {error}")
        except Exception as error:  # protoc or its runtime of another version
            self.skipTest(f"cannot make the messages: {error}")
        seen = []

        def generate(request, context):
            seen.append(request)
            for part in (" 48", "29"):
                yield messages.GenerateResponse(output=messages.OutputChunk(text=part))
            yield messages.GenerateResponse(finished=messages.Finished())

        handler = grpc.method_handlers_generic_handler(
            "retroinfer.generation.v1.GenerationService",
            {"Generate": grpc.unary_stream_rpc_method_handler(
                generate, messages.GenerateRequest.FromString,
                lambda message: message.SerializeToString())})
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("localhost:0")
        server.start()
        try:
            client = server_client.Client(f"localhost:{port}", 10)
            self.assertEqual(client.generate("a prompt", "wave", 7), " 4829")
        finally:
            server.stop(None)
        self.assertEqual(seen[0].text, "a prompt")
        self.assertEqual(seen[0].sampling.max_tokens, 7)
        self.assertEqual(seen[0].attention.policy, messages.ATTENTION_POLICY_WAVE)


if __name__ == "__main__":
    unittest.main()
