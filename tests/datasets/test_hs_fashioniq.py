"""HS-FashionIQ: HP-FashionIQ's scores where it has no file of its own, its own file first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import negbench
from negbench.datasets._preferences import PreferenceFormat
from negbench.datasets.hs_fashioniq import HSFashionIQ
from negbench.errors import DataError


def write(path: Path, participant: str, ratings: tuple[int, int]) -> None:
    """A file of one judgement, of which set 2 holds the target."""
    names = [f"/-/image_data/shirt/B{number}.jpg" for number in range(11)]
    sets = {
        f"retrieved_set{side + 1}": [{"img_path": names[1 + 5 * side : 6 + 5 * side], "user_score": str(ratings[side])}]
        for side in (0, 1)
    }
    one = {"ref_img_paths": names[:1], "targ_img_paths": names[8:9], "sentences": ["is red"], "preferred set": ["2"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({participant: {"question_set_1": one | sets}}))


def test_its_own_file_comes_first(tmp_path: Path) -> None:
    write(tmp_path / "hp_fashioniq" / "hpfiq.json", "theirs", (1, 4))
    theirs = HSFashionIQ.load(root=tmp_path, images=False)
    assert theirs.participants == ["theirs"]
    assert theirs.remarks[0] == "there is no hsfiq.json: read from hpfiq.json"
    write(tmp_path / "hs_fashioniq" / "hsfiq.json", "mine", (2, 5))
    mine = HSFashionIQ.load(root=tmp_path, images=False)
    assert mine.participants == ["mine"]
    assert mine.ratings.tolist() == [[2, 5]]
    assert mine.hits.tolist() == [[False, True]]
    assert not any("read from" in remark for remark in mine.remarks)
    assert mine.identity != theirs.identity


def test_neither_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no hpfiq\.json; the data come from") as caught:
        HSFashionIQ.load(root=tmp_path, images=False)
    assert "\n" not in str(caught.value)


@pytest.mark.data
def test_the_real_scores_are_hp_fashioniqs(shared_data: Path) -> None:
    hs, hp = (negbench.load_dataset(name, root=shared_data, images=False) for name in ("hs-fashioniq", "hp-fashioniq"))
    assert isinstance(hs, HSFashionIQ)
    assert isinstance(hp, PreferenceFormat)
    ours, theirs = hs.judge(hs.hits.double()), hp.judge(hp.hits.double())
    assert tuple(ours) == hs.card.metrics
    assert ours["all/spearman"] == theirs["all/spearman"] == pytest.approx(0.1535, abs=5e-5)
    assert not any(name.startswith("consistent/") for name in ours)  # the sanity check is QuRe's
    assert (hs.card.main, hp.card.main) == ("all/spearman", "all/preference_rate")
    assert any("2,743 valid queries" in remark for remark in hs.remarks)
    assert any("2,715 valid queries" in remark for remark in hp.remarks)
    assert not any("2,715" in remark or "sanity" in remark for remark in hs.remarks)
    assert hs.identity != hp.identity
