#!/usr/bin/env bash
# Builds the webhook's image: one static program in one layer, without a base image. The same sources give the same
# digest.
#
#   stdout: the archive (OCI), and the image's digest
#   stderr: progress
#
# IMAGE is the name of the image; BUILDAH_STORE is buildah's working folder. No registry and no daemon is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests/cluster/apt.sh buildah

version=$(awk -F'"' '$1 == "version = " { print $2; exit }' Cargo.toml)
image=${IMAGE:-localhost/bursar-webhook:$version}
target=${CARGO_TARGET_DIR:-target}
triple=$(rustc -vV | awk '$1 == "host:" { print $2 }')
cargo_home=${CARGO_HOME:-$HOME/.cargo}

# The program is static, because the image has no libraries. Paths of this machine are kept out of the program, so that
# every checkout builds the same one; cargo names our own files relative to the checkout. Without --target, procedural
# macros would be static too, and the compiler could not load them.
flags="-C target-feature=+crt-static --remap-path-prefix=$(realpath -m "$target")=/target"
flags="$flags --remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$(rustc --print sysroot)=/rust"
RUSTFLAGS=$flags SOURCE_DATE_EPOCH=0 CARGO_TARGET_DIR=$target/image \
    nice cargo build --locked --release --target "$triple" -p bursar-webhook >&2

program=$target/image/$triple/release/bursar-webhook
! readelf -l "$program" | grep -q INTERP || { echo "image: $program is not static" >&2; exit 1; }

store=${BUILDAH_STORE:-$(realpath "$target")/image/store}
# vfs and chroot need no special support of the kernel, and no further rights of the user.
b() { buildah --storage-driver vfs --root "$store" --runroot "$store.run" "$@"; }
container=$(b from scratch)
trap 'b rm "$container" >/dev/null' EXIT
folder=$(mktemp -d)
install -m 0755 "$program" "$folder/bursar-webhook"
touch -d @0 "$folder/bursar-webhook"
b copy --quiet "$container" "$folder/bursar-webhook" /bursar-webhook >&2
rm -r "$folder"
b config --entrypoint '["/bursar-webhook"]' --cmd '' --user 65532:65532 --port 9443 --port 9444 \
    --label org.opencontainers.image.title=bursar-webhook --label "org.opencontainers.image.version=$version" \
    --label org.opencontainers.image.licenses=Apache-2.0 --created-by bursar "$container"
# A fixed timestamp, so that the digest does not depend on the time of the build.
b commit --quiet --timestamp 0 --format oci "$container" "$image" >&2
archive=$target/image/bursar-webhook.tar
rm -f "$archive"
b push --quiet --digestfile "$archive.digest" "$image" "oci-archive:$archive:$image" >&2
echo "$archive"
cat "$archive.digest"; echo
