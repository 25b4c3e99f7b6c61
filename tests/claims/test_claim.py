"""The table of claims: all 34 there and whole, and what the reader refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from negbench.claims.claim import Condition, chosen, claims, read_claims, read_settings, settings
from negbench.claims.measure import FalseNegatives, Recall
from negbench.claims.planning import plan_claims
from negbench.cli.main import run as negbench
from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.errors import NegbenchError
from negbench.layers import set_layer

TEST = 'statistic = "level", of = "a", measure = "recall", confirms = "> 0", refutes = "< 0"'
KNOWN = {"a": {"system": "qure"}, "b": {"system": "plain"}, "c": {"system": "plain"}}


def read(tmp_path: Path, test: str = TEST, more: str = "", number: int = 1) -> list[str]:
    text = f'[[claim]]\nid = {number}\nwords = "w"\nsource = "s"\npublished = "p"\n{more}\ntests = [{{ {test} }}]\n'
    path = tmp_path / "claims.toml"
    path.write_text(text)
    return [str(test) for claim in read_claims(path, KNOWN) for test in claim.tests]


def test_all_34_claims_are_there_and_every_setting_is_used() -> None:
    assert [claim.number for claim in claims()] == list(range(1, 35))
    for claim in claims():
        assert claim.words.endswith(".")
        assert claim.source
        assert claim.published
        assert claim.tests
    assert {name for claim in claims() for name in claim.settings} == set(settings())


def test_every_setting_resolves_on_tiny_and_synthetic_or_says_why_not(toy_root: Path, tmp_path: Path) -> None:
    base = [set_layer(f"dataset.root='{toy_root}'"), set_layer("train.epochs=12")]
    found = plan_claims(claims(), base, (0,), tmp_path, Display(), Scenes())
    assert set(found.undefined) == {"hycole-slow", "hycole-still", "hycole-fast"}
    assert all("unknown option 'frozen' in backbone 'tiny'" in why for why in found.undefined.values())
    assert set(found.lacking) == {31, 33, 34}
    assert all("--dataset fashioniq" in why for why in found.lacking.values())
    labels = [cell.labels["system"] for cell in found.cells]
    assert sorted(labels) == sorted(set(settings()) - set(found.undefined))
    assert len({cell.hash for cell in found.cells}) == len(labels)  # no two settings are one run here
    config = {cell.labels["system"]: cell.config for cell in found.cells}
    assert config["qure"].schedule.refresh_epochs == (2, 4, 6, 8, 10)
    assert config["qure-no-warmup"].schedule.refresh_epochs == (0, 2, 4, 6, 8, 10)
    assert config["qure-3-negatives"].train.num_negatives == 3
    assert config["fixed-50"].schedule == config["cirqrs"].schedule
    assert config["dqe-30-70"].loss == config["dqe"].loss
    assert config["dqe-30-70"].strategy.options == {"alpha": 0.3, "beta": 0.7, "scale": "absolute"}
    assert config["in-batch-one"].loss.name == "bradley-terry"
    assert config["in-batch"].loss.name == "info-nce"
    assert config["hycole-no-text-composition"].hybrid.alpha == 0 < config["hycole-no-text-composition"].hybrid.beta


def test_clip_can_move_slowly(toy_root: Path, tmp_path: Path) -> None:
    sets = ["backbone.name=clip", "backbone.init=random", "backbone.size=toy", f"dataset.root='{toy_root}'"]
    found = plan_claims(chosen("26,28,29"), list(map(set_layer, sets)), (0,), tmp_path, Display(), Scenes())
    assert found.undefined == {}
    assert found.remarks == []
    config = {cell.labels["system"]: cell.config.backbone.options for cell in found.cells}
    assert [config[f"hycole-{rate}"]["gamma"] for rate in ("slow", "still", "fast")] == [0.001, 1e-12, 1.0]
    assert config["hycole-slow"]["frozen"] is False
    assert (config["hycole"]["projection"], config["hycole"]["fusion"]) == (True, "gated")
    assert config["hycole-sum"]["fusion"] == "sum"
    assert config["in-batch-attributes"]["attribute_weights"] is True
    assert len({cell.hash for cell in found.cells}) == len(found.cells) == 7


def test_lists_stand_for_one_test_each(tmp_path: Path) -> None:
    test = TEST.replace('"level", of = "a"', '"difference", of = ["a", "b"], against = "c"')
    assert read(tmp_path, test) == ["recall: a - c", "recall: b - c"]


def test_conditions() -> None:
    above, below = Condition.parse("> 0.5"), Condition.parse("< -0.005")
    assert above.holds(0.6, 0.7)
    assert not above.holds(0.5, 0.7)
    assert not above.holds(float("nan"), float("nan"))
    assert below.holds(-0.02, -0.01)
    assert not below.holds(-0.02, 0.01)


WHAT_THE_READER_REFUSES: list[tuple[Any, ...]] = [
    (TEST, 'note = "x"', "unknown key 'note'"),
    (TEST, 'needs = ["money"]', "unknown need 'money'"),
    (TEST.replace('"a"', '"d"'), "", "unknown setting 'd'"),
    (TEST.replace('"recall"', '"recal"'), "", "did you mean 'recall'"),
    (TEST.replace('"level"', '"mean"'), "", "unknown statistic 'mean'"),
    (TEST + ", k = 5", "", "unknown key of measure 'recall' 'k'"),
    (TEST + ', against = "b"', "", "has the keys confirms, measure, of, refutes"),
    (TEST.replace('confirms = "> 0", ', ""), "", "has the keys"),
    (TEST.replace('"recall"', '"false-negatives"'), "", "needs band"),
    (TEST.replace('"recall"', '"cirqrs", scorer = "z"'), "", "unknown setting 'z'"),
    (TEST.replace('"> 0"', '">= 0"'), "", "want '> NUMBER'"),
    (TEST.replace('"< 0"', '"< 0.5"'), "", "can both hold"),
    (TEST.replace('"< 0"', '"> 1"'), "", "can both hold"),
]


def test_what_the_reader_refuses(tmp_path: Path) -> None:
    for test, more, says in WHAT_THE_READER_REFUSES:
        with pytest.raises(NegbenchError, match=says.replace("(", r"\(")):
            read(tmp_path, test, more)


def test_more_that_the_reader_refuses(tmp_path: Path) -> None:
    (tmp_path / "claims.toml").write_text("[[claim]]\nid = 3\n")
    with pytest.raises(NegbenchError, match="claim 3 has no words"):
        read_claims(tmp_path / "claims.toml", KNOWN)
    (tmp_path / "settings.toml").write_text('[a]\nsystem = "qur"\n')
    with pytest.raises(NegbenchError, match="did you mean 'qure'"):
        read_settings(tmp_path / "settings.toml")
    with pytest.raises(NegbenchError, match="unknown claim '35' in --only"):
        chosen("3,35")
    assert [claim.number for claim in chosen("17, 5")] == [17, 5]


def test_measures_name_their_options() -> None:
    assert str(Recall()) == "recall"
    assert str(FalseNegatives("501-")) == "false-negatives (band 501-)"


def test_the_list_shows_all_claims_in_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert negbench(["claims", "--list", "--runs-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 80
    assert sum(line.startswith(f"│ {number:<2} │") for number in range(1, 35) for line in lines) == 34
    assert list(tmp_path.iterdir()) == []
