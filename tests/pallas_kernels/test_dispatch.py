"""Which implementation an op takes."""

import pytest

from pallas_kernels import dispatch
from pallas_kernels.paged_attention import IMPLEMENTATIONS


def unable(reason):
    def function(*args, **kwargs):
        raise NotImplementedError(reason)

    return function


def able(name):
    return lambda *args, **kwargs: (name, args, kwargs)


TABLE = {"fast": unable("needs a GPU"), "plain": able("plain"), "slow": able("slow")}


def test_the_first_able_one_is_taken_with_all_arguments():
    assert dispatch.call(TABLE, None, 1, 2, key=3) == ("plain", (1, 2), {"key": 3})


def test_a_name_takes_that_one():
    assert dispatch.call(TABLE, "slow", 1)[0] == "slow"


def test_a_named_one_that_is_unable_says_why():
    with pytest.raises(NotImplementedError, match="needs a GPU"):
        dispatch.call(TABLE, "fast")


def test_an_unknown_name_lists_those_that_exist():
    with pytest.raises(ValueError, match=r"'quick' .*'fast', 'plain', 'slow'"):
        dispatch.call(TABLE, "quick")


def test_if_none_is_able_every_reason_is_told():
    table = {"one": unable("no wgmma"), "two": unable("head_dim=96")}
    with pytest.raises(NotImplementedError, match="one: no wgmma; two: head_dim=96"):
        dispatch.call(table, None)


def test_other_errors_are_not_swallowed():
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dispatch.call({"broken": broken, "plain": able("plain")}, None)


def test_the_reference_ends_the_list():
    assert list(IMPLEMENTATIONS)[-1] == "reference"
