"""Test what the generator produces from the models; test_conventions.py covers the conventions."""

import pytest

from tests.support import crdlint, libyaml
from triton_pipelines.api import crd, structural_schema
from triton_pipelines.api.base import ApiModel

NODES = dict(crdlint.nodes(crd.definition()))


def test_the_text_is_the_definition() -> None:
    assert libyaml.load(crd.render()) == crd.definition()


def test_defaults_that_others_build_on() -> None:
    assert NODES["spec.replicas"]["default"] == 1  # the scale subresource needs it
    assert NODES["status"]["default"] == {
        "observedGeneration": crd.NOT_OBSERVED
    }  # or kstatus takes what nobody has looked at for current


def test_rules_stand_on_their_objects() -> None:
    placed = {
        (rule["rule"], rule["message"])
        for node in NODES.values()
        for rule in node.get("x-kubernetes-validations", [])
    }
    wanted = {
        (rule.cel, rule.message)
        for model in structural_schema.model_classes(ApiModel).values()
        for rule in model.rules
    }
    assert wanted <= placed


def test_a_union_is_refused() -> None:
    class Loose(ApiModel):
        """A model that has no structural form."""

        value: int | str = 1

    with pytest.raises(ValueError, match="union"):
        structural_schema.structural(Loose)
