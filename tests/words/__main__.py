"""``python -m tests.words``: write the list of the sentences of now; its diff shows which were changed."""

from __future__ import annotations

from tests.words.sentences import LISTED, listed, sentences

LISTED.write_text(listed(sentences()), encoding="utf-8")
