"""Flags: PyOpenCL's numbers, types of their own, and no plain integers."""

from __future__ import annotations

import copy
import pickle

import pyopencl as cl
import pytest

from clmemlife import MapFlags, MemFlags, MigrationFlags
from clmemlife.flags import require

KINDS = [(MemFlags, cl.mem_flags), (MapFlags, cl.map_flags), (MigrationFlags, cl.mem_migration_flags)]


@pytest.mark.parametrize(("ours", "theirs"), KINDS)
def test_each_member_has_the_number_of_its_pyopencl_constant(ours, theirs):
    assert len(ours) >= 2
    for member in ours:
        assert member.value == getattr(theirs, member.name)


@pytest.mark.parametrize(("ours", "theirs"), KINDS)
def test_members_combine_within_their_kind(ours, theirs):
    first, second = list(ours)[:2]
    both = first | second
    assert type(both) is ours
    assert both.value == first.value | second.value
    assert both & first == first
    assert both ^ first == second
    assert first in both
    assert not first & second
    assert ours(0) | first == first


@pytest.mark.parametrize("ours", [MemFlags, MapFlags, MigrationFlags])
@pytest.mark.parametrize("combine", [lambda a, b: a | b, lambda a, b: a & b, lambda a, b: a ^ b])
@pytest.mark.parametrize("other", [1, 0, True, None, "READ", 1.0])
def test_plain_values_do_not_combine_with_a_flag_from_either_side(ours, combine, other):
    member = next(iter(ours))
    with pytest.raises(TypeError, match="cannot be combined with"):
        combine(member, other)
    with pytest.raises(TypeError, match="cannot be combined with"):
        combine(other, member)


def test_a_refused_integer_is_told_the_right_spelling():
    with pytest.raises(TypeError, match=r"plain integer 2: .*map_flags.*write MapFlags\.WRITE$"):
        MapFlags.READ | 2
    with pytest.raises(TypeError, match=r"flags must be MemFlags, not the plain integer 12.*MemFlags\.READ_ONLY\|"):
        require(4 | 8, MemFlags)


def test_flags_of_two_kinds_do_not_combine():
    with pytest.raises(TypeError, match=r"MapFlags\.READ cannot be combined with MemFlags"):
        MapFlags.READ | MemFlags.READ_WRITE
    with pytest.raises(TypeError, match=r"MemFlags\.READ_ONLY cannot be combined with MigrationFlags"):
        MemFlags.READ_ONLY | MigrationFlags.HOST


def test_flags_of_two_kinds_with_equal_numbers_are_not_equal():
    assert MemFlags.READ_WRITE.value == MapFlags.READ.value == MigrationFlags.HOST.value == 1
    assert len({MemFlags.READ_WRITE, MapFlags.READ, MigrationFlags.HOST, 1}) == 4


@pytest.mark.parametrize("wrong", [1, True, None, "READ", MemFlags.READ_WRITE, MigrationFlags.HOST, cl.map_flags.READ])
def test_require_takes_members_of_the_one_kind_only(wrong):
    assert require(MapFlags.READ | MapFlags.WRITE, MapFlags) == MapFlags.READ | MapFlags.WRITE
    with pytest.raises(TypeError, match="mode must be MapFlags"):
        require(wrong, MapFlags, "mode")


@pytest.mark.parametrize("ours", [MemFlags, MapFlags, MigrationFlags])
def test_unknown_bits_are_kept_and_shown(ours):
    strange = ours(1 << 40 | 1)
    assert strange.value == 1 << 40 | 1
    assert ours(1) in strange
    assert f"{ours.__name__}(0x10000000000)" in str(strange)
    assert strange is ours(1 << 40 | 1)
    assert (strange & ours(1)).value == 1


@pytest.mark.parametrize("wrong", [-1, 1.5, "READ", None])
def test_what_is_no_bit_field_makes_no_flag(wrong):
    with pytest.raises(ValueError, match="not a valid MapFlags"):
        MapFlags(wrong)


def test_text_names_the_flags_as_one_writes_them():
    both = MapFlags.READ | MapFlags.WRITE
    assert str(both) == "MapFlags.READ|MapFlags.WRITE"
    assert repr(both) == "<MapFlags.READ|MapFlags.WRITE: 3>"
    assert str(MemFlags(0)) == "MemFlags(0)"
    assert not MemFlags(0)


@pytest.mark.parametrize("flags", [MapFlags.READ, MapFlags.READ | MapFlags.WRITE, MemFlags(1 << 40)])
def test_flags_are_values_they_copy_and_pickle(flags):
    assert copy.deepcopy(flags) is flags
    assert pickle.loads(pickle.dumps(flags)) == flags
    assert hash(type(flags)(flags.value)) == hash(flags)
