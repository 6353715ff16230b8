"""Two runs compared: whether they compare, whether the second is better, where the time went, and what was changed
(docs/diff.md).
"""
