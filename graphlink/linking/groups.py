"""Process groups of calls: their members, and a number for each."""

from __future__ import annotations

from collections.abc import Iterable

from graphlink.model import Comm, GroupKey, HostTrace, ProcessGroup, Trace

DEFAULT_GROUP = ("default_pg",)  # descriptions of the group of all ranks


class Groups:
    """Resolves recorded groups to global ranks and numbers them in the order in which they are first named.

    In this order: the ranks that the call lists, Kineto's ``pg_config``, the ET's ``process_group:init``, all ranks
    where the group has as many members as the world (size recorded, or known from the number of splits of an
    all_to_all), and all ranks where a recording without sizes names this one group only. A call that names none may be
    of any that is described and has its size and the own rank in it: it is known where there is one such.
    Kineto holds where both describe a group, and both before ``others``, which other files describe.
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
        all_ranks = (group for group in self._described.values() if group.desc in DEFAULT_GROUP)
        world = trace.world_size or max((g.size or len(g.ranks or ()) for g in all_ranks), default=0) or None
        self._everyone = None if world is None else tuple(range(world))
        self._rank = trace.rank
        names = set()
        for comm in comms:
            names.add(name := self._name(comm))
            if size := self.size(comm):
                self._sizes.setdefault(name, size)
        self._only = next(iter(names)) if len(names) == 1 else None

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
        """Return the name of the group. ``c10d`` ops of gloo name none: where only one that is described has the size
        of the call and the own rank in it, it is that; "" where several may be it.
        """
        if comm.pg_name or len(self._described) < 2:
            return comm.pg_name or "".join(self._described)
        size = comm.group_size or len(comm.in_split) or len(comm.out_split) or None
        names = [name for name, group in self._described.items() if self._may_be(group.ranks or self._everyone, size)]
        return names[0] if len(names) == 1 else ""

    def _may_be(self, ranks: tuple[int, ...] | None, size: int | None) -> bool:
        if ranks is None:
            return True
        return len(ranks) > 1 and size in (None, len(ranks)) and (self._rank is None or self._rank in ranks)

    def _ranks(self, comm: Comm, name: str) -> tuple[int, ...] | None:
        size = self.size(comm)
        if comm.ranks and (comm.group_size is None or len(comm.ranks) == comm.group_size):
            return comm.ranks
        if self._nameless(name):
            return None
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

    def undecided(self, comm: Comm) -> bool:
        """Tell whether a call may be of several described groups, and names none."""
        return self._nameless(self._name(comm))

    def _nameless(self, name: str) -> bool:
        return not name and len(self._described) > 1
