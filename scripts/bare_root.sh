#!/usr/bin/env bash
# Run a program of a virtual environment in a root that has nothing else but its Python, and the libraries which that
# Python is linked with: no compiler, no linker, no headers, no libjpeg, and no network. It needs no rights, only user namespaces.
#   bare_root.sh ENVIRONMENT PROGRAM
set -euo pipefail
environment=$(realpath "$1") program=$environment/$2

if [ -z "${BARE_ROOT:-}" ]; then
    BARE_ROOT=$(mktemp -d) unshare --map-root-user --mount --net --pid --fork --kill-child --propagation private \
        bash "${BASH_SOURCE[0]}" "$@"
    exit
fi

trap 'umount -l "$BARE_ROOT"; rmdir "$BARE_ROOT"' EXIT
mount -t tmpfs tmpfs "$BARE_ROOT"
mkdir -p "$BARE_ROOT"/{proc,dev/shm,tmp,etc}
mount -t proc proc "$BARE_ROOT/proc"
for device in null zero urandom random; do
    touch "$BARE_ROOT/dev/$device"
    mount --bind "/dev/$device" "$BARE_ROOT/dev/$device"
done
show() { # FOLDER: the same folder in the new root
    mkdir -p "$BARE_ROOT$1"
    mount --rbind "$1" "$BARE_ROOT$1"
}
copy() { # FILE: the file that a link points to, under the link's name
    mkdir -p "$BARE_ROOT$(dirname "$1")"
    cp --dereference "$1" "$BARE_ROOT$1"
}

interpreter=$(realpath "$environment/bin/python")
standard=$("$interpreter" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
copy "$interpreter"
show "$standard"
show "$environment"
# The libraries of Python and its own modules; of the packages only what every platform of their wheels has.
mapfile -t libraries < <(
    { ldd "$interpreter" "$standard"/lib-dynload/*.so | grep -o '/[^ ]*\.so[^ ]*'
      for name in libstdc++.so.6 libgcc_s.so.1 libpthread.so.0 librt.so.1 libdl.so.2; do
          ldconfig -p | grep -F "$name " | grep -o '/[^ ]*$' || true
      done; } | grep -v ':$' | grep -vF lib-dynload | sort -u
)
for library in "${libraries[@]}"; do copy "$library"; done
echo 'root:x:0:0::/tmp:/nowhere' >"$BARE_ROOT/etc/passwd"

chroot=$(command -v chroot)
env -i PATH=/nowhere HOME=/tmp LANG=C.UTF-8 "$chroot" "$BARE_ROOT" "$environment/bin/python" -P "$program"
