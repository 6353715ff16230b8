"""Resolve the groups of communication calls to ranks."""

from __future__ import annotations

from collections.abc import Iterable

from graphlink.model import Comm, GroupKey, HostTrace, ProcessGroup, Trace

DEFAULT_GROUP = ("default_pg",)  # descriptions of the group of all ranks


class Groups:
    """Resolves recorded groups to global ranks and numbers them in the order in which they are first named.

    In this order: the ranks that the call lists, Kineto's ``pg_config``, the ET's ``process_group:init``, all ranks
    where the group has as many members as the world (size recorded, or known from the number of splits of an
    all_to_all), and all ranks where a recording without sizes names this one group only. Kineto holds where both
    describe a group, and both before ``others``, which other files describe.
    """

    def __init__(
        self, trace: Trace, et: HostTrace | None, comms: Iterable[Comm], others: tuple[ProcessGroup, ...] = ()
    ) -> None:
        described = (*others, *(et.process_groups if et else ()), *trace.process_groups)
        self.found: dict[GroupKey, int] = {}
        self.assumed: set[str] = set()
        self._described: dict[str, ProcessGroup] = {}
        for group in described:
            known = self._described.get(group.name)
            if known is None or group.ranks or not known.ranks or group.size not in (None, known.size):
                self._described[group.name] = group
        self._sizes: dict[str, int] = {name: g.size for name, g in self._described.items() if g.size is not None}
        names = set()
        for comm in comms:
            names.add(self._name(comm))
            size = comm.group_size or len(comm.in_split) or len(comm.out_split)
            if size:
                self._sizes.setdefault(self._name(comm), size)
        self._only = next(iter(names)) if len(names) == 1 else None
        world = trace.world_size or self._described_world()
        self._everyone = None if world is None else tuple(range(world))

    def _described_world(self) -> int | None:
        sizes = [g.size or len(g.ranks or ()) for g in self._described.values() if g.desc in DEFAULT_GROUP]
        return max(sizes, default=0) or None

    def key(self, comm: Comm) -> GroupKey | None:
        """Return the call's group, which has a number in ``found`` then; None where its ranks are not known."""
        name = self._name(comm)
        ranks = self._ranks(comm, name)
        if not ranks:
            return None
        self.found.setdefault((ranks, name), len(self.found))
        return ranks, name

    def size(self, comm: Comm) -> int | None:
        """Return the number of members of the call's group, known at times where the ranks are not."""
        return comm.group_size or len(comm.in_split) or len(comm.out_split) or self._sizes.get(self._name(comm))

    def _name(self, comm: Comm) -> str:
        """Return the name of the group. ``c10d`` ops of gloo name none: where the recording has one only, it is
        that.
        """
        if comm.pg_name or len(self._described) != 1:
            return comm.pg_name or ""
        return next(iter(self._described))

    def _ranks(self, comm: Comm, name: str) -> tuple[int, ...] | None:
        size = self.size(comm)
        if comm.ranks and (comm.group_size is None or len(comm.ranks) == comm.group_size):
            return comm.ranks
        described = self._described.get(name)
        if described and described.ranks and (size is None or len(described.ranks) == size):
            return described.ranks
        everyone = self._everyone
        if everyone is None or size == len(everyone):
            return everyone
        if size is not None:
            return None
        if name == self._only or comm.pg_desc in DEFAULT_GROUP:
            self.assumed.add(name)
            return everyone
        return None
