"""CUDA's waits once more, by brute force: streams are lists of ops and waits, a record is a position in one, and what
somebody waits for is found by walking back from there. Shares nothing with the machine's forward walk.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Key = tuple[int, int]


@dataclass
class Reference:
    streams: dict[Key, list[tuple[str, object]]] = field(default_factory=dict)
    records: dict[object, tuple[Key, int]] = field(default_factory=dict)
    where: dict[object, Key] = field(default_factory=dict)

    def launch(self, op: object, key: Key) -> set[object]:
        """Enqueue; returns the ops of other streams it has to wait for."""
        stream = self.streams.setdefault(key, [])
        self.where[op] = key
        waits = self._waits(key, len(stream))
        stream.append(("op", op))
        return waits

    def record(self, event: object, key: Key) -> None:
        self.records[event] = (key, len(self.streams.setdefault(key, [])))

    def wait(self, event: object, key: Key) -> None:
        if event in self.records:  # the record as it is now: a later one does not matter
            self.streams.setdefault(key, []).append(("wait", self.records[event]))

    def _waits(self, key: Key, length: int) -> set[object]:
        found: set[object] = set()
        for kind, what in reversed(self.streams.get(key, [])[:length]):
            if kind == "op":
                break
            found |= {op for op in self._all(*what) if self.where[op] != key}
        return found

    def _all(self, key: Key, length: int) -> set[object]:
        ops = [op for kind, op in self.streams.get(key, [])[:length] if kind == "op"]
        return self._waits(key, length) | set(ops[-1:])

    def stream_sync(self, key: Key) -> set[object]:
        return self._all(key, len(self.streams.get(key, [])))

    def event_sync(self, event: object) -> set[object]:
        return self._all(*self.records[event]) if event in self.records else set()

    def device_sync(self, device: int) -> set[object]:
        found: set[object] = set()
        for key, stream in self.streams.items():
            if key[0] == device:
                found |= {op for kind, op in stream if kind == "op" and op == [o for k, o in stream if k == "op"][-1]}
                found |= {op for op in self._waits(key, len(stream)) if self.where[op][0] != device}
        return found
