#!/usr/bin/env bash
# Tests the webhook's image: builds the committed sources in two folders with two target folders, compares the digests,
# checks that the program is static and the image has one layer, and runs it without Kubernetes: read-only, without
# capabilities and without root.
#
# Needs root (crun).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests/cluster/apt.sh buildah crun openssl curl

say() { echo "image: $*" >&2; }
fail() { say "$*"; exit 1; }

work=$(mktemp -d)
container=bursar-webhook-test-$$
ran=
# crun fails with a mix of both versions of cgroups, and needs no cgroups here.
crun() { unshare --mount sh -c 'mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec crun "$@"' crun "$@"; }
end() {
    [ -z "$ran" ] || crun delete --force "$container" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap end EXIT
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR

say "building in two folders"
# Files get the time of the build. Otherwise, cargo could use what another commit left in the target folder.
for folder in one another; do
    mkdir "$work/$folder"
    git archive HEAD | tar -xmC "$work/$folder"
done
mapfile -t first < <("$work/one/packaging/image.sh")
archive=$work/first.tar
cp "${first[0]}" "$archive"
mapfile -t second < <(CARGO_TARGET_DIR=$work/target "$work/another/packaging/image.sh")
[ "${#first[@]}${#second[@]}" = 22 ] || fail "a build failed"
[ "${first[1]}" = "${second[1]}" ] || fail "two builds have different digests: ${first[1]} ${second[1]}"
say "${first[1]}"

say "checking the unpacked image"
mkdir -p "$work/oci" "$work/rootfs"
tar -C "$work/oci" -xf "$archive"
blob() { echo "$work/oci/blobs/sha256/${1#sha256:}"; }
manifest=$(blob "$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["manifests"][0]["digest"])' "$work/oci/index.json")")
mapfile -t layers < <(python3 -c 'import json,sys; [print(l["digest"]) for l in json.load(open(sys.argv[1]))["layers"]]' "$manifest")
[ "${#layers[@]}" = 1 ] || fail "the image has ${#layers[@]} layers instead of one"
tar -C "$work/rootfs" -xf "$(blob "${layers[0]}")"
[ "$(cd "$work/rootfs" && find . -type f)" = ./bursar-webhook ] || fail "the image contains more than the program: $(find "$work/rootfs")"

say "running the image"
free_ports='import socket; both = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]; print(*[s.getsockname()[1] for s in both])'
read -r port health < <(python3 -c "$free_ports")
files=$work/files
mkdir "$files"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost -keyout "$files/tls.key" -out "$files/tls.crt" 2>/dev/null
echo '{"version": 1, "cluster": "test", "daemon": "bursar:daemon", "exempt": [], "classes": {}}' >"$files/rules.json"
head -c 32 /dev/urandom | base64 >"$files/seal.pub"
ca=$(base64 -w0 <"$files/tls.crt")
cat >"$files/kubeconfig" <<END
{"apiVersion": "v1", "kind": "Config", "current-context": "test",
 "clusters": [{"name": "test", "cluster": {"server": "https://localhost:1", "certificate-authority-data": "$ca"}}],
 "users": [{"name": "test", "user": {"token": "none"}}],
 "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]}
END
chmod 755 "$work" "$files" && chmod 644 "$files"/*
cat >"$work/config.json" <<END
{"ociVersion": "1.0.0",
 "process": {"user": {"uid": 65532, "gid": 65532}, "cwd": "/", "noNewPrivileges": true, "env": [],
   "args": ["/bursar-webhook", "--dir", "/files", "--listen", "127.0.0.1:$port", "--health", "127.0.0.1:$health"],
   "capabilities": {"bounding": [], "effective": [], "inheritable": [], "permitted": []}},
 "root": {"path": "rootfs", "readonly": true},
 "mounts": [{"destination": "/files", "type": "bind", "source": "$files", "options": ["rbind", "ro"]},
   {"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}], "resources": {}}}
END
mkdir "$work/rootfs/"{dev,files,proc}
crun --cgroup-manager=disabled run --detach --bundle "$work" "$container" </dev/null >"$work/log" 2>&1 &
ran=1
until curl -sf http://127.0.0.1:$health/healthz >/dev/null; do
    [ "$((tries = ${tries:-0} + 1))" -lt 100 ] || fail "the program does not answer: $(cat "$work/log")"
    sleep 0.1
done
ready=$(curl -s http://127.0.0.1:$health/readyz)
case $ready in *"namespaces are not listed yet"*) ;; *) fail "the program is ready without an API server: $ready" ;; esac
review='{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "operation": "CREATE",
  "resource": {"group": "", "version": "v1", "resource": "pods"}, "namespace": "tool-foo", "object": {"spec": {}}}}'
answer=$(curl -s --cacert "$files/tls.crt" --data "$review" https://localhost:$port/validate)
case $answer in *'"allowed":false'*) ;; *) fail "a pod without an identity is not refused: $answer" ;; esac
crun kill "$container" TERM
until [ "$(crun state "$container" | python3 -c 'import json,sys; print(json.load(sys.stdin)["status"])')" = stopped ]; do
    [ "$((ends = ${ends:-0} + 1))" -lt 100 ] || fail "the program does not end"
    sleep 0.1
done
say "all checks passed"
