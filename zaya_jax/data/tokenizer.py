"""Text to token ids and back.

Three kinds: the byte-level BPE shipped here, plain bytes, and any `tokenizer.json` on disk. None
adds bos or eos on its own, and none turns text into a control token unless asked to: `<|im_end|>`
inside a document is encoded letter by letter like any other text.
"""

from __future__ import annotations

import abc
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Int32

from zaya_jax.data.config import DataConfig, DataError
from zaya_jax.data.special_tokens import CHAT_MARKERS, SPECIAL_TOKENS, USUAL_NAMES

SHIPPED_FOLDER = Path(__file__).parent / "tokenizers"


class Tokenizer(abc.ABC):
    """What every tokenizer offers.

    Attributes:
      name: The name or path it was loaded by.
      vocab_size: One more than the highest id it can produce; a model may have more rows.
      special_tokens: Control tokens by their text.
      bos_id: Opens a document.
      eos_id: Closes a document.
      pad_id: Fills the unused rest of a window.
      fingerprint: SHA-256 of everything that decides how text is encoded, hexadecimal.
    """

    name: str
    vocab_size: int
    special_tokens: dict[str, int]
    bos_id: int
    eos_id: int
    pad_id: int
    fingerprint: str

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of all control tokens."""
        return frozenset(self.special_tokens.values())

    @property
    def end_of_turn_id(self) -> int | None:
        """Id of `<|im_end|>`, which ends a chat turn; None if the tokenizer has none."""
        return self.special_tokens.get("<|im_end|>")

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Ids of `text`, without bos or eos.

        Args:
          text: Any string that UTF-8 can represent.
          parse_special: Whether the text of a control token becomes that token. Leave it off for
            text from outside, which could otherwise forge turns.

        Raises:
          DataError: if the text holds half of a surrogate pair.
        """
        _check_text(text)
        if not parse_special:
            return self._encode_plain([text])[0]
        ids: list[int] = []
        longest_first = sorted(self.special_tokens, key=len, reverse=True)
        pattern = "(" + "|".join(re.escape(token) for token in longest_first) + ")"
        for part in re.split(pattern, text):
            if part in self.special_tokens:
                ids.append(self.special_tokens[part])
            elif part:
                ids.extend(self._encode_plain([part])[0])
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " tokens"]]:
        """`encode` of many texts, in parallel where the tokenizer can."""
        for text in texts:
            _check_text(text)
        return [np.asarray(ids, np.int32) for ids in self._encode_plain(texts)]

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Text of `ids`. Bytes that are not UTF-8, as in a cut character, become U+FFFD.

        Args:
          ids: Token ids.
          keep_special: Whether control tokens appear as their text or are left out.

        Raises:
          DataError: for an id that is no token.
        """
        ids = [int(token) for token in ids]
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise DataError(
                    f"token id {token} is outside tokenizer {self.name!r}, "
                    f"whose ids are 0 to {self.vocab_size - 1}"
                )
        return self._decode(ids, keep_special)

    @abc.abstractmethod
    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]: ...

    @abc.abstractmethod
    def _decode(self, ids: list[int], keep_special: bool) -> str: ...


class ByteTokenizer(Tokenizer):
    """Every byte of the UTF-8 text is a token, after the control tokens."""

    def __init__(self) -> None:
        self.name = "bytes"
        self.special_tokens = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
        self.pad_id, self.eos_id, self.bos_id = 0, 1, 2
        self._offset = len(SPECIAL_TOKENS)
        self.vocab_size = self._offset + 256
        self.fingerprint = _sha256(["bytes", list(SPECIAL_TOKENS)])

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        return [[byte + self._offset for byte in text.encode("utf-8")] for text in texts]

    def _decode(self, ids: list[int], keep_special: bool) -> str:
        parts: list[bytes] = []
        for token in ids:
            if token >= self._offset:
                parts.append(bytes([token - self._offset]))
            elif keep_special:
                parts.append(SPECIAL_TOKENS[token].encode("utf-8"))
        return b"".join(parts).decode("utf-8", errors="replace")


class FileTokenizer(Tokenizer):
    """A `tokenizer.json` as the `tokenizers` library writes it."""

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        pad_token: str | None = None,
    ) -> None:
        self.name = name
        content = _read_json(name, path)
        decisive = ("normalizer", "pre_tokenizer", "model", "added_tokens")
        self.fingerprint = _sha256({key: content.get(key) for key in decisive})
        control_names = {*CHAT_MARKERS, *itertools.chain(*USUAL_NAMES.values())}
        control_names |= {token for token in (bos_token, eos_token, pad_token) if token}
        # Some files list control tokens as ordinary added tokens, which text would match.
        for token in content.get("added_tokens") or []:
            token["special"] = token["special"] or token["content"] in control_names
        self._tokenizer = _build(name, path, content)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_tokens = {
            token.content: index for index, token in added.items() if token.special
        }
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.bos_id = self._find("bos", bos_token)
        self.eos_id = self._find("eos", eos_token)
        self.pad_id = self._find("pad", pad_token)

    def _find(self, role: str, given: str | None) -> int:
        candidates = USUAL_NAMES[role] if given is None else (given,)
        for token in candidates:
            index = self._tokenizer.token_to_id(token)
            if index is not None:
                self.special_tokens.setdefault(token, index)
                return index
        raise DataError(
            f"tokenizer {self.name!r} has no {role} token named {' or '.join(candidates)}; "
            f"set {role}_token to the text of one of its tokens"
        )

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _decode(self, ids: list[int], keep_special: bool) -> str:
        for token in ids:
            if self._tokenizer.id_to_token(token) is None:  # the library would leave it out
                raise DataError(f"token id {token} is no token of tokenizer {self.name!r}")
        return self._tokenizer.decode(ids, skip_special_tokens=not keep_special)


def load_tokenizer(
    name_or_path: str,
    *,
    bos_token: str | None = None,
    eos_token: str | None = None,
    pad_token: str | None = None,
) -> Tokenizer:
    """Load a tokenizer by name ("bytes" or one shipped here) or from a `tokenizer.json`.

    Args:
      name_or_path: The name or the path.
      bos_token: Text of the token that opens a document; None finds it by its usual names.
      eos_token: The same for the token that closes a document.
      pad_token: The same for the token that fills windows.

    Raises:
      DataError: if there is no such tokenizer, the file is damaged, or a token is not found.
    """
    if name_or_path == "bytes":
        return ByteTokenizer()
    shipped = SHIPPED_FOLDER / f"{name_or_path}.json"
    path = shipped if shipped.is_file() else Path(name_or_path).expanduser()
    return FileTokenizer(
        name_or_path, path, bos_token=bos_token, eos_token=eos_token, pad_token=pad_token
    )


def tokenizer_of(config: DataConfig) -> Tokenizer:
    """The tokenizer a data config names."""
    return load_tokenizer(
        config.tokenizer,
        bos_token=config.bos_token,
        eos_token=config.eos_token,
        pad_token=config.pad_token,
    )


def _read_json(name: str, path: Path) -> dict[str, Any]:
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        shipped = sorted(file.stem for file in SHIPPED_FOLDER.glob("*.json"))
        raise DataError(
            f"tokenizer {name!r} is neither one of {', '.join(['bytes', *shipped])} "
            "nor the path of an existing tokenizer.json"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"tokenizer {name!r}: {path} cannot be read: {error}") from error
    if not isinstance(content, dict) or "model" not in content:
        raise DataError(f"tokenizer {name!r}: {path} is not a tokenizer.json (no 'model' in it)")
    return content


def _build(name: str, path: Path, content: dict[str, Any]) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises nothing more specific
        raise DataError(f"tokenizer {name!r}: {path} cannot be used: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # Control tokens inside text are split like other text, instead of being matched.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"text holds {text[error.start]!r} at index {error.start}, half of a surrogate pair, "
            "which UTF-8 cannot represent; replace it before encoding"
        ) from None


def _sha256(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode("utf-8")).hexdigest()
