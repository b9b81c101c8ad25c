#!/usr/bin/env bash
# The main job on real photographs: originals as COCO packs them -> verified WebDataset shards. No account, no network.
set -euo pipefail
demo=${1:-demo}
say() { printf '\n$ %s\n' "$*"; "$@"; }

rm -rf "$demo"
say dataprep demo-data coco "$demo/originals" --images 400 --odd
say dataprep build coco-dup5 --source "$demo/originals" --output "$demo/coco-dup5" --format webdataset \
    --shard-bytes 8MiB --allow-partial --max-reject-ratio 0.05
say dataprep verify "$demo/coco-dup5" --deep
say dataprep inspect "$demo/coco-dup5" --html "$demo/coco-dup5.html"
cat <<END

What this did: real photographs were packed as COCO 2017 packs them (stored zips, odd files among them), read as byte
ranges without unpacking, checked, put into a seeded order and written as WebDataset shards with an index and a manifest;
then every byte was compared and every image decoded. The shards are in $demo/coco-dup5, pictures of them in
$demo/coco-dup5.html. For the real thing:
  dataprep build coco-dup5 --source DIR --output gs://BUCKET/coco-dup5 --format webdataset
END
