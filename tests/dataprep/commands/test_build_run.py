"""What builds share: the check of a runner before anything is read, and the order of engine and dry run."""

import pytest

from dataprep.commands.build_run import Run, shards_at_once
from dataprep.errors import UsageError
from pipelines.engines import LOCAL


def run_of(runner, part=None, *, detach=False, options=()):
    return Run(output="out", runner=runner, workers=3, part=part, detach=detach, engine_options=options)


def test_the_local_runner_takes_no_options_of_another_engine():
    run_of(LOCAL).choice()
    with pytest.raises(UsageError, match="got options --region=x for another engine than `runner` local, which has no"):
        run_of(LOCAL, options=("--region=x",)).choice()


@pytest.mark.parametrize("runner", [LOCAL, "ray", "FnApiRunner"])
def test_an_engine_whose_job_ends_with_the_command_cannot_be_detached_from(runner):
    with pytest.raises(UsageError, match=f"`detach` with `runner` {runner}: "):
        run_of(runner, detach=True).choice()


def test_a_part_is_built_by_the_local_runner_only():
    with pytest.raises(UsageError, match="`part` with `runner` FnApiRunner, which has its own workers"):
        run_of("FnApiRunner", "1/2")


@pytest.mark.parametrize(
    ("runner", "options", "words"),
    [
        ("Quick", (), "`runner` Quick: unknown; expected local, ray, spark or one of FnApiRunner, "),
        ("DaskRunner", (), "`runner` DaskRunner is refused: it drops data silently"),
        ("FnApiRunner", ("--regoin=x",), "not options of Beam: --regoin=x"),
    ],
)
def test_a_runner_with_which_no_build_can_run_is_refused(runner, options, words):
    with pytest.raises(UsageError) as error:
        run_of(runner, options=options).choice()
    assert words in str(error.value)


def test_a_runner_without_beam_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pipelines.beam.engine", None)
    with pytest.raises(UsageError, match=r"`runner` PortableRunner: .*; pip install 'tpu-dataprep\[beam\]'"):
        run_of("PortableRunner").choice()


def test_shards_in_flight_equal_the_workers_or_the_option_of_the_runner():
    assert shards_at_once(run_of(LOCAL), ("a", "b")) == 3
    assert shards_at_once(run_of(LOCAL, "1/4"), ("a", "b")) == 12
    assert shards_at_once(run_of("FnApiRunner", options=("--direct_num_workers=5",)), ("/a", "/b")) == 5
