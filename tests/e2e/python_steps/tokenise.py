"""Texts become tokens, as BERT's uncased models have them."""

import os
import unicodedata

import numpy
import triton_python_backend_utils as pb_utils

TOKENS_MAX, CHARACTERS_MAX = 256, 100


def is_punctuation(character):
    is_ascii = 33 <= ord(character) <= 47 or 58 <= ord(character) <= 64 or 91 <= ord(character) <= 96 or 123 <= ord(character) <= 126
    return is_ascii or unicodedata.category(character).startswith("P")


def is_ideograph(character):
    code = ord(character)
    return any(first <= code <= last for first, last in (
        (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F)))


def words(text):
    """Lower case, without accents and control characters; punctuation and ideographs are words of their own."""
    plain = []
    for character in unicodedata.normalize("NFD", text).lower():
        category = unicodedata.category(character)
        if category == "Mn" or (category in ("Cc", "Cf") and character not in "\t\n\r") or character in "\0\ufffd":
            continue
        plain.append(f" {character} " if is_punctuation(character) or is_ideograph(character) else character)
    return "".join(plain).split()


class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "vocab.txt"), encoding="utf-8") as file:
            self.vocabulary = {line.rstrip("\n"): index for index, line in enumerate(file)}

    def pieces(self, word):
        """The longest pieces that the vocabulary has, from the left; the unknown one if that leads nowhere."""
        found, start = [], 0
        while start < len(word) <= CHARACTERS_MAX:
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self.vocabulary:
                    found.append(self.vocabulary[piece])
                    start = end
                    break
            else:
                return [self.vocabulary["[UNK]"]]
        return found or [self.vocabulary["[UNK]"]]

    def tokens(self, text):
        inner = [piece for word in words(text) for piece in self.pieces(word)]
        return [self.vocabulary["[CLS]"], *inner[:TOKENS_MAX - 2], self.vocabulary["[SEP]"]]

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
            rows = [self.tokens(text.decode("utf-8", "replace")) for text in texts]
            ids = numpy.zeros((len(rows), max(map(len, rows))), numpy.int64)
            mask = numpy.zeros_like(ids)
            for index, row in enumerate(rows):
                ids[index, :len(row)], mask[index, :len(row)] = row, 1
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("input_ids", ids), pb_utils.Tensor("attention_mask", mask)]))
        return responses
