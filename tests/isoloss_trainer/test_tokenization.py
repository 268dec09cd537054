"""A tokenizer that loses text is refused: what it drops would cost nothing and count as read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from isoloss_contract.records import DomainSource
from isoloss_trainer.evaluate import evaluate
from isoloss_trainer.prepare import prepare
from isoloss_trainer.termination import BadData, Interruption
from isoloss_trainer.tokenization import MeasuredTokens, check_keeps_text, load_tokenizer
from tests.isoloss_trainer import builders
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.test_evaluate import save

GREEK = "μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος "
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def written(folder: Path, tokenizer: Tokenizer) -> Path:
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": builders.END}))
    return folder


def of_letters(letters: str, **options: Any) -> Tokenizer:
    """A tokenizer of single characters, without bytes for others."""
    vocabulary = {piece: number for number, piece in enumerate([builders.END, "<unk>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], **options))
    tokenizer.add_special_tokens([builders.END])
    return tokenizer


def measured(tokenizer: Tokenizer, text: str, folder: Path) -> MeasuredTokens:
    (found,) = load_tokenizer(
        builders.uri(written(folder / "tokenizer", tokenizer))
    ).encode_closed([text])
    return found


@pytest.mark.parametrize(
    ("tokenizer", "text", "lost"),
    [
        pytest.param(of_letters(LETTERS), "abcd", "", id="known letters"),
        pytest.param(of_letters(LETTERS), "abμ", "μ", id="a letter without a token"),
        pytest.param(of_letters(LETTERS, unk_token="<unk>"), "abμd", "μ", id="an unknown token"),
        pytest.param(
            of_letters(LETTERS, unk_token="<unk>", fuse_unk=True), "aμῆν", "μῆν", id="one for many"
        ),
        pytest.param(of_letters(""), "abcd", "abcd", id="nothing is known"),
        pytest.param(of_letters(LETTERS), "ab\0", "\0", id="NUL"),
    ],
)
def test_text_in_no_token_and_in_unknown_ones_is_lost(
    tokenizer: Tokenizer, text: str, lost: str, tmp_path: Path
) -> None:
    found = measured(tokenizer, text, tmp_path)
    assert (found.bytes, found.lost_bytes) == (len(text.encode()), len(lost.encode()))
    assert found.lost_text[: len(lost)] == lost


def test_the_unknown_token_of_a_unigram_model_is_known_by_its_number(tmp_path: Path) -> None:
    pieces = [(builders.END, 0.0), ("<unk>", -9.0), *((letter, -3.0) for letter in LETTERS)]
    found = measured(Tokenizer(models.Unigram(pieces, unk_id=1)), "abμd", tmp_path)
    assert found.lost_bytes == 2


@pytest.mark.parametrize(
    "text", ["naïve – 漢字 🙂 e\u0301", "\u1112\u1161\u11ab", " spaces  \n\n ", "", "ﬁ Ⅸ"]
)
def test_nothing_is_lost_to_bytes_and_to_normalizers(text: str, tmp_path: Path) -> None:
    folder = builders.make_tokenizer(tmp_path / "tokenizer", builders.documents(10))
    assert load_tokenizer(builders.uri(folder)).encode_closed([text])[0].lost_bytes == 0
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.normalizer = normalizers.NFKC()
    assert measured(tokenizer, text, tmp_path / "normalized").lost_bytes == 0
    spaced = of_letters(f"{LETTERS}▁")
    spaced.pre_tokenizer = pre_tokenizers.Metaspace()
    assert measured(spaced, "a word or two", tmp_path / "spaced").lost_bytes == 0


@pytest.mark.parametrize(
    ("normalizer", "text", "lost"),
    [
        pytest.param(normalizers.Lowercase(), "The tree is that", "T", id="capitals"),
        pytest.param(normalizers.Lowercase(), "ALL OF IT", "", id="capitals alone"),
        pytest.param(
            normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
            "eté et père",
            "éè",
            id="accents",
        ),
        pytest.param(normalizers.Replace(Regex("[0-9]"), "0"), "in 2024, 00", "224", id="digits"),
        pytest.param(normalizers.Replace(Regex(" +"), " "), "if a:\n    b", "   ", id="indents"),
        pytest.param(normalizers.Replace("!", ""), "oh!", "!", id="dropped"),
        pytest.param(normalizers.NFC(), "e\u0301 \u1112\u1161\u11ab ー が", "", id="composed"),
        pytest.param(normalizers.NFKC(), "Ａ A ﬁ fi …", "", id="forms of one"),
        pytest.param(normalizers.Replace(" ", "▁"), "a b", "", id="a mark for spaces"),
        pytest.param(normalizers.Prepend("▁"), "a b", "", id="a space before it"),
        pytest.param(normalizers.Replace("\n", " "), "a b\nc", "", id="white space of a kind"),
        pytest.param(normalizers.Replace("\n", "<n>"), "a b\nc", "", id="a name for an end"),
        pytest.param(normalizers.ByteLevel(), "Aa é!", "", id="bytes"),
    ],
)
def test_what_a_normalizer_makes_equal_is_lost(
    normalizer: normalizers.Normalizer, text: str, lost: str, tmp_path: Path
) -> None:
    folder = builders.make_tokenizer(tmp_path / "plain", builders.documents(10))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.normalizer = normalizer
    found = measured(tokenizer, text, tmp_path)
    assert found.lost_bytes == len(lost.encode())
    assert found.lost_text[:1] == lost[:1]


def test_text_becomes_the_same_tokens_each_time_whatever_dropout_its_training_had(
    tmp_path: Path,
) -> None:
    folder = builders.make_tokenizer(tmp_path / "plain", builders.documents(10))
    plain = load_tokenizer(builders.uri(folder))
    file = folder / "tokenizer.json"
    description = json.loads(file.read_text())
    description["model"]["dropout"] = 0.5
    file.write_text(json.dumps(description))
    dropping, texts = load_tokenizer(builders.uri(folder)), builders.documents(10)
    assert dropping.digest == plain.digest
    for ours, theirs in zip(dropping.encode(texts), plain.encode(texts), strict=True):
        assert np.array_equal(ours, theirs)


def test_the_number_of_an_end_token_counts_only_if_it_is_no_piece_of_text(tmp_path: Path) -> None:
    """config.json has one by default, whatever the tokenizer."""
    folder = builders.make_tokenizer(tmp_path / "t", builders.documents(10))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|user|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    with pytest.raises(BadData, match="no end-of-text token"):
        load_tokenizer(builders.uri(folder))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    assert load_tokenizer(builders.uri(folder)).end_token == 0


def test_the_only_special_token_ends_documents_if_no_file_names_one(tmp_path: Path) -> None:
    folder = builders.make_tokenizer(tmp_path / "t", builders.documents(10))
    (folder / "tokenizer_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert load_tokenizer(builders.uri(folder)).end_token == 0


def test_a_hundredth_may_be_lost_and_no_more(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(builders.uri(written(tmp_path / "t", of_letters(LETTERS))))
    for letters, refused in ((198, False), (196, True)):
        found = tokenizer.encode_closed(["a" * letters + "μ"])
        if not refused:
            check_keeps_text(found, "t", "tokenizer")
            continue
        with pytest.raises(BadData, match=r"t: 1\.0% of the bytes .* the first at 'μ'") as caught:
            check_keeps_text(found, "t", "tokenizer")
        assert (caught.value.code, caught.value.field) == ("TokenizerLosesText", "tokenizer")


@pytest.mark.parametrize("letters", ["", f"{LETTERS}{LETTERS.upper()} .,"])
def test_a_corpus_is_not_prepared_by_a_tokenizer_that_loses_its_text(
    letters: str, tmp_path: Path
) -> None:
    """Three entries make end tokens of it; Latin letters drop half."""
    texts = [f"{text[:200]} {GREEK * 3}" for text in builders.documents(300)]
    builders.write_json_lines(tmp_path / "x.jsonl", texts)
    folder = written(tmp_path / "tokenizer", of_letters(letters))
    source = DomainSource(name="text", uri=f"{builders.uri(tmp_path)}/x.jsonl", text_field="text")
    task = builders.prepare_task(
        builders.uri(tmp_path),
        builders.uri(tmp_path / "store"),
        domains=(source,),
        tokenizer=builders.uri(folder),
        sequence_length=8,
    )
    with pytest.raises(
        BadData, match=r"domain text: .* of the bytes of the held-out text"
    ) as caught:
        prepare(task, tmp_path, Interruption(), builders.quiet())
    assert caught.value.code == "TokenizerLosesText"


def test_a_checkpoints_own_tokenizer_that_loses_the_held_out_text_measures_nothing(
    prepared: Prepared, tmp_path: Path
) -> None:
    tokenizer = written(tmp_path / "tokenizer", of_letters("aeiou "))
    folder = save(tmp_path / "model", {**builders.LLAMA, "vocab_size": 8}, tokenizer)
    task = prepared.evaluate_task(folder)
    with pytest.raises(BadData, match="of the bytes of the held-out text") as caught:
        evaluate(task, tmp_path, Interruption(), builders.quiet())
    assert (caught.value.code, caught.value.field) == ("TokenizerLosesText", "checkpoint.uri")


def of_pieces(letters: str) -> Tokenizer:
    """A Unigram model that has neither bytes nor a token for unknown text, as SentencePiece may write it."""
    return Tokenizer(models.Unigram([(builders.END, 0.0), *((piece, -3.0) for piece in letters)]))


def without_unknown(letters: str) -> Tokenizer:
    """A WordPiece model without its [UNK]."""
    pieces = [builders.END, *letters, *(f"##{piece}" for piece in letters)]
    return Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}))


@pytest.mark.parametrize("made", [of_pieces, without_unknown])
def test_a_tokenizer_that_stops_at_what_it_has_no_token_for_is_refused(
    tmp_path: Path, made: Callable[[str], Tokenizer]
) -> None:
    """It ended as an error of ours, which is tried again."""
    loaded = load_tokenizer(builders.uri(written(tmp_path / "tokenizer", made(LETTERS))))
    assert loaded.encode_closed(["word"])[0].lost_bytes == 0
    for read in (loaded.encode, loaded.encode_closed):
        with pytest.raises(BadData, match="has no token for some of the text") as caught:
            list(read(["word", GREEK]))
        assert caught.value.code == "TokenizerLosesText"


def test_a_first_token_is_found_without_a_token_for_latin_letters(tmp_path: Path) -> None:
    """It was looked for before an "a", which ended as an error of ours."""
    tokenizer = of_letters(GREEK.split()[0])
    tokenizer.add_special_tokens(["<s>"])
    number = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", number)])
    assert load_tokenizer(builders.uri(written(tmp_path / "of", tokenizer))).first_tokens == (
        number,
    )
    words = Tokenizer(models.WordLevel({builders.END: 0, "μῆνιν": 1}, "<unk>"))
    assert load_tokenizer(builders.uri(written(tmp_path / "words", words))).first_tokens == ()


@pytest.mark.parametrize(("strip", "lost"), [("lstrip", 3), ("rstrip", 5), ("", 0)])
def test_white_space_that_an_added_token_takes_is_lost(
    tmp_path: Path, strip: str, lost: int
) -> None:
    tokenizer = of_letters(LETTERS + " ")
    tokenizer.add_tokens([AddedToken("the", **({strip: True} if strip else {}))])
    (found,) = load_tokenizer(
        builders.uri(written(tmp_path / "tokenizer", tokenizer))
    ).encode_closed(["a   the     word"])
    assert found.lost_bytes == lost


OF_CONFIG = "tokenizer_config.json"
ADDED: dict[str, tuple[dict[str, Any], str]] = {
    "a word": (
        {OF_CONFIG: {"added_tokens_decoder": {"99": {"content": "abc"}}}},
        f"{OF_CONFIG} adds 'abc', which tokenizer.json does not have",
    ),
    "a special token": (
        {OF_CONFIG: {"added_tokens_decoder": {"9": {"content": "<pad>", "special": True}}}},
        "",
    ),
    "a word that takes the space before it": (
        {OF_CONFIG: {"added_tokens_decoder": {"9": {"content": "the", "lstrip": True}}}},
        f"{OF_CONFIG} adds 'the',.*another way .lstrip",
    ),
    "a word of tokenizer.json": (
        {OF_CONFIG: {"added_tokens_decoder": {"9": {"content": "the", "lstrip": False}}}},
        "",
    ),
    "a word of an older export": (
        {"added_tokens.json": {"the": 28, "abc": 29}},
        "added_tokens.json adds 'abc'",
    ),
    "a special token of an older export": (
        {"added_tokens.json": {"é": 29}, "special_tokens_map.json": {"pad_token": "é"}},
        "",
    ),
    "an older list beside the newer one, which alone is read": (
        {"added_tokens.json": {"abc": 29}, OF_CONFIG: {"added_tokens_decoder": {}}},
        "",
    ),
}


@pytest.mark.parametrize("case", ADDED)
def test_words_that_are_added_outside_of_tokenizer_json_are_refused(
    tmp_path: Path, case: str
) -> None:
    tokenizer = of_letters(LETTERS)
    tokenizer.add_tokens(["the"])
    folder = written(tmp_path / "tokenizer", tokenizer)
    files, words = ADDED[case]
    for name, content in files.items():
        end = {"eos_token": builders.END} if name == OF_CONFIG else {}
        (folder / name).write_text(json.dumps({**end, **content}))
    if not words:
        load_tokenizer(builders.uri(folder))
        return
    with pytest.raises(BadData, match=words):
        load_tokenizer(builders.uri(folder))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_with_a_key_twice_is_refused(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / "tokenizer", of_letters("ab"))
    (folder / "tokenizer_config.json").write_text('{"a": 1}')
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace('"a":', '"a": 1, "a":'))
    with pytest.raises(BadData, match=rf"{name}: the key 'a' is there twice") as caught:
        load_tokenizer(f"file://{folder}")
    assert caught.value.code == "TokenizerNotLoadable"


BYTES_ALONE = pre_tokenizers.ByteLevel(add_prefix_space=False)
OF_LLAMA = "LlamaTokenizerFast"


@pytest.mark.parametrize("within", [False, True], ids=["alone", "in a sequence"])
@pytest.mark.parametrize(
    ("splitter", "kind", "said", "refused"),
    [
        (BYTES_ALONE, None, True, True),
        (BYTES_ALONE, None, False, False),
        (BYTES_ALONE, None, None, False),
        (pre_tokenizers.Metaspace(prepend_scheme="first"), OF_LLAMA, False, True),
        (pre_tokenizers.Metaspace(prepend_scheme="first"), OF_LLAMA, True, False),
        (pre_tokenizers.Metaspace(prepend_scheme="never"), "LlamaTokenizer", True, True),
        (
            pre_tokenizers.Metaspace(prepend_scheme="first"),
            "PreTrainedTokenizerFast",
            False,
            False,
        ),
    ],
)
def test_files_that_differ_in_the_space_before_a_text_are_refused(
    tmp_path: Path,
    within: bool,
    splitter: pre_tokenizers.PreTokenizer,
    kind: str | None,
    said: bool | None,
    refused: bool,
) -> None:
    tokenizer = of_letters("".join(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([splitter]) if within else splitter
    folder = written(tmp_path / "tokenizer", tokenizer)
    settings = {"eos_token": builders.END, "add_prefix_space": said, "tokenizer_class": kind}
    (folder / OF_CONFIG).write_text(json.dumps(settings))
    if not refused:
        load_tokenizer(f"file://{folder}")
        return
    words = rf"add_prefix_space is {json.dumps(said)} in tokenizer_config\.json and {json.dumps(not said)}"
    with pytest.raises(BadData, match=words):
        load_tokenizer(f"file://{folder}")


def test_a_file_beside_the_tokenizer_that_is_no_json_is_refused_by_name(tmp_path: Path) -> None:
    """It was taken for absent, with the tokens that it names."""
    folder = written(tmp_path / "tokenizer", of_letters("ab"))
    (folder / OF_CONFIG).write_text('{"add_bos_token": true,}')
    with pytest.raises(BadData, match=rf"{OF_CONFIG}: no JSON") as caught:
        load_tokenizer(f"file://{folder}")
    assert caught.value.code == "TokenizerNotLoadable"


def test_a_tokenizer_of_three_entries_is_not_that_of_its_model(
    prepared: Prepared, tmp_path: Path
) -> None:
    """As transformers 5.23 writes it of a folder with vocab.json and merges.txt, without a word."""
    tokenizer = written(tmp_path / "tokenizer", of_letters("a"))
    folder = save(tmp_path / "model", builders.LLAMA, tokenizer)
    task = prepared.evaluate_task(folder)
    size = builders.LLAMA["vocab_size"]
    with pytest.raises(BadData, match=f"has 3 entries, but vocab_size .* is {size}") as caught:
        evaluate(task, tmp_path, Interruption(), builders.quiet())
    assert caught.value.code == "TokenizerNotLoadable"
