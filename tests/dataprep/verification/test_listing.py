import shutil

from tests.support.finished import details, kinds, verify_here


def test_unlisted_files_are_found(damaged):
    copy = damaged("imagenet-webdataset")
    for name in ("train/notes.txt", "index/old.parquet", "imagenet-train.tfrecord-00000-of-00001", "dataset_info.json"):
        copy.write(name, b"x")
    for name in ("README.md", "notes/x.txt", "replicas.json"):
        copy.write(name, b"harmless")
    report = verify_here(copy.root)
    assert kinds(report) == {"extra", "card"}
    assert sorted(finding.where for finding in report.findings if finding.kind == "extra") == [
        "dataset_info.json",
        "imagenet-train.tfrecord-00000-of-00001",
        "index/old.parquet",
        "train/notes.txt",
    ]


def test_an_empty_class_folder_is_found(damaged):
    copy = damaged("imagenet-imagefolder")
    (copy.root / "train/n99999999").mkdir()
    assert "extra train/n99999999: a folder in which the index has no image" in details(verify_here(copy.root))


def test_leftovers_of_a_build_are_a_warning(damaged):
    copy = damaged("imagenet-webdataset")
    copy.write("_build/receipts/00000.parquet", b"x")
    report = verify_here(copy.root)
    assert (report.verdict, kinds(report)) == ("whole", {"leftover"})


def test_missing_and_wrong_links_of_repeats_are_found(damaged):
    copy = damaged("coco-links")
    links = sorted(path.name for path in (copy.root / "train").iterdir())
    assert links == [f"{folder}_{i}" for folder in ("train2017", "unlabeled2017") for i in range(5)]
    (copy.root / "train/train2017_3").unlink()
    (copy.root / "train/unlabeled2017_0").unlink()
    (copy.root / "train/unlabeled2017_0").symlink_to("../images/train2017")
    (copy.root / "train/train2017_5").symlink_to("../images/train2017")
    lines = details(verify_here(copy.root))
    assert "link train/train2017_3: no link, expected one to ../images/train2017" in lines
    assert "link train/unlabeled2017_0: leads to '../images/train2017', expected ../images/unlabeled2017" in lines
    assert "extra train/train2017_5: expected only the links of the repeats" in lines


def test_links_that_lead_out_of_the_dataset_are_not_followed(damaged, tmp_path):
    copy = damaged("imagenet-webdataset")
    (tmp_path / "elsewhere").mkdir()
    (copy.root / "val/more").symlink_to(tmp_path / "elsewhere")
    assert kinds(verify_here(copy.root)) == {"extra"}
    for folder in ("train", "index"):
        shutil.move(copy.root / folder, tmp_path / f"moved-{folder}")
        (copy.root / folder).symlink_to(tmp_path / f"moved-{folder}")
        assert "unread" in kinds(verify_here(copy.root))
