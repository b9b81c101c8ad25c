"""Records of COCO's files as the values of features."""

import msgspec
import pytest

from dataprep.dataset.features import feature_faults
from dataprep.sources.coco_annotations import KINDS, RECORDS, TYPES, coco_features
from tests.support.coco import small_documents


@pytest.mark.parametrize("kind", KINDS)
def test_records_have_the_columns_of_their_feature(kind):
    """All but those that need the list of categories."""
    feature = coco_features([kind])[RECORDS[kind]]
    for annotation in small_documents()[kind]["annotations"]:
        values = msgspec.convert(annotation, TYPES[kind]).columns()
        for record in values["segments"] if kind == "panoptic" else [values]:
            assert record.keys() == feature.columns.keys() - {"category", "label"}


def test_features_are_those_that_a_manifest_may_have():
    features = coco_features(KINDS)
    assert list(feature_faults(features)) == []
    assert list(features) == sorted(features)
    assert features == {name: feature for kind in KINDS for name, feature in coco_features([kind]).items()}
    assert coco_features([]) == {}
