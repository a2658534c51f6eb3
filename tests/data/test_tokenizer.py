"""Tokenizers lose no text, forge no control tokens, and say what is missing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zaya_jax.data import DataError, load_tokenizer
from zaya_jax.data.special_tokens import SPECIAL_TOKENS
from zaya_jax.data.tokenizer import SHIPPED_FOLDER

BYTES = load_tokenizer("bytes")
SHIPPED = load_tokenizer("zaya_demo_8k")
BOTH = pytest.mark.parametrize("tokenizer", [BYTES, SHIPPED], ids=["bytes", "zaya_demo_8k"])

# Ordinary text with control tokens, or parts of them, strewn in.
TEXTS = st.lists(st.one_of(st.text(), st.sampled_from(SPECIAL_TOKENS), st.just("<|im_"))).map(
    "".join
)


@BOTH
@settings(deadline=None)
@given(text=TEXTS)
def test_round_trip_of_any_text_without_control_tokens(tokenizer, text):
    ids = tokenizer.encode(text)
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_batch([text, "x"])[0].tolist() == ids


@settings(deadline=None)
@given(text=TEXTS)
def test_round_trip_with_control_tokens_asked_for(text):
    for tokenizer in (BYTES, SHIPPED):
        ids = tokenizer.encode(text, parse_special=True)
        assert tokenizer.decode(ids, keep_special=True) == text


@BOTH
def test_control_tokens_only_when_asked(tokenizer):
    text = "<|im_start|>user\n<think>"
    assert tokenizer.encode(text, parse_special=True)[0] == 3
    assert tokenizer.encode(text, parse_special=True)[-1] == 5
    assert tokenizer.decode(tokenizer.encode(text, parse_special=True)) == "user\n"


@BOTH
def test_fixed_ids(tokenizer):
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id) == (0, 1, 2)
    assert tokenizer.special_tokens == {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    assert tokenizer.end_of_turn_id == 4


def test_shipped_size_and_compression():
    assert SHIPPED.vocab_size == 8_192
    text = "def add(first, second):\n    return first + second\n" * 3
    assert len(text) / len(SHIPPED.encode(text)) > 2.5


def test_shipped_file_is_the_one_released_runs_name():
    assert SHIPPED.fingerprint.startswith(SHIPPED_FINGERPRINT)


SHIPPED_FINGERPRINT = "c7b8846a6859ade5"


def test_bytes_covers_256_and_control_tokens():
    assert BYTES.vocab_size == 256 + len(SPECIAL_TOKENS)
    assert BYTES.encode("\xff") == [11 + 0xC3, 11 + 0xBF]


@BOTH
def test_cut_character_decodes_to_replacement(tokenizer):
    ids = BYTES.encode("é") if tokenizer is BYTES else SHIPPED.encode("\U00012345")
    assert "\ufffd" in tokenizer.decode(ids[:1])


@BOTH
def test_half_a_surrogate_pair_is_a_clear_error(tokenizer):
    with pytest.raises(DataError, match="index 2, half of a surrogate pair"):
        tokenizer.encode("ab\ud800")


@BOTH
def test_foreign_ids_are_refused(tokenizer):
    for token in (-1, tokenizer.vocab_size):
        with pytest.raises(DataError, match=f"token id {token} is outside"):
            tokenizer.decode([token])


# Other people's files


def shipped_content():
    return json.loads((SHIPPED_FOLDER / "zaya_demo_8k.json").read_text(encoding="utf-8"))


def save(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def rename(content, old, new):
    text = json.dumps(content)
    return json.loads(text.replace(json.dumps(old), json.dumps(new)))


def test_file_adding_bos_padding_and_truncation_adds_nothing(tmp_path):
    content = shipped_content()
    content["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    content["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<bos>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
    }
    loaded = load_tokenizer(save(tmp_path, content))
    text = "some text of several tokens, surely"
    assert loaded.encode(text) == SHIPPED.encode(text)
    assert loaded.fingerprint == SHIPPED.fingerprint


def test_folder_of_a_checkpoint_is_accepted(tmp_path):
    save(tmp_path, shipped_content())
    assert load_tokenizer(str(tmp_path)).fingerprint == SHIPPED.fingerprint


def test_marker_listed_as_ordinary_token_is_still_not_forged(tmp_path):
    content = shipped_content()
    for token in content["added_tokens"]:
        token["special"] = False
    path = save(tmp_path, rename(content, "<eos>", "<|finis|>"))
    loaded = load_tokenizer(path, eos_token="<|finis|>")
    text = "a <think> b <|finis|> <bos>"
    assert not {1, 2, 5} & set(loaded.encode(text))
    assert {1, 2, 5} <= set(loaded.encode(text, parse_special=True))
    assert loaded.decode(loaded.encode(text)) == text


def test_high_added_token_counts_into_vocab_size(tmp_path):
    content = shipped_content()
    added = {**content["added_tokens"][0], "content": "<late>", "special": True}
    content["added_tokens"].append({**added, "id": 8_192})
    loaded = load_tokenizer(save(tmp_path, content))
    assert loaded.vocab_size == 8_193
    assert loaded.encode("<late>", parse_special=True) == [8_192]


def gemma_like_content():
    """SentencePiece-style BPE: spaces as a sign, bytes for unknown characters, a late image id."""
    vocab = {token: index for index, token in enumerate(("<pad>", "<eos>", "<bos>", "<unk>"))}
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    for token in ("\u2581", "a", "b", "\u2581a", "\u2581ab", "\n"):
        vocab[token] = len(vocab)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    names = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<|im_end|>": 266, "<image>": 300}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": index, "content": name, "special": True, **plain}
            for name, index in names.items()
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {**vocab, "<|im_end|>": 266, "<image>": 300},
            "merges": [["\u2581", "a"], ["\u2581a", "b"]],
        },
    }


def test_gemma_like_file_with_holes_between_ids(tmp_path):
    loaded = load_tokenizer(save(tmp_path, gemma_like_content()))
    assert (loaded.pad_id, loaded.eos_id, loaded.bos_id) == (0, 1, 2)
    assert (loaded.end_of_turn_id, loaded.vocab_size) == (266, 301)
    text = " ab\n<bos>é<image> a"
    ids = loaded.encode(text)
    assert ids[0] == 264
    assert not loaded.special_ids & set(ids)
    assert loaded.decode(ids) == text
    assert loaded.encode("ab<image>", parse_special=True)[-1] == 300
    with pytest.raises(DataError, match="token id 299 is no token"):
        loaded.decode([299])


def test_missing_eos_names_the_mend_and_can_be_given(tmp_path):
    content = rename(shipped_content(), "<eos>", "<|finis|>")
    # <|im_end|> stands in for a missing end of text in chat-only files, so hide that too.
    path = save(tmp_path, rename(content, "<|im_end|>", "<|fin|>"))
    with pytest.raises(DataError, match=r"has no eos token named <eos> .*set eos_token"):
        load_tokenizer(path)
    assert load_tokenizer(path, eos_token="<|finis|>").eos_id == 1
    with pytest.raises(DataError, match="no eos token named <typo>"):
        load_tokenizer(path, eos_token="<typo>")


def test_fingerprint_sees_a_changed_merge(tmp_path):
    content = shipped_content()
    merges = content["model"]["merges"]
    merges[100], merges[101] = merges[101], merges[100]
    assert load_tokenizer(save(tmp_path, content)).fingerprint != SHIPPED.fingerprint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "not a tokenizer.json"),
        ('{"model": {"type": "Nonsense"}}', "cannot be used"),
    ],
)
def test_damaged_file_is_one_clear_error(tmp_path, content, message):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        load_tokenizer(str(path))


def test_unknown_name_lists_the_known():
    with pytest.raises(DataError, match="neither one of bytes, zaya_demo_8k"):
        load_tokenizer("zaya_demo_8K")
