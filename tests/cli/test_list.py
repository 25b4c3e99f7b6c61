"""`negbench list KIND NAME`: every option of one plug-in, explained."""

import json

import pytest

from negbench.cli.explain import options_of
from negbench.plugins.registry import KINDS, registry

SET_BY_THE_RUN = {"backbones": {"seed"}, "datasets": {"split", "images"}}


def names_of_options(lines: list[str]) -> list[str]:
    """Return the names in lines such as "  dim = int or none, default none"."""
    return [line.split(" = ")[0].strip() for line in lines if " = " in line and line[2] != " "]


def test_every_option_that_a_user_sets_is_printed_once(subtests, run_command):
    for kind in KINDS:
        for name in registry.plugins(kind):
            with subtests.test(kind=kind, name=name):
                out = run_command("list", kind, name).out
                assert out.startswith(f"{name}  ")
                assert "\nsource: " in out
                options, *fixed = out.split("\nnumbers that no option changes: ")
                assert len(fixed) == len(getattr(registry.get(kind, name), "fixed", ()))
                hidden = SET_BY_THE_RUN.get(kind, set())
                names = [option.name for option in options_of(kind, name) if option.name not in hidden]
                assert names_of_options(options.splitlines()) == names


def test_one_option(run_command):
    out = run_command("list", "backbones", "precomputed").out
    assert "options, as --set backbone.NAME=VALUE or --backbone precomputed:NAME=VALUE:\n" in out
    assert "  dim = int or none, default none\n      width of the shared space" in out
    assert "no options" in run_command("list", "strategies", "all-corpus").out


@pytest.mark.parametrize("arguments", [["list"], ["list", "backbones", "precomputed"]])
def test_on_a_terminal_nothing_is_wider_than_that(arguments, run_command, monkeypatch):
    piped = run_command(*arguments).out
    assert max(map(len, piped.splitlines())) > 100  # one line per item, for grep
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    on_terminal = run_command(*arguments).out
    assert max(map(len, on_terminal.splitlines())) <= 80
    assert on_terminal.split() == piped.split()


def test_a_name_is_found_in_every_kind_that_has_it(run_command):
    """`qure` is a strategy and a system."""
    out = run_command("list", "qure").out
    assert out.startswith("strategies\nqure  Images between")
    assert "\nsystems\n# QuRe (ICML 2025)" in out
    assert run_command("list", "info-nce").out == run_command("list", "losses", "info-nce").out
    assert run_command("list", "qure-cirr").out == run_command("list", "recipes", "qure-cirr").out
    assert set(json.loads(run_command("list", "qure", "--json").out)) == {"strategies", "systems"}


@pytest.mark.parametrize("arguments", [["in-batch+top-k"], ["strategies", "in-batch+top-k"]], ids=["name", "kind"])
def test_a_union_is_explained_with_its_own_option(arguments, run_command):
    out = run_command("list", *arguments).out
    assert out.startswith("in-batch+top-k  A corpus strategy's own draws and a batch strategy's members, in one loss.")
    assert "source: in-batch: " in out
    for option in ("shared = bool, default False", "k = int or str", "halve = bool"):
        assert f"  {option}" in out, option
    assert "pool size, images >= 1 or a share of the gallery" in out
    assert "unknown strategy 'no'" in run_command("list", "in-batch+no", code=2).err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["qur"], "unknown kind or name 'qur'"),
        (["strategie"], "did you mean 'strategies'?"),
        (["qure", "top-k"], "unknown kind 'qure'"),
    ],
    ids=["name", "kind", "two names"],
)
def test_what_is_neither_a_kind_nor_a_name_is_refused(arguments, line, run_command):
    assert line in run_command("list", *arguments, code=2).err
