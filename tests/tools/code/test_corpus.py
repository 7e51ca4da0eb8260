"""What the code model may be trained on, and how its text is cut."""

import argparse
import array
import email.message
import importlib.util
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tools.code import corpus, excerpts  # noqa: E402


def metadata(*fields):
    message = email.message.Message()
    for name, value in fields:
        message[name] = value
    return message


class LicenceTest(unittest.TestCase):
    def test_permissive_licences_are_taken_and_named(self):
        self.assertEqual(corpus.licence_of(metadata(("License-Expression", "MIT"))), "MIT")
        self.assertEqual(
            corpus.licence_of(metadata(
                ("License", "BSD-3-Clause"),
                ("Classifier", "License :: OSI Approved :: BSD License"))),
            "BSD-3-Clause, BSD License")
        self.assertEqual(
            corpus.licence_of(metadata(
                ("Classifier", "License :: OSI Approved"),
                ("Classifier", "License :: OSI Approved :: Apache Software License"))),
            "Apache Software License")

    def test_others_are_not(self):
        for fields in (
                (), (("License", "UNKNOWN"),), (("License", "LGPL-3.0"),),
                (("License-Expression", "MIT AND GPL-2.0-only"),),
                (("License", "MIT"), ("Classifier", "License :: OSI Approved :: Mozilla ...")),
                (("License", "MIT"), ("Classifier", "License :: Other/Proprietary License")),
                (("License", "NVIDIA Proprietary Software"),),
                (("License", "BSD-like, see LICENSE"), ("License-Expression", "Beerware"))):
            self.assertIsNone(corpus.licence_of(metadata(*fields)), fields)

    def test_the_held_out_packages_are_in_no_training_text(self):
        records = json.loads((ROOT / "models/code/corpus.json").read_text(encoding="utf-8"))
        self.assertGreater(len(records), 100)
        for record in records:
            self.assertEqual(record["split"] == "eval", record["package"] in corpus.HELD_OUT)
            self.assertIsNotNone(corpus.PERMISSIVE.search(record["licence"]), record)
            self.assertIsNone(corpus.FORBIDDEN.search(record["licence"]), record)


class ExcerptsTest(unittest.TestCase):
    def test_they_are_spread_and_do_not_overlap(self):
        text = "".join(chr(0x4e00 + i) for i in range(1000))
        pieces = excerpts.excerpts(text, 4, 100)
        self.assertEqual([text.index(piece) for piece in pieces], [0, 250, 500, 750])
        self.assertEqual({len(piece) for piece in pieces}, {100})
        self.assertEqual("".join(excerpts.excerpts(text, 10, 100)), text)

    def test_what_does_not_fit_is_refused(self):
        for count, characters in ((11, 100), (0, 5), (5, 0)):
            with self.assertRaises(ValueError):
                excerpts.excerpts("x" * 1000, count, characters)


@unittest.skipUnless(importlib.util.find_spec("tokenizers"), "needs the tokenizers package")
class PiecesTest(unittest.TestCase):
    def test_pieces_give_the_same_tokens_as_the_whole(self):
        from tokenizers import Tokenizer
        from tools.code import encode
        tokenizer = Tokenizer.from_file(str(ROOT / "models/code/tokenizer.json"))
        text = "".join(path.read_text(encoding="utf-8")
                       for path in sorted((ROOT / "tools").rglob("*.py")))
        parts = list(encode.pieces(text))
        self.assertGreater(len(parts), 3)
        self.assertEqual("".join(parts), text)
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        self.assertEqual(
            [i for part in parts for i in tokenizer.encode(part, add_special_tokens=False).ids],
            whole)

    def test_a_larger_model_takes_the_tokenizer_of_another(self):
        from tools.code import encode
        model = ROOT / "models/code"
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            line = json.dumps({"package": "p", "text": "def f():\n    return 1\n"}) + "\n"
            for split in ("train", "eval"):
                (folder / f"{split}.jsonl").write_text(line, encoding="utf-8")
            asked = ["encode", name, str(folder / "large"), "--tokenizer-of", str(model)]
            with mock.patch.object(sys, "argv", asked):
                encode.main()
            self.assertEqual((folder / "large/tokenizer.json").read_bytes(),
                             (model / "tokenizer.json").read_bytes())
            tokenizer = encode.tokenizer_for(argparse.Namespace(
                tokenizer_of=model, model=folder / "large"))
            ids = array.array("h", (folder / "eval.bin").read_bytes())
            self.assertEqual(tokenizer.decode(list(ids)[1:]), "def f():\n    return 1\n")
            asked[-1] = str(folder / "nothing")
            with mock.patch.object(sys, "argv", asked), self.assertRaises(SystemExit) as ended:
                encode.main()
            self.assertIn("nothing", str(ended.exception))


if __name__ == "__main__":
    unittest.main()
