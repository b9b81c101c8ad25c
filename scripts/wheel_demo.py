"""Use an installed wheel as the demo does: build shards, also with restart markers, and load them with the extension.

`scripts/bare_root.sh` runs this where there is no compiler and no libjpeg; `make wheel` calls it for every Python.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
from pathlib import Path

IMAGES = 60


def main() -> None:
    """Print what was done; the exit status is 0 only if all of it was right."""
    check_bareness()
    warnings.simplefilter("error")
    from loaders import open_decoder

    decoder = open_decoder()
    expect(decoder.backend == "extension", f"the decoder is {decoder.name}")
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_demo(Path(folder))
        compared = compare_pixels(Path(folder))
    version = ".".join(str(part) for part in sys.version_info[:3])
    print(f"Python {version}: {decoder.backend} ({decoder.name}), {loaded} images loaded, {compared} crops as Pillow's")


def check_bareness() -> None:
    """Refuse a machine that could compile, or that has a libjpeg."""
    tools = [
        name for name in ("cc", "gcc", "clang", "ld", "as") if shutil.which(name, path="/usr/bin:/bin:/usr/local/bin")
    ]
    libraries = [path for root in ("/usr", "/lib", "/lib64") for path in Path(root).glob("**/libjpeg*")]
    expect(not tools and not libraries, f"found {tools} and {libraries}")


def load_demo(folder: Path) -> int:
    """Make the demo's originals, build shards as they are and with restart markers, and load both."""
    from loaders import open_loader

    program = Path(sys.executable).with_name("dataprep")
    dataprep(program, "demo-data", "coco", folder / "originals", "--images", IMAGES)
    loaded = 0
    for policy in ("untouched", "restart"):
        shards = folder / policy
        options = ("--source", folder / "originals", "--output", shards, "--format", "webdataset", "--jpeg", policy)
        dataprep(program, "build", "coco-dup5", *options, "--allow-partial")
        with open_loader(str(shards), batch_size=10, image_size=64, processes=1) as loader:
            expect(loader.state_dict()["sequence"]["decoder"].startswith("libjpeg-turbo "), "another decoder")
            loaded += sum(len(batch.images) for batch in loader)
    return loaded


def images_of(folder: Path) -> list[bytes]:
    """Return the images of all shards below a folder."""
    found = []
    for path in sorted(folder.rglob("*.tar")):
        with tarfile.open(path) as shard:
            found += [shard.extractfile(each).read() for each in shard if each.name.endswith(".jpg")]
    return found


def compare_pixels(folder: Path) -> int:
    """Compare crops with those that Pillow decodes and scales, which must be equal; return how many there were."""
    import numpy as np
    from PIL import Image

    from loaders import open_decoder
    from loaders.decode.crop import train_views

    decoder, out = open_decoder(), np.zeros((1, 96, 96, 3), np.uint8)
    images = images_of(folder)
    for number, data in enumerate(images):
        height, width = decoder.image_size(data)
        (view,) = train_views(0, [number], [height], [width], size=96)
        expect(decoder.decode_many([data], [view], out, [0]) == [None], "a photograph could not be decoded")
        box = view.left, view.top, view.left + view.width, view.top + view.height
        scaled = Image.open(io.BytesIO(data)).convert("RGB").crop(box).resize((96, 96), Image.Resampling.BICUBIC)
        expected = np.asarray(scaled)
        expect(np.array_equal(out[0], expected[:, ::-1] if view.flip else expected), "pixels are not those of Pillow")
    return len(images)


def dataprep(program: Path, *arguments: object) -> None:
    """Run a command of the toolkit."""
    words = [str(word) for word in (sys.executable, program, *arguments)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    expect(done.returncode == 0, f"{' '.join(words)}\n{done.stdout}")


def expect(condition: bool, what: str) -> None:
    """End the program with a message if a condition does not hold."""
    if not condition:
        raise SystemExit(f"Python {sys.version.split()[0]}: {what}")


if __name__ == "__main__":
    main()
