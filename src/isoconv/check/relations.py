"""The constant of every value as a function of the network's input, along a graph.

Note [Relations]. Let Δ stand for the difference that any two inputs of the network make to a value. A base is the network's
input, or a value that is taken more than once. A relation of a value v to a base b is a set S of b's entries and a factor f
with ‖Δv‖ ≤ f·‖(Δb)_S‖.

- A base to itself: all entries, 1. A node of constant L that takes u: S of u, L·f of u.
- A value that consists of entries of b, each at most once, is an exact relation: f = 1, S what was selected. It stays exact
  through a node that selects and moves entries, and through no other.
- Concatenation: ‖Δv‖² = Σ‖Δu_k‖² ≤ Σ_k f_k²·‖(Δb)_{S_k}‖² ≤ f²·‖(Δb)_S‖², with S = ∪S_k and f² the largest sum, over the
  entries e, of those f_k² with e ∈ S_k. Disjoint slices count by their maximum, the same value twice by √2.
- Sum: ‖Δv‖ ≤ Σ f_k·‖(Δb)_{S_k}‖, so f = Σf_k; where the S_k are disjoint, √(Σf_k²), by Cauchy and Schwarz.
- Climbing: if u has (S, f) to a base a, and a has (T, g) to b, then ‖Δu‖ ≤ f·‖Δa‖ ≤ f·g·‖(Δb)_T‖. If a is exactly entries
  of b, ‖(Δa)_S‖ is ‖Δb‖ on those that S stands for, and g = 1.

Each value keeps the relation to one base, and so does each base; inputs of one node climb until they meet. A relation to
an older base, followed node by node, is never better: it has the same entries and at least the same factor.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod

import numpy as np

from . import Budget
from .certificate import INPUT, Node
from .exact import Integers, root_up, trim
from .kinds import ONE, ZERO, Shape, Step

# In multiplications: an input among many in fractions, here and where errors are added up; an entry of a set, in memory as
# well, where it has four bytes; adding to a sum, or climbing to another base.
_PER_INPUT, _PER_ENTRY, _PER_SUM = 1_000_000, 1_000, 50_000


@dataclass(frozen=True)
class Relation:
    """See Note [Relations]. Entries are numbers of the flattened base, in the order of an exact value; None is all."""

    base: str
    factor: Fraction = ONE
    entries: Integers | None = None
    exact: bool = True


@dataclass(frozen=True)
class Relations:
    """Of every value that was added, the constant and the relation to its base; `takes` says how often each is taken."""

    takes: Counter[str]
    shapes: dict[str, Shape]
    budget: Budget
    constants: dict[str, Fraction] = field(default_factory=lambda: {INPUT: ONE})
    _of: dict[str, Relation] = field(default_factory=lambda: {INPUT: Relation(INPUT)})
    _links: dict[str, tuple[Relation, int]] = field(default_factory=dict)  # of a base to the one before, and its depth

    def add(self, node: Node, step: Step) -> None:
        relation = self._of[node.inputs[0]] if step.joins is None else self._join(node, step.joins)
        # Nobody meets at a base that is taken once.
        if step.selects and node.lipschitz == 1 and relation.exact and self.takes[relation.base] > 1:
            self.budget.spend(prod(step.shape) * _PER_ENTRY, node)
            entries = relation.entries
            if entries is None:
                shape = self.shapes[relation.base]
                entries = np.arange(prod(shape), dtype=np.int32).reshape(shape)
            relation = replace(relation, entries=step.apply(entries[None])[0])
        else:
            relation = replace(relation, factor=trim(relation.factor * node.lipschitz), exact=False)
        self.constants[node.name] = trim(relation.factor * self.constants[relation.base])
        if self.takes[node.name] > 1:
            self._links[node.name] = relation, self._depth(relation.base) + 1
            relation = Relation(node.name)
        self._of[node.name] = relation

    def _depth(self, base: str) -> int:
        return self._links[base][1] if base in self._links else 0

    def _join(self, node: Node, how: str) -> Relation:
        relations = [self._of[name] for name in node.inputs]
        self.budget.spend(len(relations) * _PER_INPUT, node)
        while len({relation.base for relation in relations}) > 1:
            self.budget.spend(len(relations) * _PER_SUM, node)
            deepest = max(self._depth(relation.base) for relation in relations)
            relations = [self._climb(r, node) if self._depth(r.base) == deepest else r for r in relations]
        base = relations[0].base
        largest, total, entries, disjoint = self._overlap(relations, prod(self.shapes[base]), node)
        if how == "sum" and not disjoint:
            factor = add_up(relation.factor for relation in relations)
        else:
            factor = root_up(total if how == "sum" else largest)
        return Relation(base, trim(factor), entries, exact=False)

    def _climb(self, relation: Relation, node: Node) -> Relation:
        link, _ = self._links[relation.base]
        entries = link.entries
        if link.exact and entries is not None and relation.entries is not None:
            self.budget.spend(relation.entries.size * _PER_ENTRY, node)
            entries = entries.ravel()[relation.entries]
        return Relation(link.base, trim(relation.factor * link.factor), entries, exact=False)

    def _overlap(
        self, relations: list[Relation], size: int, node: Node
    ) -> tuple[Fraction, Fraction, Integers | None, bool]:
        """Return the largest sum of squares over an entry, the sum of all, the union, and whether the sets are disjoint.

        Entries that are in the same sets have the same number in `group`, and `sums` has what they add up to.
        """
        everywhere = add_up(r.factor**2 for r in relations if r.entries is None)
        group, sums, members, union = np.zeros(1, np.int64), [ZERO], 0, np.zeros(size, bool)
        for relation in relations:
            if relation.entries is None:
                members += size
                continue
            self.budget.spend(size * _PER_ENTRY, node)
            inside = np.zeros(size, bool)
            inside[relation.entries] = True
            union |= inside
            members += int(inside.sum())
            pairs = 2 * group + inside
            present = np.flatnonzero(np.bincount(pairs))
            self.budget.spend(len(present) * _PER_SUM, node)
            group, square = np.searchsorted(present, pairs), relation.factor**2
            sums = [trim(sums[pair // 2] + pair % 2 * square) for pair in present.tolist()]
        full = union.all() or any(r.entries is None for r in relations)
        entries = None if full else np.flatnonzero(union).astype(np.int32)
        disjoint = members == (size if entries is None else entries.size)
        return everywhere + max(sums), add_up(r.factor**2 for r in relations), entries, disjoint


def add_up(numbers: Iterable[Fraction]) -> Fraction:
    """Return the sum, or a slightly larger one where its digits have become too many."""
    total = ZERO
    for number in numbers:
        total = trim(total + number)
    return total
