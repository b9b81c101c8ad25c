#!/usr/bin/env bash
# Shows the whole way on real photographs: originals in COCO's layout -> verified WebDataset shards -> a small masked
# autoencoder trained on them, on XLA's CPU device. It needs no account and no network.
set -euo pipefail
demo=${1:-demo}
export PJRT_DEVICE=CPU CPU_NUM_DEVICES=1 TPU_SKIP_MDS_QUERY=1
step() { printf '\n# %s\n' "$*"; }
say() { printf '$ %s\n' "$*" >&2; "$@"; }

rm -rf "$demo"/{originals,coco-dup5,coco-dup5.html,mae}
step "Originals: 400 crops of photographs in stored zips, 22 of them in odd formats or damaged"
say dataprep demo-data coco "$demo/originals" --images 400 --odd

step "Build: images are read as byte ranges of the zips, checked, shuffled by a seed, and written as tars with an index and a manifest"
say dataprep build coco-dup5 --source "$demo/originals" --output "$demo/coco-dup5" --format webdataset \
    --shard-bytes 8MiB --allow-partial --max-reject-ratio 0.05

step "Verify: compares every byte with the manifest and every record with the index, and decodes every image"
say dataprep verify "$demo/coco-dup5" --deep

step "Inspect: shows what the dataset holds, and what was repaired and rejected, with the reasons"
say dataprep inspect "$demo/coco-dup5" --html "$demo/coco-dup5.html" | sed -n '/^train/,/^  height/p'

step "Bench: measures how many images a second the loader delivers to a training loop"
say dataprep bench "$demo/coco-dup5" --batch-size 32 --image-size 64 --rounds 1 --batches 8 | sed -n '1,6{/./p}'

mae=(dataprep-pretrain-mae --data-path "$demo/coco-dup5" --output-dir "$demo/mae" --device xla
    --model mae_vit_micro_patch8 --patch-size 4 --decoder-embed-dim 64 --decoder-depth 2 --input-size 32
    --batch-size 32 --epochs 10 --warmup-epochs 1 --lr 5e-3 --min-crop 0.7 --ckpt-interval 10 --log-interval-steps 50)
step "Train: a masked autoencoder sees a quarter of each image and learns to paint the rest"
say "${mae[@]}" > /dev/null # its log lines, which mae/log.txt has, too

step "Diagnose: finds out what that run waits for"
printf '$ … the same, with --diagnose\n'
"${mae[@]}" --diagnose 2> "$demo/mae/diagnose.txt" | sed -n 1p || {
    [[ $? == 3 ]] || { cat "$demo/mae/diagnose.txt" >&2; exit 1; } # 3: undecided, because other programs are busy here
}

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

The demo worked, in $SECONDS s. Look at
  $demo/coco-dup5.html             the dataset
  $demo/mae/diagnosis.html         what the training run waits for
  $demo/mae/reconstruction.png     original, what the model saw, what it paints, both together
With COCO's own train2017.zip and unlabeled2017.zip in DIR, all images are there and none is broken on purpose:
  dataprep build coco-dup5 --source DIR --output gs://BUCKET/coco-dup5 --format webdataset
END
