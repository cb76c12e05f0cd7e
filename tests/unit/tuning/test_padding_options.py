"""Test which paddings a pipeline can have, their effect, and how a run uses the verdict."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import builders
from tests.unit.tuning.test_padding_cost import BUCKETS, CPU, FIXED, GPU, LENGTHS, LONGEST, RAGGED
from tests.unit.tuning.test_prediction import PIPE
from tests.unit.tuning.test_selection import measured
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.tuning_status import TuningStatus
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Graph, build, check
from triton_pipelines.compile.graph.resource_patch import PaddingSetting, patch_pipeline
from triton_pipelines.tools.tuner import BatchingSetting, TuningOptions, TuningReport, status_of
from triton_pipelines.tools.tuner.acceptance import decide
from triton_pipelines.tools.tuner.calibration import StepExecutions
from triton_pipelines.tools.tuner.padding_candidates import NEEDS_OTHER_FILES, padding_candidate
from triton_pipelines.tools.tuner.padding_cost import PaddingRanking
from triton_pipelines.tools.tuner.padding_options import PaddingOptions
from triton_pipelines.tools.tuner.prediction import (
    PaddingEffect,
    PipelineModel,
    StepModel,
    capacity,
)
from triton_pipelines.tools.tuner.profiling import PipelineProfile
from triton_pipelines.tools.tuner.report_builder import build_report
from triton_pipelines.tools.tuner.report_findings import TuningFindings
from triton_pipelines.tools.tuner.selection import PredictedSetting, predict_settings, rank
from triton_pipelines.tools.tuner.settings import setting_of, setting_patch
from triton_pipelines.tools.tuner.step_time_fit import StepCost
from triton_pipelines.tools.tuner.workload import Workload

GPU_STEP: dict[str, Any] = {"model": {"maxBatchSize": 32}}
PLAN: dict[str, Any] = {"model": {"platform": "tensorrt_plan", "maxBatchSize": 32}}
OWN_CODE: dict[str, Any] = {
    "model": {
        "platform": "python",
        "source": None,
        "python": {"code": {"inline": "class TritonPythonModel: pass"}},
    }
}
WORK = Workload((), LENGTHS, "a mix", 1, ("TEXT",))


def rebuilding(built: builders.Built) -> Any:
    def rebuild(pipeline: InferencePipeline) -> Graph:
        return build(pipeline, built.options)

    return rebuild


def paddings(built: builders.Built, work: Workload = WORK) -> PaddingOptions:
    return PaddingOptions(built.pipeline, built.graph, rebuilding(built), work)


def ranking(
    built: builders.Built,
    token_lengths: tuple[int, ...] = (20, 32, 90),
    work: Workload = WORK,
    cost: StepCost = GPU,
) -> PaddingRanking | None:
    equal_lengths = any(
        entry.tensor.variable and not entry.ragged for entry in built.graph.steps[1].inputs
    )
    pipe = PipelineModel(
        (PIPE.stages[0], StepModel("model", cost, 32, equal_lengths=equal_lengths)),
        LENGTHS,
        1,
        "tokenizer",
        "model",
    )
    profile = PipelineProfile(pipe, {}, 128, 1, (), token_lengths)
    return paddings(built, work).rank_paddings(
        pipe, profile, StepExecutions({12: 100}, 1e-3), setting_of(built.graph)
    )


def found(ranking: PaddingRanking) -> dict[str, str]:
    return {one.candidate.padding.mode: one.candidate.blocker for one in ranking.costs}


def test_a_file_that_would_have_to_be_adapted_first_is_advised_and_not_tried() -> None:
    built = builders.built(**GPU_STEP, tokenizer={"padding": "Fixed"})
    judged = ranking(built)
    assert judged is not None
    assert found(judged) == {
        "Ragged": NEEDS_OTHER_FILES,
        "Longest": "",
        "Fixed": "",
        "Bucketed": "",
    }
    assert judged.best.candidate.padding == RAGGED
    assert judged.trial is not None
    assert judged.trial.candidate.padding.mode in ("Bucketed", "Longest")


def test_an_adapted_file_is_not_fed_padded_rows() -> None:
    judged = ranking(builders.built(**GPU_STEP))
    assert judged is not None
    assert judged.current.candidate.padding == RAGGED
    assert {mode for mode, why in found(judged).items() if why == ""} == {"Ragged"}
    assert not judged.is_better
    assert judged.trial is None


def test_a_plan_can_be_padded_in_every_way_but_ragged() -> None:
    built = builders.built(**PLAN)
    judged = ranking(built)
    assert judged is not None
    assert found(judged) == {"Longest": "", "Fixed": "", "Bucketed": ""}
    bucketed = next(
        one.candidate.padding for one in judged.costs if one.candidate.padding.mode == "Bucketed"
    )
    assert bucketed.buckets[-1] == 512


def test_buckets_lie_in_the_profiles_of_a_plan() -> None:
    profiles = [
        {"min": 40, "max": 128, "maxBatchSize": 64},
        {"min": 129, "max": 512, "maxBatchSize": 64},
    ]
    model = PLAN["model"] | {
        "lengths": {"profiles": profiles},
        "instances": {"profiles": ["0", "1"]},
    }
    judged = ranking(builders.built(model=model), cost=CPU)
    assert judged is not None
    bucketed = next(
        one.candidate.padding for one in judged.costs if one.candidate.padding.mode == "Bucketed"
    )
    assert all(bucket >= 40 for bucket in bucketed.buckets)
    assert "Longest" not in found(judged), "short texts would lie below every profile"
    free = ranking(builders.built(**PLAN), cost=CPU)
    assert free is not None
    assert (
        min(
            next(
                one.candidate.padding.buckets
                for one in free.costs
                if one.candidate.padding.mode == "Bucketed"
            )
        )
        < 40
    )


def test_own_code_needs_no_padding_and_gets_no_buckets() -> None:
    judged = ranking(builders.built(**OWN_CODE, tokenizer={"padding": "Fixed"}))
    assert judged is not None
    assert found(judged) == {"Ragged": "", "Longest": "", "Fixed": ""}
    assert judged.trial is not None
    assert judged.trial.candidate.padding == RAGGED


def test_paddings_are_not_ranked_without_lengths() -> None:
    built = builders.built(**PLAN)
    assert ranking(built, token_lengths=(512,)) is None
    assert ranking(built, work=Workload((), (1,), "an example", 1)) is None


def test_steps_are_timed_with_rows_of_several_lengths() -> None:
    shape = paddings(builders.built(**PLAN)).timing()
    assert shape is not None
    assert shape.padding is Padding.BUCKETED
    assert shape.buckets == (*sorted(WORK.profile_lengths), 512)
    assert paddings(builders.built(**GPU_STEP)).timing() is None, (
        "each request keeps its own length already"
    )
    assert (
        paddings(builders.built(**PLAN), Workload((), (30,), "alike", 1, ("TEXT",))).timing()
        is None
    )


@pytest.mark.parametrize("spec", [PLAN, OWN_CODE])
@pytest.mark.parametrize(
    "before", [{}, {"padding": "Bucketed", "buckets": [16, 64]}, {"padding": "Longest"}]
)
@pytest.mark.parametrize("wanted", [LONGEST, FIXED, BUCKETS])
def test_a_patch_makes_the_padding_and_a_valid_resource(
    spec: dict[str, Any], before: dict[str, Any], wanted: PaddingSetting
) -> None:
    built = builders.built(**spec, tokenizer=before)
    current = setting_of(built.graph)
    patch = setting_patch(
        built.pipeline,
        current,
        BatchingSetting(current.max_batch_size, 0, 1, current.tokenizer_instances, wanted),
    )
    after = patch_pipeline(built.pipeline, patch)
    graph = build(after, built.options)
    assert graph.padding is not None
    assert (graph.padding.chosen.value, graph.padding.buckets) == (wanted.mode, wanted.buckets)
    assert check(after, graph, built.options) == []
    assert set(patch["spec"]) == {"tokenizer"}


def test_a_way_that_the_checks_refuse_is_none() -> None:
    built = builders.built(**PLAN)
    assert padding_candidate(built.pipeline, built.graph, rebuilding(built), RAGGED) is None
    assert (
        padding_candidate(
            built.pipeline, built.graph, rebuilding(built), PaddingSetting("Bucketed", (700, 512))
        )
        is None
    )


def test_a_setting_with_another_padding_is_predicted_by_what_that_makes_of_the_steps() -> None:
    padding_effects = {
        PaddingSetting(): PaddingEffect(Padding.FIXED, (512,), frozenset({"model"})),
        RAGGED: PaddingEffect(Padding.RAGGED, (512,), frozenset()),
    }
    pipe = PipelineModel(
        PIPE.stages,
        LENGTHS,
        1,
        "tokenizer",
        "model",
        Padding.FIXED,
        (512,),
        padding_effects=padding_effects,
    )
    ragged = pipe.with_setting(BatchingSetting(32, 0, 1, 1, RAGGED))
    assert ragged.padding is Padding.RAGGED
    assert [stage.equal_lengths for stage in ragged.stages] == [False, False]
    assert capacity(ragged) > 2 * capacity(pipe.with_setting(BatchingSetting(32, 0, 1, 1)))
    back = ragged.with_setting(BatchingSetting(32, 0, 1, 1))
    assert back.padding is Padding.FIXED
    assert [stage.equal_lengths for stage in back.stages] == [False, True]


def test_of_settings_that_carry_the_same_the_padding_stays() -> None:
    settings = [
        PredictedSetting(BatchingSetting(64, 0, 1, 1, RAGGED), 101.0, 200.0),
        PredictedSetting(BatchingSetting(8, 0, 1, 1), 100.0, 200.0),
    ]
    assert rank(settings)[0].setting.padding == PaddingSetting()
    settings[0] = PredictedSetting(BatchingSetting(64, 0, 1, 1, RAGGED), 110.0, 200.0)
    assert rank(settings)[0].setting.padding == RAGGED


def reported(
    padding: PaddingRanking | None, setting: BatchingSetting, refused: str = ""
) -> TuningReport:
    """A report in which ``setting`` are proven, of a pipeline with own code and padding Fixed."""
    built = builders.built(**OWN_CODE, tokenizer={"padding": "Fixed"}, slo={"p99Milliseconds": 35})
    current = setting_of(built.graph)
    points = [
        measured(current, 400, 0.02),
        measured(setting, 600, 0.02),
        measured(current, 600 / 1.05, 0.08),
    ]
    padding_effects = {
        PaddingSetting(): PaddingEffect(Padding.FIXED, (512,), frozenset()),
        RAGGED: PaddingEffect(Padding.RAGGED, (512,), frozenset()),
    }
    pipe = PipelineModel(
        PIPE.stages,
        LENGTHS,
        1,
        "tokenizer",
        "model",
        Padding.FIXED,
        (512,),
        padding_effects=padding_effects,
    )
    return build_report(
        TuningFindings(
            pipeline=built.pipeline,
            graph=built.graph,
            options=TuningOptions(),
            slo=0.035,
            latency_budget=0.03,
            work=WORK,
            pipe=pipe,
            predictions=predict_settings(pipe, [current, setting], current, 0.03),
            grid=[current, setting],
            measured=points,
            executed=[{} for _ in points],
            decision=decide(current, points, 0.03, [setting]),
            current=current,
            notes=(),
            padding=padding,
            padding_refused=refused,
        )
    )


def test_a_proven_padding_is_in_the_patch_and_in_the_status() -> None:
    judged = ranking(builders.built(**OWN_CODE, tokenizer={"padding": "Fixed"}))
    made = reported(judged, BatchingSetting(64, 0, 1, 1, RAGGED))
    assert made.patch == {"spec": {"tokenizer": {"padding": "Ragged"}}}
    assert "Ragged is cheapest, and this was verified on the server" in made.advice
    status = status_of(made)
    assert status["padding"].startswith("Ragged is cheapest: Ragged ")
    assert "Fixed" in status["padding"]
    assert [point.get("padding", "") for point in status["points"][:3]] == ["", "Ragged", ""]
    assert TuningStatus.model_validate(status).padding == made.padding


def test_a_padding_that_changes_answers_is_said_and_not_in_the_patch() -> None:
    judged = ranking(builders.built(**OWN_CODE, tokenizer={"padding": "Fixed"}))
    made = reported(
        judged,
        BatchingSetting(32, 0, 1, 1),
        "output TOKENS differs: shape [1, 32] instead of [1, 512]",
    )
    assert made.patch == {"spec": {"model": {"maxBatchSize": 32}}}
    assert (
        "Ragged was predicted to be cheapest but is not recommended: output TOKENS differs"
        in made.advice
    )


def test_without_a_verdict_nothing_is_said_of_padding() -> None:
    made = reported(None, BatchingSetting(32, 0, 1, 1))
    assert made.padding == ""
    assert "Padding:" not in made.advice
    assert "padding" not in status_of(made)
