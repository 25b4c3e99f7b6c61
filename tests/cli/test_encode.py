"""`negbench data encode`: the plan, encoding once; test_damage.py has its repairs."""


def test_fills_the_store_once(subtests, toy_root, tmp_path, monkeypatch, run_command):
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    for encoded in (144, 0):
        with subtests.test(encoded=encoded):
            out = run_command("data", "encode", "--dataset", "synthetic", "--data-root", toy_root).out
            assert f"144 images: {encoded} encoded, {144 - encoded} stored before" in out


def test_what_stores_nothing_is_one_line(toy_root, expect_error):
    sets = ["--set", "backbone.init=random", "--set", "backbone.size=toy", "--set", "backbone.frozen=false"]
    expect_error(["data", "encode", "--backbone", "clip", "--data-root", str(toy_root), *sets], "stores no features")
