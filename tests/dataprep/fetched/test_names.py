"""Names of fetched shards: of their number alone, so that nothing is renamed when shards are added."""

from dataprep.fetched.names import built_names


def test_files_of_a_shard_are_named_by_its_number():
    names = built_names("laion", "webdataset", "train", 5)
    assert names.samples_file(12) == "train/00012.tar"
    assert (names.parquet_file(12), names.stats_file(12)) == ("train/00012.parquet", "train/00012_stats.json")
    assert built_names("laion", "tfrecord", "train", 6).samples_file(12) == "laion-train.tfrecord-000012"
    assert built_names("datacomp-1b", "tfrecord", "train", 5).samples_file(0) == "datacomp_1b-train.tfrecord-00000"
    assert built_names("datacomp-1b", "webdataset", "train", 5).samples_file(0) == "train/00000.tar"
