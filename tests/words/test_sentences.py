"""Every sentence that graphlink can print is in the list, and none has words that only those know who wrote it."""

from __future__ import annotations

import re

import pytest

from tests.words.sentences import LISTED, listed, sentences

PRIVATE = {  # what readers stumbled over, and what is written instead
    r"\bmeetings?\b(?!\})": "collective",
    r"\b(holds?|held|holding) up\b|\b(holds?|held) the run up\b": "delays, blocks",
    r"\bso changed\b": "with this change",
    r"\bto the ns\b": "exactly",
    r"\balike\b|\bnumbered alike\b": "equal, the same",
    r"\btells? \S+ apart\b|\btold apart\b": "distinguish",
    r"\b(is|are) of (another|two) runs?\b": "belongs to another run, belong to two runs",
    r"(%|ms|\})\)? earlier\b": "saves",
    r"\ba row a\b|\ba line a\b|\bone folder a\b": "one row for each",
    r"\bcame late\b|\bcomes late\b": "arrived late",
    r"\btold by (content|its|their|name)\b": "recognised by, known from",
    r"\+0\.000": "takes as long as recorded",
}


def test_all_sentences_are_listed() -> None:
    """Read what is new as somebody would to whom English is a second language and graphlink is new; then
    ``python -m tests.words``.
    """
    now, kept = set(listed(sentences()).splitlines()), set(LISTED.read_text(encoding="utf-8").splitlines())
    assert not now - kept, "read these, then python -m tests.words:\n" + "\n".join(sorted(now - kept)[:40])
    assert not kept - now, "gone, python -m tests.words:\n" + "\n".join(sorted(kept - now)[:40])


@pytest.mark.parametrize("pattern", PRIVATE)
def test_no_sentence_has_private_words(pattern: str) -> None:
    found = [f"{name}: {text}" for name, texts in sentences().items() for text in texts if re.search(pattern, text)]
    assert not found, f"write {PRIVATE[pattern]}:\n" + "\n".join(found)


def test_what_a_sentence_is() -> None:
    every = sentences()
    assert sum(map(len, every.values())) > 1_000
    flat = {text for texts in every.values() for text in texts}
    assert "no rank is late again and again" in flat
    assert any(
        text.startswith("the recording has no cuda_sync rows") or "has no cuda_sync rows" in text for text in flat
    )
    assert any("This file loads nothing from anywhere" in text for text in flat)
    assert any("Drag over a stretch to zoom in." in text for text in flat)
