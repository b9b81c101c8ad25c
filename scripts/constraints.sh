#!/usr/bin/env bash
# Pin every package, for Python 3.11 to 3.13 at once: constraints.txt for the extras of setup.cfg, requirements.txt with
# hashes for those that need no framework, the two lists of packages for TPU VMs, which exclude each other, and the
# environments of the benchmarks' peers. Where the newest version needs a newer Python, older Pythons get the last one
# that serves them. Versions do not change without an option of `uv pip compile` such as --upgrade or
# --upgrade-package NAME. At the end it says what changed: name, old, new.
set -euo pipefail
cd "$(dirname "$0")/.."

before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
files=(constraints.txt dataprep/data/tpu-*.txt benchmarks/*constraints.txt)
cp --parents "${files[@]}" "$before"

compile() { # OUTPUT ARGUMENT...
    .venv/bin/uv pip compile --quiet --no-header --no-annotate --no-emit-index-url --output-file "$@" >/dev/null
}

extras=$(sed -n '/^\[options.extras_require\]/,/^\[tool/s/^\([a-z0-9-]*\) =$/--extra \1/p' setup.cfg | grep -v tpu-)
# shellcheck disable=SC2086  # $extras is several words on purpose
compile constraints.txt --universal --python-version 3.11 $extras setup.cfg "$@"
# The same versions with their hashes, for `pip install --require-hashes`: what builds and loaders need.
# Beam, which is none of them, allows no Pillow 13.
grep -v '^pillow==' constraints.txt > .venv/but-pillow.txt
# shellcheck disable=SC2046
compile requirements.txt --universal --python-version 3.11 --generate-hashes --constraints .venv/but-pillow.txt \
    $(printf -- '--extra %s ' demo report laion hf s3 select metrics) setup.cfg "$@"
for framework in torch jax; do
    pins=dataprep/data/tpu-$framework.txt
    comment=$(head -1 "$pins")
    compile "$pins" --universal --python-version 3.11 --constraints constraints.txt --extra "tpu-$framework" setup.cfg "$@"
    sed -i "1i $comment" "$pins"
done
# torch-tpu needs a newer torch than torch_xla, whose last release is what constraints.txt holds; all else is as there.
pins=dataprep/data/tpu-torch-tpu.txt
comment=$(head -1 "$pins")
grep -vE "^(nvidia-|torch|triton)" constraints.txt > .venv/but-torch.txt
compile "$pins" --universal --python-version 3.12 --constraints .venv/but-torch.txt --extra tpu-torch-tpu setup.cfg "$@"
sed -i "1i $comment" "$pins"
grep -E '^(google-crc32c|msgspec|opencv-python-headless|pillow|simplejpeg|torch|torchvision)==' constraints.txt > .venv/shared.txt
compile benchmarks/peers-constraints.txt --universal --python-version 3.11 --constraints .venv/shared.txt \
    benchmarks/peers.in "$@"
# torchcodec and torchvision of the arena are the newest that fit each other.
grep -vE '^torch' .venv/shared.txt > .venv/shared-without-torch.txt
compile benchmarks/arena-constraints.txt --universal --python-version 3.11 --constraints .venv/shared-without-torch.txt \
    benchmarks/arena.in "$@"
# img2dataset imports imghdr, which Python 3.13 no longer has.
printf '%s\n' img2dataset==1.47.0 pillow 'standard-imghdr; python_version >= "3.13"' |
    compile benchmarks/img2dataset-constraints.txt --universal --python-version 3.11 \
        --constraints .venv/shared.txt - "$@"
for file in "${files[@]}"; do
    .venv/bin/python scripts/pin_changes.py "$before/$file" "$file"
done
