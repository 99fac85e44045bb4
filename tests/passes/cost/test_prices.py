"""Measured prices: what the file says is what its records have, with a source each."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from stepwell.passes.cost.machine.prices import DATA, prices


@dataclass(frozen=True)
class Scalars:
    unit_ns: float
    number_ns: float


def test_a_record_has_the_fields_of_its_section():
    with pytest.raises(TypeError, match=r"prices.json, section 'cpu_scalar_code': fields \['nest_ns'\] are in"):
        prices("cpu_scalar_code", Scalars)


def test_a_section_that_is_not_there_is_named():
    with pytest.raises(KeyError, match="cpu_vector_code"):
        prices("cpu_vector_code", Scalars)


def test_each_section_says_where_its_figures_are_from():
    assert all(section["source"] for section in json.loads(DATA.read_text(encoding="utf-8")).values())
