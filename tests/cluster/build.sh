#!/usr/bin/env bash
# Builds the control plane that the tests and the demo start: etcd, kube-apiserver, kube-controller-manager, kubectl.
#
#   stdout: the folder that holds the four binaries, as its only line
#   stderr: progress
#
# Built once (about 5 to 10 minutes on 2 cores) and kept in
# ${BURSAR_TEST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/bursar}/cluster. If KUBEBUILDER_ASSETS is set (etcd, kube-apiserver,
# kubectl, perhaps kube-controller-manager), only the programs that are missing in that folder are built.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here"

# In the order in which they are built.
tools=(etcd kube-apiserver kube-controller-manager kubectl)
package_of() {
    case $1 in
        etcd) echo go.etcd.io/etcd/server/v3 ;;
        *) echo "k8s.io/kubernetes/cmd/$1" ;;
    esac
}

say() { echo "cluster: $*" >&2; }

assets=${KUBEBUILDER_ASSETS:-}
assets_have() { [ -n "$assets" ] && [ -x "$assets/$1" ]; }
if assets_have etcd && assets_have kube-apiserver && assets_have kube-controller-manager && assets_have kubectl; then
    echo "$assets"
    exit
fi
command -v go >/dev/null || { say "Go is needed to build the Kubernetes control plane, and there is no \`go\` in PATH"; exit 1; }

# The binaries depend on the sources and their replace lines, the compiler, and the recipe below (increase its number
# when the build steps change).
recipe=1
key=$({ cat go.mod go.sum; go env GOVERSION GOARCH; echo "$recipe"; } | sha256sum | cut -c1-16)
cache=${BURSAR_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bursar}/cluster
folder=$cache/$key
[ -z "$assets" ] || folder=$folder-$(echo -n "$assets" | sha256sum | cut -c1-8)

complete() {
    local tool
    for tool in "${tools[@]}"; do
        [ -x "$folder/$tool" ] || return 1
    done
}

# Prints a line every 30 s while a build is quiet, to show that it does not hang. When the build ends, the `sleep` must
# end too: it would keep the pipe to the reader of this script's output open.
heartbeat=
start_heartbeat() {
    local what=$1 began=$SECONDS
    (
        trap 'kill "$!" 2>/dev/null; exit' TERM
        while kill -0 "$$" 2>/dev/null; do
            sleep 30 &
            wait "$!"
            say "still $what, $((SECONDS - began)) s"
        done
    ) >/dev/null &
    heartbeat=$!
}
stop_heartbeat() {
    [ -n "$heartbeat" ] || return 0
    kill "$heartbeat" 2>/dev/null || true
    wait "$heartbeat" 2>/dev/null || true
    heartbeat=
}
trap stop_heartbeat EXIT

build() {
    local tool=$1 number=$2 began=$SECONDS status=0
    say "building $tool ($number of ${#tools[@]})"
    start_heartbeat "building $tool"
    # The version is linked in. Otherwise, the server calls itself v0.0.0, and clients complain.
    CGO_ENABLED=0 go build -trimpath -o "$folder/.$tool.new" -ldflags "-s -w \
        -X k8s.io/component-base/version.gitVersion=$version \
        -X k8s.io/component-base/version.gitMajor=$(cut -d. -f1 <<<"${version#v}") \
        -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"${version#v}")" \
        "$(package_of "$tool")" >&2 || status=$?
    stop_heartbeat
    [ "$status" = 0 ] || { say "$tool did not build (go build: exit $status)"; exit "$status"; }
    mv -f "$folder/.$tool.new" "$folder/$tool"
    say "built $tool in $((SECONDS - began)) s"
}

if ! complete; then
    mkdir -p "$folder"
    exec 9>"$cache/lock"
    if ! flock -n 9; then
        start_heartbeat "waiting for another build"
        flock 9
        stop_heartbeat
    fi
    version=$(awk '$1 == "k8s.io/kubernetes" && $2 ~ /^v/ { print $2; exit }' go.mod)
    number=0
    for tool in "${tools[@]}"; do
        number=$((number + 1))
        if assets_have "$tool"; then
            ln -sfn "$assets/$tool" "$folder/$tool"
        elif [ ! -x "$folder/$tool" ]; then
            build "$tool" "$number" 9>&-
        fi
    done
    say "the control plane is in $folder"
fi
echo "$folder"
