"""What captions say of the temperature: learned from where and from whom, or fixed."""

from dataclasses import replace
from typing import Any

import pytest

from negbench.analysis.temperature import temperature_text
from negbench.report.finish import _grid
from negbench.report.tables import paper_table
from negbench.systems.system import load_config
from tests.report.test_printed import TABLE

SAYS = [
    ((), {"temperature": 0.07, "temperature_from": "default"}, "temperature learned from 0.07 (default)"),
    ((), {"temperature": 0.051322, "temperature_from": "file"}, "temperature learned from 0.05132 (of the weights)"),
    ((), {"temperature": 0.05, "temperature_from": "option"}, "temperature learned from 0.05 (as set)"),
    (
        ("train.temperature_rate=10", "train.temperature_least=0.02"),
        {"temperature": 0.07, "temperature_from": "default"},
        "temperature learned from 0.07 (default), at least 0.02, at 10 times the rate",
    ),
    (("loss.tau=0.1",), {"temperature": 0.07, "temperature_from": "default"}, "temperature fixed at 0.1"),
    (("hybrid.temperature=own",), {}, "temperatures of the loss's terms, learned from e^-1"),
    (("loss.name=triplet",), {"temperature": 0.07, "temperature_from": "default"}, ""),
    ((), {}, ""),
]


@pytest.mark.parametrize(("sets", "details", "text"), SAYS, ids=[text or str(sets) for sets, _, text in SAYS])
def test_a_run_says_what_divides_its_scores(sets: tuple[str, ...], details: dict[str, Any], text: str):
    config = load_config(flags={"strategy": {"name": "qure"}}, sets=list(sets))
    manifest = {"divisor": config.divisor, "backbone": {"name": "tiny", "details": details}}
    assert temperature_text(config, manifest) == text


def test_a_run_of_before_says_nothing():
    config = load_config(flags={"strategy": {"name": "qure"}}, sets=[])
    details = {"temperature": 0.07, "temperature_from": "default"}
    assert temperature_text(config, {"backbone": {"name": "tiny", "details": details}}) == ""


def test_every_form_of_a_table_has_it(subtests):
    table = replace(TABLE, caption="temperature fixed at 0.1")
    for form in ("latex", "markdown"):
        with subtests.test(form=form):
            assert "all rows: backbone b" in paper_table(table, form)
            assert "negatives 16, temperature fixed at 0.1." in paper_table(table, form)
    assert _grid(table, None).caption.endswith(", temperature fixed at 0.1")
