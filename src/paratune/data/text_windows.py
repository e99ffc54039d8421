"""Cuts long texts into windows, which are the sequences of a sample.

Imports no torch. Dimensions: `N` samples, `Q` windows.
"""

from typing import Any, NamedTuple

import numpy as np

from paratune.config.task_sections import WindowOptions
from paratune.data.columns import Samples
from paratune.data.labels import first_rows
from paratune.data.token_store import DROPPED_WINDOWS, StoreWriter, TokenStore
from paratune.data.tokenizers import pair_separator, require_fast
from paratune.data.tokens import (
    TokenizeOptions,
    cached_store,
    chunks,
    require_text_length,
    require_tokens,
    token_fingerprint,
)
from paratune.data.windows import EXAMPLE, cut_texts, num_tokens
from paratune.errors import ConfigError, DataError


class _Window(NamedTuple):
    example: int
    ids: list[int]
    type_ids: list[int]
    dropped_tokens: int
    """Tokens of the text behind this window, where it is the last one of `max_windows`; else 0."""
    dropped_windows: int
    """The same in windows."""


def tokenize_text_windows(
    samples: Samples, options: TokenizeOptions, windows: WindowOptions, *, source: str = "data"
) -> TokenStore:
    """Return the windows of all texts as sequences of their samples; arguments and errors as in `tokens.tokenize`.

    A text that fits into `options.max_length` is one window with the tokens of `tokens.tokenize`. Of a pair, each
    window has the whole other text; `options.truncation` names the text that is cut. The tokenizer must be fast.
    """
    _check(samples, options, windows, source)

    def write(writer: StoreWriter) -> None:
        kept: list[_Window] = []
        for part in chunks(samples, options, source):
            made = _encode(samples, part, options, windows, source)
            writer.add(
                [window.ids for window in made],
                [window.type_ids for window in made] if options.need_token_type_ids else None,
                [len(window.ids) + window.dropped_tokens for window in made],
            )
            # Without their tokens, which are written.
            kept += [window._replace(ids=[], type_ids=[]) for window in made]
        row_values = {
            EXAMPLE: np.array([window.example for window in kept], dtype=np.int32),
            DROPPED_WINDOWS: np.array([window.dropped_windows for window in kept], dtype=np.int32),
        }
        writer.finish(options.max_length, row_values)

    fingerprint = token_fingerprint(samples, options, text_windows=[windows.stride, windows.max_windows])
    store = cached_store(fingerprint, options, write, source=source)
    return store.grouped(np.bincount(store.row_values[EXAMPLE], minlength=len(samples)))


def _check(samples: Samples, options: TokenizeOptions, windows: WindowOptions, source: str) -> None:
    tokenizer, pairs = options.tokenizer, samples.text_pairs
    require_fast(tokenizer, "task.windows needs", returns="the windows of a text")
    num_special = tokenizer.num_special_tokens_to_add(pair=pairs is not None)
    require_text_length(options, num_special)
    most = options.max_length - num_special - 1
    if windows.stride > most:
        raise ConfigError(
            f"task.windows.stride: {windows.stride} leaves no new tokens of a text in windows of {options.max_length} "
            f"tokens (data.max_length); at most {most}",
            code="task.stride",
            key="task.windows.stride",
            value=windows.stride,
            most=most,
        )
    if pairs is None:
        return
    others = samples.texts if options.truncation == "only_second" else _with_separator(pairs, options)
    too_long = np.flatnonzero(np.array(num_tokens(others, options)) + windows.stride > most)
    if len(too_long):
        raise DataError(
            f"{source}: in {len(too_long)} rows, the text that is not cut (data.truncation: {options.truncation}) "
            f"leaves no tokens for the other one in windows of {options.max_length} tokens: "
            f"{first_rows(samples.rows[too_long].tolist())}; set a larger data.max_length, or shorten these texts",
            code="data.cannot_truncate",
            source=source,
        )


def _with_separator(pairs: list[str], options: TokenizeOptions) -> list[str]:
    separator = pair_separator(options.tokenizer)
    return [separator + pair for pair in pairs] if separator else pairs


def _encode(
    samples: Samples, part: slice, options: TokenizeOptions, windows: WindowOptions, source: str
) -> list[_Window]:
    """Return the windows of a chunk of samples, at most `max_windows` of each."""
    pairs = None if samples.text_pairs is None else _with_separator(samples.text_pairs[part], options)
    cuts_second = pairs is not None and options.truncation == "only_second"
    encoded = cut_texts(
        options.tokenizer,
        samples.texts[part],
        pairs,
        truncation="only_second" if cuts_second else "only_first",
        max_length=options.max_length,
        stride=windows.stride,
    )
    by_sample: dict[int, list[Any]] = {}
    for number, encoding in zip(encoded["overflow_to_sample_mapping"], encoded.encodings, strict=True):
        by_sample.setdefault(int(number), []).append(encoding)
    require_tokens([len(encodings[0].ids) for encodings in by_sample.values()], samples.rows[part], source)
    made: list[_Window] = []
    for number, encodings in by_sample.items():
        kept, left_out = encodings[: windows.max_windows], encodings[windows.max_windows :]
        num_left = sum(encoding.sequence_ids.count(int(cuts_second)) - windows.stride for encoding in left_out)
        made += [_Window(part.start + number, encoding.ids, encoding.type_ids, 0, 0) for encoding in kept]
        made[-1] = made[-1]._replace(dropped_tokens=num_left, dropped_windows=len(left_out))
    return made
