#!/usr/bin/env bash
# Shows the whole way on real photographs: originals in COCO's layout -> verified WebDataset shards -> a small masked
# autoencoder trained on them, on XLA's CPU device. It needs no account and no network.
set -euo pipefail
demo=${1:-demo}
export PJRT_DEVICE=CPU CPU_NUM_DEVICES=1 TPU_SKIP_MDS_QUERY=1
step() { printf '\n# %s\n' "$*"; }
say() { printf '$ %s\n' "$*"; "$@"; }

rm -rf "$demo"/{originals,coco-dup5,coco-dup5.html,mae}
step "Originals: 400 crops of photographs in stored zips, 22 of them in odd formats or damaged"
say dataprep demo-data coco "$demo/originals" --images 400 --odd

step "Build: images are read as byte ranges of the zips, checked, shuffled by a seed, and written as tars with an index and a manifest"
say dataprep build coco-dup5 --source "$demo/originals" --output "$demo/coco-dup5" --format webdataset \
    --shard-bytes 8MiB --allow-partial --max-reject-ratio 0.05

step "Verify: compares every byte with the manifest and every record with the index, and decodes every image"
say dataprep verify "$demo/coco-dup5" --deep

step "Inspect: shows what the dataset holds, and what was repaired and rejected, with the reasons"
say dataprep inspect "$demo/coco-dup5" --html "$demo/coco-dup5.html"

step "Bench: measures how many images a second the loader delivers to a training loop"
say dataprep bench "$demo/coco-dup5" --batch-size 32 --image-size 64 --rounds 1 --batches 8

mae=(dataprep-pretrain-mae --data-path "$demo/coco-dup5" --output-dir "$demo/mae" --device xla
    --model mae_vit_micro_patch8 --patch-size 4 --decoder-embed-dim 64 --decoder-depth 2 --input-size 32
    --batch-size 32 --epochs 10 --warmup-epochs 1 --lr 5e-3 --min-crop 0.7 --ckpt-interval 10 --log-interval-steps 50)
step "Train: a masked autoencoder sees a quarter of each image and learns to paint the rest"
say "${mae[@]}"

step "Diagnose: finds out what that run waits for"
say "${mae[@]}" --diagnose || [[ $? == 3 ]] # 3: undecided, because other programs are busy on this machine

step "Result"
python - "$demo/mae/log.txt" <<'END'
import json, pathlib, sys

lines = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
lines = [line for line in lines if "loss" in line]  # the last one says that the run has ended
first, last, steady = lines[0], lines[-1], lines[1:]  # the first line holds the time to compile
wait = sum(line["wait_share"] for line in steady) / len(steady)
rate = sum(line["images_per_s"] for line in steady) / len(steady)
print(f"loss from {first['loss']:.2f} to {last['loss']:.2f} in {last['step']} steps; {rate:.0f} images/s; "
      f"{100 * wait:.1f} % of the time waited for input")
END
cat <<END

Done in $SECONDS s. Look at
  $demo/coco-dup5.html             the dataset
  $demo/mae/diagnosis.html         what the training run waits for
  $demo/mae/reconstruction.png     original, what the model saw, what it paints, both together
The shards are in $demo/coco-dup5, the checkpoint in $demo/mae; tensorboard --logdir $demo/mae shows the run.
Only the demo needs --allow-partial and --max-reject-ratio, because it has 400 images in place of COCO's 241,690, and five
of them are broken on purpose. With train2017.zip and unlabeled2017.zip in DIR, the real build is:
  dataprep build coco-dup5 --source DIR --output gs://BUCKET/coco-dup5 --format webdataset
END
