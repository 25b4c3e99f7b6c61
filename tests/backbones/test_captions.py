"""Caption processor and tokenizer of the BLIP family."""

import numpy as np
import pytest

from negbench.backbones import _captions
from negbench.backbones._captions import make_tokenizer, process_caption, read_vocabulary, vocabulary_files
from negbench.errors import WeightsError


def test_processor_table(subtests, spelled):
    for raw, processed in spelled["captions"].items():
        with subtests.test(raw=raw):
            assert process_caption(raw) == processed


def test_processor_keeps_fifty_words():
    words = [f"w{n}" for n in range(60)]
    assert process_caption(" ".join(words)).split(" ") == words[:50]
    assert process_caption(" ".join(words[:50])).split(" ") == words[:50]


def test_oracle_captions(shared_data):
    """Odd captions match the stored outputs of LAVIS's processor and transformers 4.26's tokenizer."""
    folder = shared_data / "blip2_oracle" / "eva_clip_g"
    inputs = np.load(folder / "inputs.npz")
    captions = [str(caption) for caption in inputs["captions"]]
    assert [process_caption(caption) for caption in captions] == [str(c) for c in inputs["captions_processed"]]
    batch = make_tokenizer([folder / "vocab.txt"], ("[DEC]",), 32)(captions)
    assert np.array_equal(batch["input_ids"].numpy(), inputs["input_ids"])
    assert np.array_equal(batch["attention_mask"].numpy(), inputs["attention_mask"])


def test_added_tokens_take_the_next_ids():
    count = len(_captions.built_in_vocabulary())
    assert len(make_tokenizer((), ("[DEC]",), 8)) == count + 1
    blip = make_tokenizer((), ("[DEC]", "[ENC]"), 8)
    assert [blip.bert.convert_tokens_to_ids(token) for token in ("[DEC]", "[ENC]")] == [count, count + 1]


def test_rows_are_padded_to_max_length_and_truncated_with_their_ends():
    batch = make_tokenizer((), ("[DEC]",), 6)(["red", "red " * 20, ""])
    ids = batch["input_ids"]
    mask = batch["attention_mask"]
    red = _captions.built_in_vocabulary()["red"]
    assert set(batch) == {"input_ids", "attention_mask"}
    assert ids.tolist() == [[2, red, 3, 0, 0, 0], [2, red, red, red, red, 3], [2, 3, 0, 0, 0, 0]]
    assert mask.tolist() == [[1, 1, 1, 0, 0, 0], [1] * 6, [1, 1, 0, 0, 0, 0]]


def test_built_in_vocabulary_spells_any_ascii_word():
    vocabulary = _captions.built_in_vocabulary()
    assert list(vocabulary.values()) == list(range(len(vocabulary)))
    assert list(vocabulary)[:5] == list(_captions.SPECIAL_TOKENS)
    ids = make_tokenizer((), ("[DEC]",), 64)(["Quixotic9 {jazz} 50% [x] red"])["input_ids"]
    assert 1 not in ids  # [UNK]
    assert vocabulary["red"] in ids


def test_vocabulary_from_txt_json_and_folder(tmp_path):
    words = [*_captions.SPECIAL_TOKENS, "a", "##b"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    expected = {word: index for index, word in enumerate(words)}
    assert read_vocabulary(vocabulary_files(tmp_path)[0]) == expected
    assert read_vocabulary(vocabulary_files(tmp_path / "vocab.txt")[0]) == expected
    folder = tmp_path / "saved"
    tokenizer = make_tokenizer(vocabulary_files(tmp_path), ("[DEC]",), 8)
    tokenizer.bert.add_tokens(["<image>"], special_tokens=True)  # as transformers' Blip2Processor does
    tokenizer.bert.save_pretrained(folder)
    assert vocabulary_files(folder)[0].name == "tokenizer.json"
    assert read_vocabulary(vocabulary_files(folder)[0]) == expected


def test_files_that_are_no_vocabularies(tmp_path, subtests):
    for missing, message in ((tmp_path, "no tokenizer in"), (tmp_path / "vocab.txt", "no tokenizer at")):
        with subtests.test(missing=missing), pytest.raises(WeightsError, match=message):
            vocabulary_files(missing)
    lacking = r"vocab\.txt is not a BERT vocabulary: it lacks .*\[MASK\]"
    for name, text, message in (
        ("vocab.txt", "a\nb\n", lacking),
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n", lacking),
        ("tokenizer.json", "{", "cannot be read as a tokenizer"),
    ):
        with subtests.test(message):
            (tmp_path / name).write_text(text)
            with pytest.raises(WeightsError, match=message):
                read_vocabulary(tmp_path / name)
