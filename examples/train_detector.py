"""Train torchvision's Faster R-CNN or Mask R-CNN, small and from random weights, on complete images in a letterbox.

python train_detector.py SHARDS [fasterrcnn | maskrcnn] [EPOCHS]      SHARDS as `dataprep build coco` writes them
"""

import sys

import torch
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.rpn import AnchorGenerator

from loaders import AnnotationFields, AnnotationTransform, open_loader
from loaders.torch import TorchBatch, TorchBatches

BATCH, SIDE, CLASSES = 4, 128, 80  # labels of COCO's objects are 0 to 79
KINDS = {"fasterrcnn": FasterRCNN, "maskrcnn": MaskRCNN}
ANNOTATIONS = AnnotationTransform(AnnotationFields(masks="segmentation"))  # boxes and masks move with their image
LOADER = {"image_size": SIDE, "resize": "letterbox", "fields": ANNOTATIONS.needed_fields, "transform": ANNOTATIONS}


def targets_of(batch: TorchBatch) -> list[dict[str, torch.Tensor]]:
    """Return torchvision's targets: boxes as left, top, right, bottom; labels from 1, because 0 is the background."""
    targets = []
    for objects in batch.fields["objects"]:
        single = [place for place, is_crowd in enumerate(objects["is_crowd"]) if not is_crowd]
        boxes = torch.as_tensor(objects["bbox"], dtype=torch.float32)[single]
        boxes[:, 2:] += boxes[:, :2]  # COCO's are left, top, width, height
        labels = torch.tensor(objects["label"], dtype=torch.int64)[single] + 1
        targets.append({"boxes": boxes, "labels": labels, "masks": torch.as_tensor(objects["segmentation"])[single]})
    return targets


def model_of(kind: str) -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [torch.nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), torch.nn.ReLU()]
    backbone = torch.nn.Sequential(*layers)
    backbone.out_channels = 64
    anchors = AnchorGenerator(sizes=((16, 32, 64, 96),), aspect_ratios=((0.5, 1.0, 2.0),))
    small = {"rpn_post_nms_top_n_train": 100, "rpn_batch_size_per_image": 64, "box_batch_size_per_image": 32}
    return KINDS[kind](backbone, CLASSES + 1, rpn_anchor_generator=anchors, min_size=SIDE, max_size=SIDE, **small)


def main(url: str, kind: str = "fasterrcnn", epochs: str = "1") -> None:
    torch.manual_seed(0)
    model = model_of(kind).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with open_loader(url, batch_size=BATCH, **LOADER) as loader:
        batches = TorchBatches(loader)
        while batches.epoch < int(epochs):
            for batch in batches:
                images = list(batch.images.permute(0, 3, 1, 2).float() / 255)  # the model itself normalises them
                loss = sum(model(images, targets_of(batch)).values())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"step {batch.state['position'] // BATCH}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
