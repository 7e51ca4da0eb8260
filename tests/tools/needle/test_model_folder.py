"""The committed model folder: complete, small enough, and what its files say of each other."""

import json
import pathlib
import struct
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tools.needle import bpe, generate, prompt, tasks  # noqa: E402

MODEL = ROOT / "models" / "needle"


def read_json(name):
    return json.loads((MODEL / name).read_text(encoding="utf-8"))


class ModelFolderTest(unittest.TestCase):
    def test_shape_is_what_the_project_needs(self):
        config = read_json("config.json")
        self.assertEqual(config["architectures"], ["LlamaForCausalLM"])
        self.assertEqual(config["head_dim"], 128)
        self.assertEqual(config["num_attention_heads"], 4 * config["num_key_value_heads"])
        self.assertEqual(config["max_position_embeddings"], tasks.MAX_LENGTH)
        self.assertGreaterEqual(config["rope_theta"], 2e6)

    def test_weights_are_small_and_complete(self):
        path, config = MODEL / "model.safetensors", read_json("config.json")
        self.assertLessEqual(path.stat().st_size, 16 << 20)
        with path.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        header.pop("__metadata__", None)
        self.assertEqual({tensor["dtype"] for tensor in header.values()}, {"BF16"})
        self.assertEqual(len(header), 2 + 9 * config["num_hidden_layers"])
        self.assertEqual(header["model.embed_tokens.weight"]["shape"],
                         [config["vocab_size"], config["hidden_size"]])

    def test_special_tokens_agree(self):
        encoder, generation = bpe.Encoder(MODEL), read_json("generation_config.json")
        self.assertEqual(generation["eos_token_id"], encoder.special(prompt.END_OF_TEXT))
        self.assertEqual(generation["bos_token_id"], encoder.special(prompt.BEGIN_OF_TEXT))
        self.assertEqual(read_json("config.json")["vocab_size"], encoder.size)
        self.assertLessEqual(encoder.size, 2048)

    def test_digits_are_single_tokens(self):
        encoder = bpe.Encoder(MODEL)
        self.assertEqual(len(encoder.encode("4829104")), 7)
        self.assertEqual(encoder.decode(encoder.encode(" amber 482")), " amber 482")

    def test_our_encoder_agrees_with_tokenizers(self):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            self.skipTest("needs the package tokenizers")
        reference = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        encoder = bpe.Encoder(MODEL)
        generator = generate.Generator(encoder)
        for task in tasks.TASKS:
            made, questions = generator.make(task, 2048)
            rest = prompt.question_text(questions[-1].text)
            ids = [encoder.special(prompt.BEGIN_OF_TEXT), *made.ids(encoder), *encoder.encode(rest)]
            self.assertEqual(ids, reference.encode(made.text + rest).ids)
        text = "h\u00e9llo \u4e16"
        self.assertEqual(reference.decode(reference.encode(text).ids), text)


if __name__ == "__main__":
    unittest.main()
