"""Tags on the command line."""

from __future__ import annotations

from tests.cli.conftest import Shell, Stage


def test_a_start_gives_tags_by_which_runs_are_listed(stage: Stage, shell: Shell) -> None:
    for number, tenant in enumerate(("acme", "acme", "other")):
        tags = ["--tag", f"tenant={tenant}", "--tag", f"order={number}"]
        assert shell("start", "cli.echo", "1", "--id", f"r{number}", *tags).lines == [f"r{number}"]
    assert shell("list", "--tag", "tenant=acme", "-o", "ids").lines == ["r1", "r0"]
    assert shell("list", "--tag", "tenant=acme", "--tag", "order=0", "-o", "ids").lines == ["r0"]
    assert shell("list", "--tag", "tenant:acme", "-o", "ids").lines == ["r1", "r0"]  # with a colon it is the same
    assert shell("list", "tag:tenant=other", "-o", "ids").lines == ["r2"]
    assert "order=2, tenant=other" in shell("show", "r2").out
    assert shell("show", "r2", "-o", "json").json["tags"] == {"order": "2", "tenant": "other"}


def test_what_no_tag_is_is_a_wrong_use(stage: Stage, shell: Shell) -> None:
    for arguments in (["--tag", "a=b", "--tag", "a=c"], ["tag:tenant"], ["tag:a b=c"]):
        done = shell("list", *arguments)
        assert (done.status, "tag" in done.err) == (2, True), (arguments, done)
    for arguments in (
        ["list", "--tag", "tenant"],
        ["list", "--tag", "a b=c"],
        ["start", "cli.echo", "1", "--tag", "a="],
    ):
        done = shell(*arguments)
        assert done.status != 0
        assert "argument --tag: " in done.err
    assert shell("start", "cli.echo", "1", "--tag", "a=b", "--tag", "a=c").status == 2
